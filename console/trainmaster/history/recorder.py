"""Writes the file in one thread: batches as they arrive, and small steps of aging and trimming between them."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
from prometheus_client import Counter as CounterMetric

from trainmaster.history.schema import UnusableHistory, is_damage, move_aside
from trainmaster.history.settings import HistorySettings
from trainmaster.history.store import HistoryStore
from trainmaster.history.upkeep import TAIL_BYTES, Aging, Trimming
from trainmaster_operator import __version__
from trainmaster_operator.api.records import Record, parse_record
from trainmaster_operator.wire.values import ProtocolError

log = logging.getLogger(__name__)
T = TypeVar("T")

# Seconds between two checks for due steps: usually, and after a failure (such as a full disk).
LOOK_SECONDS, FAILED_SECONDS = 1.0, 10.0
# Maximum seconds for which a batch waits until there is room in the file.
ROOM_SECONDS = 5.0
# A slice of the tail may take at most the file's maximum size divided by this number.
_OF_A_SLICE = 256
# Reasons of refused requests, by the answer's HTTP status.
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class CannotRecord(Exception):
    """The history can't write now. The message states the reason. The sender must repeat the records."""


class HistoryRecorder:
    """HistoryRecorder owns the thread that writes."""

    def __init__(self, settings: HistorySettings, metrics: HistoryMetrics, reopened: Callable[[], None]) -> None:
        """`reopened` is called after a damaged or deleted file was replaced."""
        self._settings = settings
        self._metrics = metrics
        self._reopened = reopened
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._store: HistoryStore
        self._trimming: Trimming
        self._steps: Sequence[Callable[[], bool]] = ()
        self._cannot = ""

    async def open(self) -> None:
        """Opens the file. Raises UnusableHistory."""
        await self._run(self._open)

    async def close(self) -> None:
        """Waits for the batch in progress, then moves all data into the one file and closes it."""
        await self._run(self._close)
        self._thread.shutdown()

    async def record(self, body: bytes) -> int:
        """Writes a batch (one record a line); returns the number of records. Raises ProtocolError and CannotRecord."""
        return await self._run(lambda: self._record(body))

    async def maintain(self) -> None:
        """Runs steps as they become due, until cancelled."""
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
        self._store = store = HistoryStore(Path(self._settings.file))
        store.bound(most)
        self._trimming = Trimming(store, most, self._settings.keep_days)
        self._steps = (Aging(store, min(TAIL_BYTES, most // _OF_A_SLICE)).step, self._trimming.step)

    def _close(self) -> None:
        try:
            self._store.close()
        except sqlite3.Error as error:
            log.warning("The last records stay in the write-ahead log beside the file (-wal): %s", error)

    def _record(self, body: bytes) -> int:
        started = time.monotonic()
        try:
            written = self._write(body)
        except (CannotRecord, ProtocolError):
            raise
        except Exception:
            written = self._one_by_one(body)
        self._metrics.commit_seconds.observe(time.monotonic() - started)
        for kind, number in written.items():
            self._metrics.records.labels(record=kind).inc(number)
        return written.total()

    def _one_by_one(self, body: bytes) -> Counter[str]:
        """Writes each record by itself. Records that fail are skipped, because they would block all others."""
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
        """Writes a batch's records. They are parsed one at a time, because a parsed record is large."""
        self._make_room()
        return self._or_replaced(lambda: self._store.record(parse_lines(body)), len(body))

    def _make_room(self) -> None:
        """Runs steps before a batch if the file is full, so that a flood of records can't outpace them."""
        until = time.monotonic() + ROOM_SECONDS
        while self._trimming.is_over() and time.monotonic() < until and self._step():
            pass

    def _step(self) -> bool:
        return self._or_replaced(lambda: any(step() for step in self._steps))

    def _or_replaced(self, write: Callable[[], T], size: int | None = None) -> T:
        """Calls `write`. If the file is damaged or missing, replaces it and calls `write` again.

        `size` is the size of the records' JSON. Raises CannotRecord, and ValueError for records that don't fit
        into the file.
        """
        try:
            if self._store.is_lost():
                self._replace()
            try:
                found = write()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._move_aside(error)
                found = write()
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            if is_full and size is not None and not self._store.has_room(size):
                raise ValueError(f"it doesn't fit below --max-bytes ({self._settings.max_bytes})") from error
            self._refuse(error)
        if self._cannot:
            log.info("Records are written again.")
            self._cannot = ""
        return found

    def _replace(self) -> None:
        """Restores a deleted file from the open connection, or opens the file that has replaced the old file."""
        file = self._store.file
        self._store.drop_beside()
        if file.exists():
            what = "was replaced by another file, which is used from now on"
        else:
            try:
                self._store.restore()
                what = "was deleted, and is restored whole from the open connection"
            except (sqlite3.Error, OSError) as error:
                what = f"was deleted and can't be restored ({error}): a new history is begun"
        self._store.connection.close()
        log.error("%s %s. Stop the history before you delete or replace its file.", file, what)
        self._metrics.lost.inc()
        self._reopen()

    def _reopen(self) -> None:
        try:
            self._open()
        except UnusableHistory as error:
            raise CannotRecord(str(error)) from error
        self._reopened()

    def _move_aside(self, error: sqlite3.Error) -> None:
        self._store.connection.close()
        move_aside(self._store.file, error)
        self._metrics.damaged.inc()
        self._reopen()

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        full = "is full" in str(error) or "disk I/O" in str(error)
        what = "there is no room on its disk, or it can't be written" if full else "it can't be written"
        sentence = f"Nothing is recorded in {self._store.file} now: {what} ({error})."
        if sentence != self._cannot:
            log.error("%s Recorded jobs can still be read, and writing resumes by itself.", sentence)
        self._cannot = sentence
        raise CannotRecord(sentence) from error

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def parse_lines(body: bytes) -> Iterator[Record]:
    """Yields the records of a batch. Raises ProtocolError with the line and the invalid field."""
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


class HistoryMetrics:
    """HistoryMetrics contains all metrics. Their names and labels must not change: dashboards and alerts use them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(CounterMetric, registry=registry), partial(Gauge, registry=registry)
        self.records = counter("trainmaster_history_records", "Records written.", ["record"])
        self.bytes = gauge("trainmaster_history_file_bytes", "Bytes of the file on the disk.")
        self.most_bytes = gauge("trainmaster_history_max_bytes", "Maximum size of the file.")
        self.jobs = gauge("trainmaster_history_jobs", "Recorded jobs.")
        self.commit_seconds = Histogram(
            "trainmaster_history_commit_duration_seconds",
            "Seconds until a batch of records was on the disk.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )
        self.refused = counter("trainmaster_history_refused_requests", "Requests that were refused.", ["reason"])
        self.damaged = counter("trainmaster_history_damaged_files", "Damaged files that were moved aside.")
        lost = "Times that the file was deleted or replaced while it was in use."
        self.lost = counter("trainmaster_history_lost_files", lost)
        for kind in get_args(Record):
            self.records.labels(record=kind.kind)
        for reason in REASONS.values():
            self.refused.labels(reason=reason)
        ProcessCollector(registry=registry)
        version = gauge("trainmaster_build_info", "1, with the version that runs.", ["version"])
        version.labels(version=__version__).set(1)
