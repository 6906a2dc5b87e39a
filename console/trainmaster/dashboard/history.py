"""What is read of a history, where there is one; it allows each question by the viewer's own token.

A job that is gone is looked up there (`look_up`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.client.errors import ClientError, JobNotFound, NoCluster
from trainmaster.client.history import HistoryClient, HistoryReader, find_history
from trainmaster.client.history.answers import NoWay
from trainmaster.client.job import TrainingJob
from trainmaster.client.server import Server
from trainmaster.client.transport import AsyncTransport
from trainmaster.client.watching import read_job
from trainmaster.dashboard.reading import HistoryTransport

# A RecordedJobDetail.
RecordedJob = Mapping[str, Any]


@dataclass(frozen=True)
class HistoryAccess:
    """HistoryAccess is one viewer's way to a history; it is closed with their session."""

    reader: HistoryReader
    close: Callable[[], Awaitable[None]]


# Of the API server as a viewer reaches it, by whose token the history knows them; None where there is no history.
HistoryOf = Callable[[Server], HistoryAccess | None]


def no_history(server: Server) -> None:
    """Returns no history."""
    del server


def history_at(address: str | None) -> HistoryOf:
    """Returns the history at an address, else the cluster's own (client/history/finding.py)."""

    def access(server: Server) -> HistoryAccess | None:
        if server.acting_as is not None:
            # A history knows a token, and nobody who is acted for.
            return None
        found = find_history(address, server)
        transport = HistoryTransport(found.server, reader=found.answers)
        client = HistoryClient(transport, is_announced=found.is_announced, address=found.server.address)
        return HistoryAccess(client, transport.close)

    return access


async def answers(history: HistoryReader | None) -> bool:
    """Returns whether there is a history: one that refuses a viewer is there."""
    if history is None:
        return False
    try:
        await history.jobs(limit=1)
    except (NoCluster, NoWay):
        return False
    except ClientError:
        return True
    return True


async def look_up(
    transport: AsyncTransport, history: HistoryReader | None, namespace: str, name: str, uid: str | None
) -> TrainingJob | RecordedJob:
    """Returns a job, as the history has it where it is gone. Raises JobNotFound where neither knows it."""
    try:
        job = await read_job(transport, namespace, name)
        if uid in (None, job.uid):
            return job
        missing = replaced(name)
    except JobNotFound as error:
        missing = error
    if history is None:
        raise missing
    try:
        return await history.job(namespace, name, uid=uid)
    except (JobNotFound, NoCluster):
        raise missing from None


def replaced(name: str) -> JobNotFound:
    """Returns what says that a page is about an earlier job than the one that is there."""
    return JobNotFound(f"That job {name} was deleted, and another one has its name now.")
