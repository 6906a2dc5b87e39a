"""The history of the cluster that a client asks is asked over a connection of its own, of the client's kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trainmaster.client.blocking import Blocking
from trainmaster.client.errors import InvalidRequest
from trainmaster.client.history.finding import HistoryServer, find_history
from trainmaster.client.history.reading import HistoryClient
from trainmaster.client.server import Server
from trainmaster.client.transport import READ_SECONDS, AsyncTransport, HttpTransport


def blocking_history(found: HistoryServer, *, seconds: float | None = READ_SECONDS) -> HistoryClient:
    """Returns a client that waits where it is called (`blocking.run`)."""
    transport = HttpTransport(found.server, seconds=seconds, reader=found.answers)
    return HistoryClient(Blocking(transport), is_announced=found.is_announced, address=found.server.address)


@asynccontextmanager
async def history_beside(
    transport: AsyncTransport, history: str | None, token: str | None
) -> AsyncIterator[HistoryClient]:
    """Yields the history that is named, else that of the cluster of a job client's transport."""
    server = getattr(transport.transport if isinstance(transport, Blocking) else transport, "server", None)
    if not isinstance(server, Server):
        raise InvalidRequest("This client's transport doesn't say where its cluster is: make the client without one.")
    found = find_history(history, server, token=token)
    if isinstance(transport, Blocking):
        yield blocking_history(found)
        return
    from trainmaster.client.asynchronous import AiohttpTransport

    own = AiohttpTransport(found.server, reader=found.answers)
    try:
        yield HistoryClient(own, is_announced=found.is_announced, address=found.server.address)
    finally:
        await own.close()
