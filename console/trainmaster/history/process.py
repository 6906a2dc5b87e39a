"""Runs the history: opens the file, serves it, and keeps it small, until `stop` is set."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from trainmaster.client.errors import InvalidRequest
from trainmaster.client.server import address_of
from trainmaster.history.answers import AnswerThreads
from trainmaster.history.recorder import HistoryMetrics, HistoryRecorder
from trainmaster.history.schema import locked
from trainmaster.history.server import HistoryServer
from trainmaster.history.settings import HistorySettings
from trainmaster.history.viewers import HistoryViewers
from trainmaster.serving import first_to_end

log = logging.getLogger(__name__)


async def run_history(settings: HistorySettings, stop: asyncio.Event) -> None:
    """Serves the history until `stop` is set. Raises UnusableHistory, NoCluster and InvalidRequest."""
    file = Path(settings.file)
    with locked(file):
        viewers = HistoryViewers(address_of(settings.kubeconfig, settings.context))
        metrics, readers = HistoryMetrics(), AnswerThreads(file)
        metrics.most_bytes.set(settings.max_bytes)
        recorder = HistoryRecorder(settings, metrics, readers.reopen)
        token_file = None if settings.writer_token_file is None else Path(settings.writer_token_file)
        server = HistoryServer(recorder, readers, viewers, metrics, file, token_file)
        await recorder.open()
        try:
            try:
                port = await server.start(settings.address, settings.port)
            except OSError as error:
                where = f"{settings.address} port {settings.port}"
                # asyncio's message names its function calls. The error for an unknown host name has no errno.
                why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
                raise InvalidRequest(f"{where} can't be listened on: {why}; give --address and --port.") from error
            log.info("The history in %s is served on port %d.", file, port)
            if token_file is None:
                log.warning("Nothing is recorded, only read: there is no --writer-token-file.")
            elif not token_file.is_file():
                log.warning("Nothing is recorded until the writer's token is in %s, which doesn't exist.", token_file)
            # Only a bug ends the maintenance. This raises its error, so that the process is restarted.
            await first_to_end(stop.wait(), recorder.maintain())
        finally:
            await server.close()
            await readers.close()
            await viewers.close()
            await recorder.close()
