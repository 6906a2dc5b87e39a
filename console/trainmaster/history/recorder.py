"""The file is written here, in one thread: batches as they come, and between them small steps of aging and trimming."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trainmaster.history.aging import TAIL_BYTES, Aging
from trainmaster.history.metrics import HistoryMetrics
from trainmaster.history.schema import UnusableFile, is_damage, move_aside
from trainmaster.history.settings import HistorySettings
from trainmaster.history.store import Store
from trainmaster.history.trimming import Trimming
from trainmaster_operator.api.records import Record, parse_record
from trainmaster_operator.wire.values import ProtocolError

log = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds between two looks for what is due, and between two after a failure (a full disk).
LOOK_SECONDS, FAILED_SECONDS = 1.0, 10.0


# Seconds for which a batch waits at most until there is room for it.
ROOM_SECONDS = 5.0
# A slice of the tail has at most such a part of the file.
_OF_A_SLICE = 256


class CannotRecord(Exception):
    """Nothing can be written now; one sentence says why. The sender sends it again."""


class NoRoom(Exception):
    """Records don't fit into the file below its bound."""


class Recorder:
    """Recorder owns the thread in which all is written."""

    def __init__(self, settings: HistorySettings, metrics: HistoryMetrics, reopened: Callable[[], None]) -> None:
        """`reopened` is called after another file has taken the place of a damaged or a deleted one."""
        self._settings = settings
        self._metrics = metrics
        self._reopened = reopened
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._store: Store
        self._trimming: Trimming
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
        most = self._settings.max_bytes
        self._store = store = Store(Path(self._settings.file))
        store.bound(most)
        self._trimming = Trimming(store, most, self._settings.keep_days)
        self._steps = (Aging(store, min(TAIL_BYTES, most // _OF_A_SLICE)).step, self._trimming.step)

    def _close(self) -> None:
        try:
            self._store.close()
        except sqlite3.Error as error:
            log.warning("What was written last stays in the file beside it (-wal): %s", error)

    def _record(self, body: bytes) -> int:
        started = time.monotonic()
        try:
            written = self._write(body)
        except (CannotRecord, ProtocolError):
            raise
        except Exception:
            written = self._one_by_one(body)
        self._metrics.commit_seconds.observe(time.monotonic() - started)
        self._metrics.count_records(written)
        return written.total()

    def _one_by_one(self, body: bytes) -> Counter[str]:
        """Writes each record by itself, and leaves out what can't be: others' records don't wait for it for ever."""
        written = Counter[str]()
        for line in body.split(b"\n"):
            try:
                written += self._write(line)
            except (CannotRecord, ProtocolError):
                raise
            except Exception as error:
                [record] = parse_lines(line)
                log.warning("A record of %s is left out (%s): %s", record.key, type(error).__name__, error)
        return written

    def _write(self, body: bytes) -> Counter[str]:
        """Writes records, one line each, which are held one at a time: of those that are parsed none is small."""
        self._make_room()
        return self._or_anew(lambda: self._store.record(parse_lines(body)), len(body))

    def _make_room(self) -> None:
        """Makes steps before a batch where the file is full, so that no flood of records is faster than they are."""
        until = time.monotonic() + ROOM_SECONDS
        while self._trimming.is_over() and time.monotonic() < until and self._step():
            pass

    def _step(self) -> bool:
        return self._or_anew(lambda: any(step() for step in self._steps))

    def _or_anew(self, write: Callable[[], T], size: int | None = None) -> T:
        """Writes, into a new file where the old one turns out to be damaged or gone.

        `size` is that of records, in JSON. Raises CannotRecord, and NoRoom where it is the file's bound that they
        don't fit below.
        """
        try:
            if self._store.is_lost():
                self._replace()
            try:
                found = write()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._begin_anew(error)
                found = write()
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            if is_full and size is not None and not self._store.has_room(size):
                raise NoRoom(f"it doesn't fit below --max-bytes ({self._settings.max_bytes})") from error
            self._refuse(error)
        if self._cannot:
            log.info("Records are written again.")
            self._cannot = ""
        return found

    def _replace(self) -> None:
        """Puts a deleted file back from what is still open of it, or uses the file that is in its place now."""
        file = self._store.file
        self._store.drop_beside()
        if file.exists():
            what = "was replaced by another file, which is used from now on"
        else:
            try:
                self._store.put_back()
                what = "was deleted, and is put back whole from what was still open of it"
            except (sqlite3.Error, OSError) as error:
                what = f"was deleted and can't be put back ({error}): a new history is begun"
        self._store.connection.close()
        log.error("%s %s. Stop the history before you delete or replace its file.", file, what)
        self._metrics.lost.inc()
        self._reopen()

    def _reopen(self) -> None:
        try:
            self._open()
        except UnusableFile as error:
            raise CannotRecord(str(error)) from error
        self._reopened()

    def _begin_anew(self, error: sqlite3.Error) -> None:
        self._store.connection.close()
        aside = move_aside(self._store.file)
        log.error("%s is damaged (%s): it is kept as %s, and a new history is begun.", self._store.file, error, aside)
        self._metrics.damaged.inc()
        self._reopen()

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


def parse_lines(body: bytes) -> Iterator[Record]:
    """Yields the records of a batch. Raises ProtocolError with the line and field that is wrong."""
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                record = parse_record(json.loads(line, parse_constant=_refuse_constant))
            except ProtocolError as error:
                raise ProtocolError(f"line {number}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"line {number}: is no JSON ({error})") from error
            yield record


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
