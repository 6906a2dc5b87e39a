"""A history's answers: the JSON objects that it serves, read from its file, which another process may be writing.

`Answers` needs no server: of a backup or a copy it answers the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from trainmaster.history.aging import CURVES, HEAT
from trainmaster.history.attempts import Attempt, shown
from trainmaster.history.curves import NO_STEP
from trainmaster.history.drawing import Drawn, Moved, Window, heat_answer, series_answer
from trainmaster.history.packing import decompress
from trainmaster.history.schema import open_to_read
from trainmaster.history.store import workers_of
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.records import PodPlace
from trainmaster_operator.api.times import to_text
from trainmaster_operator.wire.values import mapping

# Of one name, the newest: somebody may make a job anew every second.
MAX_LIVES = 200
# Characters of evidence or of logs in one answer: twice what a job's ConfigMap holds. Places of pods: those of the
# newest attempts.
MAX_TEXT, MAX_PLACES = 2 * 1024 * 1024, 20_000
_FIELDS = "id, uid, namespace, name, created, deleted, summary"


class NotRecorded(Exception):
    """Nothing of that job was recorded; one sentence says so."""


class Answers:
    """Answers reads one file, in one thread at a time."""

    def __init__(self, file: Path) -> None:
        """Opens the file. Raises UnusableFile."""
        self.connection = open_to_read(file)
        # Is called again and again during a long answer, and may raise.
        self.check: Callable[[], None] = lambda: None

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.connection.close()

    def count(self) -> int:
        """Returns how many jobs are recorded."""
        return int(self._one("SELECT count(*) FROM jobs")[0])

    def jobs(
        self, namespace: str = "", name: str = "", *, limit: int = 500, before: tuple[float, int] | None = None
    ) -> dict[str, Any]:
        """Returns a RecordedJobList, the newest first; `before` is where the last one ended (`continue`)."""
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
        return {"kind": "RecordedJobList", "items": [_recorded(row) for row in rows[:limit]], "continue": more}

    def job(self, namespace: str, name: str, uid: str = "") -> dict[str, Any]:
        """Returns a RecordedJobDetail. Raises NotRecorded."""
        with self._one_moment():
            row = self._job(namespace, name, uid)
            data = self._one("SELECT data FROM objects WHERE job = ?", row[0])
            lives = self._all(
                "SELECT uid, created, deleted FROM jobs WHERE namespace = ? AND name = ? "
                "ORDER BY created DESC, id DESC LIMIT ?",
                *(namespace, name, MAX_LIVES),
            )
            recorded = _recorded(row)
            return {
                **recorded,
                "kind": "RecordedJobDetail",
                "job": {} if data is None else json.loads(decompress(data[0])),
                "attempts": list(self._attempts(row[0], recorded)),
                "lives": [
                    {"uid": each, "createdAt": to_text(created), "deletedAt": _moment(deleted)}
                    for each, created, deleted in reversed(lives)
                ],
            }

    def series(self, namespace: str, name: str, uid: str, window: Window, points: int) -> dict[str, Any]:
        """Returns a Series of at most so many points. Raises NotRecorded."""

        def answer(drawn: Drawn) -> dict[str, Any]:
            furthest, before = NO_STEP, dict[int, int]()
            for attempt, step in self._all(
                "SELECT attempt, last_step FROM attempts WHERE job = ? ORDER BY attempt", drawn.job
            ):
                before[attempt] = furthest
                furthest = max(furthest, NO_STEP if step is None else step)
            return series_answer(drawn, window, points, before)

        return self._draw(namespace, name, uid, CURVES, window, answer)

    def heat(self, namespace: str, name: str, uid: str, window: Window, columns: int, figure: str) -> dict[str, Any]:
        """Returns a RankHeat of at most so many columns. Raises NotRecorded."""
        return self._draw(namespace, name, uid, HEAT, window, lambda drawn: heat_answer(drawn, window, columns, figure))

    def evidence(self, namespace: str, name: str, uid: str = "") -> dict[str, Any]:
        """Returns an EvidenceList of the newest attempts, as many as fit, the oldest first. Raises NotRecorded."""
        with self._one_moment():
            (job, *_) = self._job(namespace, name, uid)
            texts = self._texts("SELECT data FROM evidence WHERE job = ? ORDER BY key DESC", job)
            kept = [AttemptEvidence.parse(text) for _, text in texts]
        items = [json.loads(found.to_json()) for found in reversed(kept) if found is not None]
        return {"kind": "EvidenceList", "items": items}

    def logs(
        self, namespace: str, name: str, uid: str = "", *, worker: int | None = None, tail: int | None = None
    ) -> dict[str, Any]:
        """Returns a LogList: of one worker, or of as many as fit, the last lines of each. Raises NotRecorded."""
        with self._one_moment():
            (job, *_) = self._job(namespace, name, uid)
            only = "" if worker is None else f" AND key = {worker}"
            rows = list(self._texts(f"SELECT data, key FROM logs WHERE job = ?{only} ORDER BY key", job))
        items = []
        for number, text in rows:
            kept = KeptLog.parse(mapping(json.loads(text)), number) or KeptLog()
            first = 0 if tail is None else max(0, len(kept.lines) - tail)
            times = None if kept.times is None else list(kept.times[first:])
            items.append(
                {"worker": number, "lines": list(kept.lines[first:]), "times": times, "cut": kept.cut or first > 0}
            )
        return {"kind": "LogList", "items": items}

    def _draw(
        self,
        namespace: str,
        name: str,
        uid: str,
        kind: str,
        window: Window,
        answer: Callable[[Drawn], dict[str, Any]],
    ) -> dict[str, Any]:
        """Returns what is drawn of a job.

        SQLite can't begin its write-ahead log again while anybody reads from a moment, and with readers without end
        that log would fill the disk. So a long read isn't of one moment, unless a block was moved under it.
        """
        try:
            with self._one_moment():
                (job, *_) = self._job(namespace, name, uid)
                drawn = Drawn.of(self.connection, job, kind, window, self.check)
            return answer(drawn)
        except Moved:
            with self._one_moment():
                (job, *_) = self._job(namespace, name, uid)
                return answer(Drawn.of(self.connection, job, kind, window, self.check))

    def _job(self, namespace: str, name: str, uid: str) -> Sequence[Any]:
        row: Sequence[Any] | None = self._one(
            f"SELECT {_FIELDS} FROM jobs WHERE namespace = ? AND name = ? AND (? IN ('', uid)) "
            "ORDER BY created DESC, id DESC LIMIT 1",
            *(namespace, name, uid),
        )
        if row is None:
            life = f" with the uid {uid}" if uid else ""
            raise NotRecorded(f"Nothing was recorded of a job {name}{life} in namespace {namespace}.")
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
            phase, deleted_at = recorded["phase"], recorded["deletedAt"]
            yield {
                **shown(attempt, own, following, phase=phase, deleted_at=deleted_at),
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

    def _texts(self, statement: str, *values: Any) -> Iterator[tuple[Any, str]]:
        """Yields compressed texts, and what else a row has, until they are too much for one answer."""
        left = MAX_TEXT
        for data, *more in self.connection.execute(statement, values):
            self.check()
            text = decompress(data).decode()
            left -= len(text)
            if left < 0:
                return
            yield (more or [None])[0], text

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self.connection.execute(statement, values).fetchall()

    def _one(self, statement: str, *values: Any) -> Any:
        return self.connection.execute(statement, values).fetchone()


def _recorded(row: Sequence[Any]) -> dict[str, Any]:
    _, uid, namespace, name, created, deleted, summary = row
    times = {"createdAt": to_text(created), "deletedAt": _moment(deleted)}
    return {"uid": uid, "namespace": namespace, "name": name, **times, **json.loads(summary)}


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else to_text(seconds)
