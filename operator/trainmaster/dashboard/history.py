"""What is read of a history, where there is one; it allows each question by the viewer's own token.

A job that is gone is looked up there (`look_up`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainmaster.client.blocking import AsyncTransport
from trainmaster.client.errors import ClientError, JobNotFound, NoCluster
from trainmaster.client.job import TrainingJob
from trainmaster.client.server import Server
from trainmaster.client.watching import read_job

# A RecordedJobDetail.
RecordedJob = Mapping[str, Any]


class HistoryReader(Protocol):
    """HistoryReader asks a history in the name of one viewer. Every method raises a ClientError."""

    async def jobs(self, namespace: str | None = None, *, limit: int = 500) -> Mapping[str, Any]:
        """Returns a RecordedJobList."""

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns a RecordedJobDetail."""

    async def series(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        points: int = 1000,
    ) -> Mapping[str, Any]:
        """Returns a Series."""

    async def heat(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        since: float | None = None,
        until: float | None = None,
        columns: int = 240,
        figure: str = "stepSeconds",
    ) -> Mapping[str, Any]:
        """Returns a RankHeat."""

    async def evidence(self, namespace: str, name: str, *, uid: str | None = None) -> Mapping[str, Any]:
        """Returns an EvidenceList."""

    async def logs(
        self,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        worker: int | None = None,
        tail: int | None = None,
    ) -> Mapping[str, Any]:
        """Returns a LogList."""


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


async def answers(history: HistoryReader | None) -> bool:
    """Returns whether there is a history: one that refuses a viewer is there."""
    if history is None:
        return False
    try:
        await history.jobs(limit=1)
    except NoCluster:
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
        missing = JobNotFound(f"That job {name} was deleted, and another one has its name now.")
    except JobNotFound as error:
        missing = error
    if history is None:
        raise missing
    try:
        return await history.job(namespace, name, uid=uid)
    except (JobNotFound, NoCluster):
        raise missing from None
