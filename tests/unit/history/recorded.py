"""Builds records, and a store with its own file and a clock that tests move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmaster.history import answers
from trainmaster.history.store import HistoryStore
from trainmaster.history.upkeep import Aging
from trainmaster_operator.api.records import JobIdentity, JobRecord, PodPlace, SampleRecord
from trainmaster_operator.api.times import to_text

START = 1_800_000_000.0


class Answers(answers.Answers):
    """Answers with the JSON objects that the server sends."""

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("jobs", "job", "series", "names", "curves", "heat", "evidence", "logs"):
            return found
        return lambda *given, **named: json.loads(answers._encoded(found(*given, **named)))


@dataclass
class Clock:
    """Is a clock that tests move by hand."""

    now: float = START

    def __call__(self) -> float:
        return self.now


@dataclass
class Recorded:
    """Holds a store, and the parts that make its samples age."""

    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.file = self.folder / "history.sqlite"
        self.store = HistoryStore(self.file, self.clock)
        # Tests don't lose power.
        self.store.connection.execute("PRAGMA synchronous = OFF")
        self.aging = Aging(self.store)

    def age(self) -> None:
        """Packs all samples, and runs all due steps of ageing."""
        while self.aging.step(at_once=True):
            pass

    def blocks(self, kind: str, job: int = 1) -> list[tuple[int, int]]:
        """Returns the level and the points of a job's blocks."""
        return self.store.connection.execute(
            "SELECT level, sum(points) FROM blocks WHERE kind = ? AND job = ? GROUP BY level ORDER BY level",
            (kind, job),
        ).fetchall()


def key(name: str = "mine", uid: str = "uid-1", namespace: str = "team") -> JobIdentity:
    """Returns a job's identity."""
    return JobIdentity(namespace, name, uid)


def job(
    at: float, of: JobIdentity | None = None, pods: Sequence[PodPlace] = (), created: float = START, **status: Any
) -> JobRecord:
    """Returns a job's record."""
    of = of or key()
    metadata = {"namespace": of.namespace, "name": of.name, "uid": of.uid, "creationTimestamp": to_text(created)}
    return JobRecord(at, {"kind": "DistributedTrainingJob", "metadata": metadata, "status": status}, tuple(pods))


def sample(
    at: float, of: JobIdentity | None = None, *, attempt: int = 1, ranks: int = 2, **columns: Sequence[float | None]
) -> SampleRecord:
    """Returns a sample."""
    numbers = tuple(range(ranks))
    return SampleRecord(at, of or key(), attempt, numbers, tuple(rank // 2 for rank in numbers), columns)
