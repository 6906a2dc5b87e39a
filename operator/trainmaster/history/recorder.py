"""The file is written here, in one thread: batches as they come, and between them small steps of aging and trimming."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trainmaster.api.records import Record, parse_record
from trainmaster.history.aging import Aging
from trainmaster.history.metrics import HistoryMetrics
from trainmaster.history.schema import is_damage, move_aside
from trainmaster.history.settings import HistorySettings
from trainmaster.history.store import Store
from trainmaster.history.trimming import Trimming
from trainmaster.wire.errors import ProtocolError

log = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds between two looks for what is due, and between two after a failure (a full disk).
LOOK_SECONDS, FAILED_SECONDS = 1.0, 10.0


class CannotRecord(Exception):
    """Nothing can be written now; one sentence says why. Who sent it sends it again."""


class Recorder:
    """Recorder owns the thread in which all is written."""

    def __init__(self, settings: HistorySettings, metrics: HistoryMetrics, damaged: Callable[[], None]) -> None:
        """`damaged` is called after a damaged file was moved aside."""
        self._settings = settings
        self._metrics = metrics
        self._damaged = damaged
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._store: Store
        self._steps: Sequence[Callable[[], bool]] = ()
        self._cannot = ""

    async def open(self) -> None:
        """Opens the file. Raises UnusableFile."""
        await self._run(self._open)

    async def close(self) -> None:
        """Ends with what is being written, and leaves everything in the one file."""
        await self._run(self._close)
        self._thread.shutdown()

    async def record(self, body: bytes) -> int:
        """Writes a batch, one record a line; returns their number. Raises ProtocolError and CannotRecord."""
        return await self._run(lambda: self._record(body))

    async def maintain(self) -> None:
        """Makes steps as they are due, for as long as it isn't cancelled."""
        while True:
            try:
                while await self._run(self._step):
                    pass
                pause = LOOK_SECONDS
            except CannotRecord:
                pause = FAILED_SECONDS
            await asyncio.sleep(pause)

    def _open(self) -> None:
        self._store = store = Store(Path(self._settings.file))
        aging = Aging(store)
        self._steps = (aging.step, Trimming(store, self._settings.max_bytes, self._settings.keep_days).step)

    def _close(self) -> None:
        try:
            self._store.close()
        except sqlite3.Error as error:
            log.warning("What was written last stays in the file beside it (-wal): %s", error)

    def _record(self, body: bytes) -> int:
        records = parse_lines(body)
        started = time.monotonic()
        try:
            self._or_anew(lambda: self._store.record(records))
        except CannotRecord:
            raise
        except Exception:
            records = self._one_by_one(records)
        self._metrics.commit_seconds.observe(time.monotonic() - started)
        self._metrics.count_records(records)
        return len(records)

    def _one_by_one(self, records: Sequence[Record]) -> list[Record]:
        """Writes each record by itself, and leaves out what can't be: others' records don't wait for it for ever."""
        written = []
        for record in records:
            try:
                self._or_anew(partial(self._store.record, [record]))
                written.append(record)
            except CannotRecord:
                raise
            except Exception as error:
                log.warning("A record of %s is left out (%s): %s", record.key, type(error).__name__, error)
        return written

    def _step(self) -> bool:
        return self._or_anew(lambda: any(step() for step in self._steps))

    def _or_anew(self, write: Callable[[], T]) -> T:
        """Writes, into a new file where the old one turns out to be damaged. Raises CannotRecord."""
        try:
            try:
                found = write()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._begin_anew(error)
                found = write()
        except sqlite3.Error as error:
            self._refuse(error)
        if self._cannot:
            log.info("Records are written again.")
            self._cannot = ""
        return found

    def _begin_anew(self, error: sqlite3.Error) -> None:
        self._store.connection.close()
        aside = move_aside(self._store.file)
        log.error("%s is damaged (%s): it is kept as %s, and a new history is begun.", self._store.file, error, aside)
        self._open()
        self._metrics.damaged.inc()
        self._damaged()

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        full = "is full" in str(error) or "disk I/O" in str(error)
        what = "there is no room on its disk, or it can't be written" if full else "it can't be written"
        sentence = f"Nothing is recorded in {self._store.file} now: {what} ({error})."
        if sentence != self._cannot:
            log.error("%s What is recorded can be read on, and writing goes on by itself when it can.", sentence)
        self._cannot = sentence
        raise CannotRecord(sentence) from error

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def parse_lines(body: bytes) -> list[Record]:
    """Returns the records of a batch. Raises ProtocolError with the line and field that is wrong."""
    records = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                records.append(parse_record(json.loads(line, parse_constant=_refuse_constant)))
            except ProtocolError as error:
                raise ProtocolError(f"line {number}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"line {number}: is no JSON ({error})") from error
    return records


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
