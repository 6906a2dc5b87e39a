"""`History` runs the process: the file is opened, served and kept small until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from trainmaster.client.server import address_of
from trainmaster.history.access import Viewers
from trainmaster.history.metrics import HistoryMetrics
from trainmaster.history.reading import Readers
from trainmaster.history.recorder import Recorder
from trainmaster.history.schema import locked
from trainmaster.history.server import HistoryServer
from trainmaster.history.settings import HistorySettings

log = logging.getLogger(__name__)


class CannotListen(Exception):
    """The port can't be had; one sentence says why."""


class History:
    """History is one process."""

    def __init__(self, settings: HistorySettings) -> None:
        self._settings = settings

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set. Raises UnusableFile, NoCluster and CannotListen."""
        settings, file = self._settings, Path(self._settings.file)
        with locked(file):
            viewers = Viewers(address_of(settings.kubeconfig, settings.context))
            metrics, readers = HistoryMetrics(), Readers(file)
            metrics.most_bytes.set(settings.max_bytes)
            recorder = Recorder(settings, metrics, readers.begin_anew)
            token_file = None if settings.writer_token_file is None else Path(settings.writer_token_file)
            server = HistoryServer(recorder, readers, viewers, metrics, file, token_file)
            await recorder.open()
            maintaining = asyncio.create_task(recorder.maintain())
            try:
                try:
                    port = await server.start(settings.address, settings.port)
                except OSError as error:
                    where = f"{settings.address} port {settings.port}"
                    # asyncio's own text of it is about its calls; that of a name which isn't known is of no errno.
                    why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
                    raise CannotListen(f"{where} can't be listened on: {why}; give --address and --port.") from error
                log.info("The history in %s is served on port %d.", file, port)
                if token_file is None:
                    log.warning("Nothing is recorded, only read: there is no --writer-token-file.")
                elif not token_file.is_file():
                    log.warning("Nothing is recorded until the writer's token is in %s, which isn't there.", token_file)
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait((stopping, maintaining), return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if maintaining.done():
                    # Only a fault of ours ends it: the process is started again.
                    maintaining.result()
            finally:
                maintaining.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await maintaining
                await server.close()
                await readers.close()
                await viewers.close()
                await recorder.close()
