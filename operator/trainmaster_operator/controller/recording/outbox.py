"""The outbox holds the records that wait to be sent, in order, up to a number of bytes.

Each record is converted once, to a line of JSON. The line's size is limited, because the job's author or the ranks'
program decides the content. A job's newer record replaces the waiting one, unless the attempt, the phase or a failure
differs, because the history needs those facts. If there is no room, samples are dropped first, then records of jobs for
which a newer record is waiting, then the oldest records.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.json_codec import is_larger
from trainmaster_operator.api.records import (
    FIGURES,
    MAX_JOB_METRICS,
    JobRecord,
    PodPlace,
    Record,
    SampleRecord,
    to_wire,
)
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.kept import MAX_RECORDED_BYTES
from trainmaster_operator.controller.background import FailureLog
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import mapping

logger = logging.getLogger(__name__)
MAX_BYTES = 32 * 1024 * 1024
# Memory of an entry in bytes, besides its line.
OVERHEAD = 300
Outcome = Literal["sent", "dropped", "refused"]
"""The outcome of a record: `dropped` if there was no room for the record, `refused` if the history refused it."""
EntryKind = Literal["job", "sample", "other"]
# Limits on the bytes of a line with its line break, and of a request. A history accepts requests of 8 MiB.
MAX_LINE = 1024 * 1024
# If a job is too large, status fields larger than this (lists with an entry for each worker) are left out.
MAX_STATUS_FIELD = 16 * 1024
# Limit on the ranks of a sample. If a job has more, evenly spaced ranks are recorded.
MAX_RANKS = 8_192
# The index of each figure in the ranks' reports, by the figure's name on the wire.
_FIELDS = {key: RankProgress._fields.index(name) for name, key in FIGURES.items()}
_COMPUTE = RankProgress._fields.index("compute_seconds")
_IDENTITY = ("namespace", "name", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
RankReport = tuple[int, int, RankProgress]
"""A rank, its worker, and the rank's report."""


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """Holds a record as a line, and its job's uid. For the record of a job, `facts` is the result of `facts_of`."""

    kind: EntryKind
    uid: str
    line: bytes
    facts: int = 0

    @property
    def size(self) -> int:
        return len(self.line) + OVERHEAD


class Outbox:
    """Holds the waiting records. `count` is called with the number of dropped records."""

    def __init__(self, count: Callable[[Outcome, int], None], limit: int = MAX_BYTES) -> None:
        self._count = count
        self._failures = FailureLog(logger, "The history")
        self._limit = limit
        # The records by number, in order. A plain dict finds its first key slowly after removals from the front.
        self._waiting: OrderedDict[int, WaitingRecord] = OrderedDict()
        self._samples: OrderedDict[int, None] = OrderedDict()
        self._followed: OrderedDict[int, None] = OrderedDict()
        # By uid, the last waiting record of each job.
        self._last: dict[str, int] = {}
        self._number = 0
        # Bytes of all records, and of those that were taken and aren't done yet.
        self.size = self._taken = 0
        # Whether a record was dropped that no later record replaces.
        self.lost = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: WaitingRecord) -> None:
        if len(entry.line) >= MAX_LINE:
            self._drop("a record is too large")
            return
        before = self._last.get(entry.uid) if entry.kind == "job" else None
        if before is not None and self._waiting[before].facts == entry.facts:
            self.size += entry.size - self._waiting[before].size
            self._waiting[before] = entry
            self._make_room(0, samples_only=False)
            return
        if not self._make_room(entry.size, samples_only=entry.kind == "sample"):
            self._drop("too many wait already")
            self.lost |= entry.kind != "sample"
            return
        number = self._number = self._number + 1
        self._waiting[number] = entry
        self.size += entry.size
        if entry.kind == "sample":
            self._samples[number] = None
        elif entry.kind == "job":
            before = self._last.get(entry.uid)
            if before is not None:
                self._followed[before] = None
            self._last[entry.uid] = number

    def take(self, most: int) -> Sequence[WaitingRecord]:
        """Takes the first records: at least one, and at most `most` bytes. Their bytes count until `done` is called."""
        taken: list[WaitingRecord] = []
        length = 0
        while self._waiting:
            number = next(iter(self._waiting))
            length += len(self._waiting[number].line) + 1
            if taken and length > most:
                break
            taken.append(self._remove(number))
        self._taken = sum(entry.size for entry in taken)
        self.size += self._taken
        return taken

    def done(self) -> None:
        self.size -= self._taken
        self._taken = 0

    def _make_room(self, size: int, *, samples_only: bool) -> bool:
        """Drop records to make room for `size` bytes; returns whether there is room."""
        while self.size + size > self._limit:
            if self._samples:
                number = next(iter(self._samples))
            elif samples_only or not self._waiting:
                return False
            else:
                number = next(iter(self._followed or self._waiting))
                self.lost = True
            self._remove(number)
            self._drop("too many wait already")
        return True

    def _drop(self, problem: str) -> None:
        self._count("dropped", 1)
        self._failures.report(f"records are dropped: {problem}")

    def _remove(self, number: int) -> WaitingRecord:
        entry = self._waiting.pop(number)
        self._samples.pop(number, None)
        self._followed.pop(number, None)
        if self._last.get(entry.uid) == number:
            del self._last[entry.uid]
        self.size -= entry.size
        return entry


def line_of(record: Record) -> bytes:
    """Returns a record as a line without the line break. Raises ValueError if JSON can't represent the record."""
    return _encode(to_wire(record)).encode()


def facts_of(raw: Mapping[str, Any]) -> int:
    """Returns a number that changes with a job's attempt, phase or failures."""
    status = mapping(raw.get("status"))
    return hash(_encode([status.get("attempt"), status.get("phase"), status.get("failures")]))


def job_line(at: float, raw: Mapping[str, Any], places: Sequence[PodPlace], *, large: bool) -> bytes:
    """Returns the record of a job as a line; if the job is too large, only its most important fields.

    `large`: whether the spec is large (Store.is_large). Only then is the size checked before the record is encoded,
    because the check takes as long as the encoding.
    """
    for job in _smaller_and_smaller(raw):
        if large and is_larger(job, MAX_RECORDED_BYTES):
            continue
        line = line_of(JobRecord(at, job, tuple(places)))
        if len(line) < MAX_LINE:
            break
    return line


def _smaller_and_smaller(raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    metadata = dict(mapping(raw.get("metadata")))
    metadata.pop("managedFields", None)
    job = {**raw, "metadata": metadata}
    job.pop(LEFT_OUT, None)
    yield job
    job.pop("spec", None)
    yield job
    identity = {name: metadata[name] for name in _IDENTITY if name in metadata}
    status = mapping(raw.get("status"))
    yield {
        "metadata": identity,
        "status": {name: value for name, value in status.items() if not is_larger(value, MAX_STATUS_FIELD)},
    }
    yield {"metadata": identity}


def reports_of(workers: Mapping[int, Mapping[int, RankProgress]]) -> list[RankReport]:
    """Returns a copy of the ranks' reports, which are given by worker and rank, as a list."""
    return [(rank, worker, progress) for worker, ranks in workers.items() for rank, progress in ranks.items()]


def sample_line(at: float, key: JobIdentity, attempt: int, reports: Sequence[RankReport]) -> bytes:
    """Returns the record of an attempt's reports as a line, in a third of the time that a `SampleRecord` takes.

    The reports may have any order. Thousands of numbers are written each second, so they are formatted directly, with
    as many digits as people read.
    """
    reports = sorted(reports)
    ranks, workers, progress = zip(*reports[:: -(-len(reports) // MAX_RANKS)], strict=True)
    head = line_of(SampleRecord(at, key, attempt, ranks, workers)).decode()
    parts = [head.removesuffix("}")]
    columns = list(zip(*progress, strict=True))
    for name, place in _FIELDS.items():
        values = columns[place]
        if name == "stepSeconds":
            # Ranks that wait for a slow rank take equally long for a step, so use each rank's computing time if known.
            pairs = zip(columns[_COMPUTE], values, strict=True)
            values = tuple(step if own is None else own for own, step in pairs)
        if values.count(None) < len(values):
            # A step is an integer and keeps all its digits.
            digits = "%d" if name == "step" else "%.6g"
            texts = ["null" if value is None else digits % value for value in values]
            parts.append(f',"{name}":[{",".join(texts)}]')
    if metrics := _metrics_of(progress):
        parts.append(f',"metrics":{_encode(metrics)}')
    return ("".join(parts) + "}").encode()


def _metrics_of(reports: Sequence[RankProgress]) -> dict[str, float]:
    """Returns the first rank's value of each metric, and one metric beyond the limit, so that the history sees it."""
    found: dict[str, float] = {}
    for report in reports:
        for name, value in report.metrics:
            if name not in found and len(found) <= MAX_JOB_METRICS:
                found[name] = value
    return found
