"""`python -m tests.processes.serving.served NAME FOLDER` runs one of our servers as a process, with nothing
behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from trainmaster.client.server import Fixed, Server
from trainmaster.dashboard.app import Dashboard, DashboardSettings, serving
from trainmaster.history.answers import AnswerThreads
from trainmaster.history.recorder import HistoryMetrics, HistoryRecorder
from trainmaster.history.server import HistoryServer
from trainmaster.history.settings import HistorySettings
from trainmaster.history.viewers import HistoryViewers
from trainmaster_operator.controller.observability.endpoints import probes

HOST = "127.0.0.1"
NOBODY = Server("http://127.0.0.1:9", None, None, None, Fixed(None), "default")


@contextlib.asynccontextmanager
async def operator(_: Path) -> AsyncIterator[int]:
    """Serves the operator's probes."""
    server = probes(healthy=lambda: None, ready=lambda: None)
    yield (await server.start(HOST, 0))[1]
    await server.close()


@contextlib.asynccontextmanager
async def history(folder: Path) -> AsyncIterator[int]:
    """Serves a history, whose writer has a token."""
    file, token = folder / "history.sqlite", folder / "token"
    token.write_text("the-writers\n")
    metrics, readers = HistoryMetrics(), AnswerThreads(file)
    recorder = HistoryRecorder(HistorySettings(file=str(file)), metrics, readers.reopen)
    await recorder.open()
    server = HistoryServer(recorder, readers, HistoryViewers(NOBODY), metrics, file, token)
    yield (await server.http.start(HOST, 0))[1]
    await server.http.close()


@contextlib.asynccontextmanager
async def dashboard(_: Path) -> AsyncIterator[int]:
    """Serves a dashboard in a cluster."""
    async with serving(Dashboard(DashboardSettings("cluster", NOBODY)), HOST, 0) as (_address, port):
        yield port


SERVERS = {"operator": operator, "history": history, "dashboard": dashboard}


async def main(name: str, folder: str) -> None:
    """Prints the port, and serves until the end of its input."""
    async with SERVERS[name](Path(folder)) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    asyncio.run(main(*sys.argv[1:]))
