"""Reads answers about recorded jobs from the file, while another thread or process may be writing it.

`AnswerThreads` runs a few threads besides the writer's, each with its own connection. Long answers (curves, heat, logs,
evidence) have separate threads, so that a list never waits for a long answer.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from trainmaster.client.errors import JobNotFound
from trainmaster.client.history.answers import (
    MOST_ITEMS,
    EvidenceList,
    HistoryAnswer,
    LogList,
    MetricCurves,
    MetricNames,
    RankHeat,
    RecordedJobDetail,
    RecordedJobList,
    Series,
)
from trainmaster.history.drawing import Block, Drawn, Moved, TimeWindow, curves_answer, heat_answer, series_answer
from trainmaster.history.figures import CURVES, GPUS, HEAT, SYSTEM, decompress, of_tail
from trainmaster.history.names import names_answer
from trainmaster.history.schema import open_to_read
from trainmaster.history.statuses import Attempt, shown
from trainmaster.history.store import slice_of, workers_of
from trainmaster.serving import Refused
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import PodPlace
from trainmaster_operator.api.times import to_text
from trainmaster_operator.wire.values import mapping

# Maximum number of jobs of one name (the newest) in an answer, because a client may recreate a job every second.
MAX_LIVES = 200
# Maximum in one answer: characters of evidence or logs (twice the size of a job's ConfigMap), and workers'
# places (pod and node). If there are more, the places of the oldest attempts are left out.
MAX_TEXT, MAX_PLACES = 2 * 1024 * 1024, 20_000
SHORT_THREADS, LONG_THREADS = 2, 2
# Maximum seconds for reading one answer, and for waiting until a thread is free.
READ_SECONDS, WAIT_SECONDS = 10.0, 30.0
# Maximum seconds that `close` waits for reads in progress.
CLOSE_SECONDS = 0.5
# Steps of SQLite's virtual machine between two checks of the time.
_STEPS = 20_000
# Larger answers are compressed if the client accepts gzip. This level takes half the time of the default.
_COMPRESSED_BYTES, _GZIP, _LEVEL = 4_096, 31, 4
_FIELDS = "id, uid, namespace, name, created, deleted, summary"
Kind = TypeVar("Kind", bound=HistoryAnswer)


class Answers:
    """Answers reads one file. Only one thread at a time may use it."""

    def __init__(self, file: Path) -> None:
        """Opens the file. Raises UnusableHistory."""
        self.connection = open_to_read(file)
        # Long answers call this function repeatedly. It raises an error if the answer must stop.
        self.check: Callable[[], None] = lambda: None

    def count(self) -> int:
        """Returns the number of recorded jobs."""
        return int(self._one("SELECT count(*) FROM jobs")[0])

    def jobs(
        self, namespace: str = "", name: str = "", *, limit: int = 500, before: tuple[float, int] | None = None
    ) -> RecordedJobList:
        """Returns jobs, newest first. `before` is the position at which the previous list ended, its `continue`."""
        conditions, values = ["1"], list[Any]()
        for column, value in (("namespace", namespace), ("name", name)):
            if value:
                conditions.append(f"{column} = ?")
                values.append(value)
        if before is not None:
            conditions.append("(created, id) < (?, ?)")
            values += before
        rows = self._all(
            f"SELECT {_FIELDS} FROM jobs WHERE {' AND '.join(conditions)} ORDER BY created DESC, id DESC LIMIT ?",
            *(*values, limit + 1),
        )
        more = f"{rows[limit - 1][4]!r}:{rows[limit - 1][0]}" if len(rows) > limit else ""
        return RecordedJobList.of(items=[_recorded(row) for row in rows[:limit]], **{"continue": more})

    def job(self, namespace: str, name: str, uid: str = "") -> RecordedJobDetail:
        """Returns a job. Raises JobNotFound."""
        with self._one_moment():
            row = self._job(namespace, name, uid)
            data = self._one("SELECT data FROM objects WHERE job = ?", row[0])
            lives = self._all(
                "SELECT uid, created, deleted FROM jobs WHERE namespace = ? AND name = ? "
                "ORDER BY created DESC, id DESC LIMIT ?",
                *(namespace, name, MAX_LIVES),
            )
            recorded = _recorded(row)
            return RecordedJobDetail.of(
                **recorded,
                job={} if data is None else json.loads(decompress(data[0])),
                attempts=list(self._attempts(row[0], recorded)),
                lives=[
                    {"uid": each, "createdAt": to_text(created), "deletedAt": _moment(deleted)}
                    for each, created, deleted in reversed(lives)
                ],
            )

    def series(
        self, namespace: str, name: str, uid: str, window: TimeWindow, points: int, metrics: Sequence[str] = ()
    ) -> Series:
        """Returns curves of at most `points` points. Raises JobNotFound."""
        return self._draw(
            *(namespace, name, uid, [CURVES], window),
            lambda job, drawn: series_answer(drawn[CURVES], window, points, self._done_before(job), metrics),
        )

    def curves(
        self, namespace: str, name: str, uid: str, window: TimeWindow, points: int, names: Sequence[str]
    ) -> MetricCurves:
        """Returns the curves of these names, of at most `points` points. Raises JobNotFound."""
        return self._draw(
            *(namespace, name, uid, [CURVES, SYSTEM, GPUS], window),
            lambda job, drawn: curves_answer(names, drawn, window, points, self._done_before(job)),
        )

    def names(self, namespace: str, name: str, uid: str = "") -> MetricNames:
        """Returns the names of a job's curves. Raises JobNotFound."""
        with self._one_moment():
            (job, *_) = self._job(namespace, name, uid)
            return names_answer(name for (name,) in self._all("SELECT name FROM metrics WHERE job = ?", job))

    def _done_before(self, job: int) -> Mapping[int, int]:
        """Returns the furthest step before each attempt."""
        return dict(
            self._all(
                "SELECT attempt, coalesce(max(last_step) OVER earlier, -1) FROM attempts WHERE job = ? "
                "WINDOW earlier AS (ORDER BY attempt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)",
                job,
            )
        )

    def heat(self, namespace: str, name: str, uid: str, window: TimeWindow, columns: int, figure: str) -> RankHeat:
        """Returns a heat map of at most `columns` columns. Raises JobNotFound."""
        where = namespace, name, uid
        return self._draw(*where, [HEAT], window, lambda _, drawn: heat_answer(drawn[HEAT], window, columns, figure))

    def evidence(self, namespace: str, name: str, uid: str = "") -> EvidenceList:
        """Returns the evidence of as many of the newest attempts as fit, oldest first. Raises JobNotFound."""
        with self._one_moment():
            (job, *_) = self._job(namespace, name, uid)
            texts = self._texts("SELECT data, key FROM evidence WHERE job = ? ORDER BY key DESC", job)
            kept = [AttemptEvidence.parse(text) for _, text in texts]
        return EvidenceList.of(items=[json.loads(found.to_json()) for found in reversed(kept) if found is not None])

    def logs(
        self, namespace: str, name: str, uid: str = "", *, worker: int | None = None, tail: int | None = None
    ) -> LogList:
        """Returns the last lines of one worker's log, or of as many logs as fit. Raises JobNotFound."""
        with self._one_moment():
            (job, *_) = self._job(namespace, name, uid)
            only = "" if worker is None else f" AND key = {worker}"
            texts = self._texts(f"SELECT data, key FROM logs WHERE job = ?{only} ORDER BY key", job)
            rows = list(islice(texts, MOST_ITEMS))
        items = []
        for number, text in rows:
            kept = KeptLog.parse(mapping(json.loads(text)), number) or KeptLog()
            first = 0 if tail is None else max(0, len(kept.lines) - tail)
            times = None if kept.times is None else list(kept.times[first:])
            items.append(
                {"worker": number, "lines": list(kept.lines[first:]), "times": times, "cut": kept.cut or first > 0}
            )
        return LogList.of(items=items)

    def _draw(
        self,
        namespace: str,
        name: str,
        uid: str,
        kinds: Sequence[str],
        window: TimeWindow,
        answer: Callable[[int, Mapping[str, Drawn]], Kind],
    ) -> Kind:
        """Calls `answer` with a job's data by kind, and returns the result.

        SQLite can't restart its write-ahead log during a reader's transaction, and if there were always a reader, that
        log would fill the disk. So a long read uses no transaction. If a block moves during the read, the read is
        repeated in a transaction.
        """
        try:
            with self._one_moment():
                job, drawn = self._drawn(namespace, name, uid, kinds, window)
            return answer(job, drawn)
        except Moved:
            with self._one_moment():
                return answer(*self._drawn(namespace, name, uid, kinds, window))

    def _drawn(
        self, namespace: str, name: str, uid: str, kinds: Sequence[str], window: TimeWindow
    ) -> tuple[int, Mapping[str, Drawn]]:
        (job, *_) = self._job(namespace, name, uid)
        tail = self._all("SELECT at, data FROM tail WHERE slice = ? AND job = ? ORDER BY id", slice_of(job), job)

        def data(block: Block) -> bytes:
            self.check()
            # If the block was deleted, its number may now belong to another block.
            where = block.id, job, block.level
            row = self._one("SELECT data FROM blocks WHERE id = ? AND job = ? AND level = ?", *where)
            if row is None:
                raise Moved
            return bytes(row[0])

        parts, drawn = of_tail(tail), {}
        for kind in kinds:
            rows = self._all(
                "SELECT id, level FROM blocks WHERE job = ? AND kind = ? AND last >= ? AND first <= ? "
                "ORDER BY level DESC, first, id",
                *(job, kind, window.since, min(window.until, 1e15)),
            )
            drawn[kind] = Drawn(kind, parts[kind], [Block(*row) for row in rows], data)
        return job, drawn

    def _job(self, namespace: str, name: str, uid: str) -> Sequence[Any]:
        row: Sequence[Any] | None = self._one(
            f"SELECT {_FIELDS} FROM jobs WHERE namespace = ? AND name = ? AND (? IN ('', uid)) "
            "ORDER BY created DESC, id DESC LIMIT 1",
            *(namespace, name, uid),
        )
        if row is None:
            life = f" with the uid {uid}" if uid else ""
            raise JobNotFound(f"Nothing was recorded of a job {name}{life} in namespace {namespace}.")
        return row

    def _attempts(self, job: int, recorded: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        rows = self._all(
            "SELECT attempt, data, workers, first_step, last_step FROM attempts WHERE job = ? ORDER BY attempt", job
        )
        found = [Attempt(**json.loads(data)) for _, data, *_ in rows]
        places_of, left = dict[int, Mapping[int, PodPlace]](), MAX_PLACES
        for attempt, _, workers, *_ in reversed(rows):
            places = workers_of(workers) if workers is not None and left > 0 else {}
            left -= len(places)
            places_of[attempt] = places if left >= 0 else {}
        for row, own, following in zip(rows, found, [*found, None][1:], strict=True):
            attempt, _, _, first_step, last_step = row
            yield {
                **shown(attempt, own, following, phase=recorded["phase"], deleted_at=recorded["deletedAt"]),
                "firstStep": first_step,
                "lastStep": last_step,
                "workers": [
                    {"worker": place.worker, "pod": place.pod, "node": place.node or None}
                    for _, place in sorted(places_of[attempt].items())
                ],
            }

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        self.connection.execute("BEGIN")
        try:
            yield
        finally:
            self.connection.execute("ROLLBACK")

    def _texts(self, statement: str, *values: Any) -> Iterator[tuple[int, str]]:
        """Yields keys and decompressed texts, as many as fit in one answer."""
        left = MAX_TEXT
        for data, key in self.connection.execute(statement, values):
            self.check()
            text = decompress(data).decode()
            left -= len(text)
            if left < 0:
                return
            yield key, text

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self.connection.execute(statement, values).fetchall()

    def _one(self, statement: str, *values: Any) -> Any:
        return self.connection.execute(statement, values).fetchone()


class AnswerThreads:
    """AnswerThreads runs the threads that read answers from the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="history-reader")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="history-drawer")
        # The number of times that the file was replaced, for example because it was damaged.
        self._generation = 0
        self._is_closed = False
        # The open connections, by thread and generation.
        self._opened: dict[tuple[int, int], Answers] = {}

    def reopen(self) -> None:
        """Makes all later reads open the file again."""
        self._generation += 1

    async def close(self) -> None:
        """Cancels the reads in progress and closes the file."""
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for threads in (self._short, self._long):
                    await asyncio.to_thread(threads.shutdown, cancel_futures=True)
        except TimeoutError:
            # A read is still running, so its connection stays open, and the empty write-ahead log remains.
            return
        for answers in self._opened.values():
            answers.connection.close()

    async def read(
        self, ask: Callable[[Answers], HistoryAnswer | int], *, is_long: bool = False, compress: bool = False
    ) -> tuple[bytes, bool]:
        """Returns an answer's JSON, and whether it is compressed.

        Raises the errors of `ask`, UnusableHistory, sqlite3.Error and Refused.
        """
        threads = self._long if is_long else self._short
        reading = asyncio.get_running_loop().run_in_executor(threads, self._read, ask, compress)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await reading
        except TimeoutError as error:
            raise Refused(503, f"Other requests have been answered for {WAIT_SECONDS:g} s; try again.") from error

    def _read(self, ask: Callable[[Answers], HistoryAnswer | int], compress: bool) -> tuple[bytes, bool]:
        key = threading.get_ident(), self._generation
        if (answers := self._opened.get(key)) is None:
            answers = self._opened[key] = Answers(self._file)
        until = time.monotonic() + READ_SECONDS

        def is_over() -> bool:
            return self._is_closed or time.monotonic() > until

        def check() -> None:
            if is_over():
                raise _too_slow()

        answers.check = check
        answers.connection.set_progress_handler(is_over, _STEPS)
        try:
            body = _encoded(ask(answers))
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise _too_slow() from error
            raise
        if not compress or len(body) <= _COMPRESSED_BYTES:
            return body, False
        # This thread compresses, because compressing in the event loop would delay other requests.
        packing = zlib.compressobj(_LEVEL, wbits=_GZIP)
        return packing.compress(body) + packing.flush(), True


def _encoded(answer: HistoryAnswer | int) -> bytes:
    """Returns an answer's JSON. Pydantic encodes a heat map seven times faster than json."""
    if isinstance(answer, int):
        return str(answer).encode()
    try:
        return answer.model_dump_json(by_alias=True).encode()
    except PydanticSerializationError:
        # A text of a job contains a lone surrogate, which only json can encode.
        return json.dumps(answer.to_data(), separators=(",", ":")).encode()


def _too_slow() -> Refused:
    return Refused(504, f"The answer took more than {READ_SECONDS:g} s; ask for less (limit, from, to).")


def _recorded(row: Sequence[Any]) -> dict[str, Any]:
    _, uid, namespace, name, created, deleted, summary = row
    times = {"createdAt": to_text(created), "deletedAt": _moment(deleted)}
    return {"uid": uid, "namespace": namespace, "name": name, **times, **json.loads(summary)}


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else to_text(seconds)
