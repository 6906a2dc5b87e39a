"""The outbox holds the records that wait to be sent, in their order, up to a number of bytes.

A record becomes a line of JSON once, with a size limit, because the authors of a job or its ranks' script decide on its
content. A newer record of a job replaces the waiting one, unless the attempt, the phase or a failure differs: the
history needs those facts. If there is no room, samples are dropped first, then records of jobs that a newer one
follows, then the oldest ones.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.json_codec import is_larger
from trainmaster_operator.api.records import FIGURES, JobRecord, PodPlace, Record, SampleRecord, to_wire
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.kept import MAX_RECORDED_BYTES
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import mapping

logger = logging.getLogger(__name__)
# Seconds between two log messages about failures; the metrics count all.
LOG_SECONDS = 60.0
MAX_BYTES = 32 * 1024 * 1024
# Memory of an entry in bytes, besides its line.
OVERHEAD = 300
Outcome = Literal["sent", "dropped", "refused"]
"""The fate of a record: `dropped` if there was no room for it, `refused` by the history."""
EntryKind = Literal["job", "sample", "other"]
# Limits on the bytes of a line with its end, and of a request: a history accepts 8 MiB.
MAX_LINE = 1024 * 1024
# If a job is too large, larger fields of its status (lists with an entry for each worker) are left out.
MAX_STATUS_FIELD = 16 * 1024
# Limit on the ranks of a sample; for a job with more, an even choice is recorded.
MAX_RANKS = 8_192
# By its name on the wire, the index of each figure in the ranks' reports.
_FIELDS = {key: RankProgress._fields.index(name) for name, key in FIGURES.items()}
_COMPUTE = RankProgress._fields.index("compute_seconds")
_IDENTITY = ("namespace", "name", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
RankReport = tuple[int, int, RankProgress]
"""A rank, its worker, and what it has reported."""


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A record as its line, with its job's uid; `facts` identify the facts of a job's record."""

    kind: EntryKind
    uid: str
    line: bytes
    facts: int = 0

    @property
    def size(self) -> int:
        return len(self.line) + OVERHEAD


class Outbox:
    """Holds the waiting records. `count` is called with the number of dropped ones."""

    def __init__(self, count: Callable[[Outcome, int], None], limit: int = MAX_BYTES) -> None:
        self._count = count
        self._complaints = Complaints(logger, "The history")
        self._limit = limit
        # By number, in their order. A plain dict is slow to find its first key after removals from the front.
        self._waiting: OrderedDict[int, WaitingRecord] = OrderedDict()
        self._samples: OrderedDict[int, None] = OrderedDict()
        self._followed: OrderedDict[int, None] = OrderedDict()
        # By uid, the last waiting record of each job.
        self._last: dict[str, int] = {}
        self._number = 0
        # Bytes of waiting records, and of taken ones that aren't done yet.
        self.size = self._taken = 0
        # Whether a record was dropped that no later record replaces.
        self.lost = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: WaitingRecord) -> None:
        """Add a record."""
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
        """Returns the first records, with lines of `most` bytes at most and one at least; they count until `done`."""
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
        """Forget the taken records."""
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
        self._complaints.say(f"records are dropped: {problem}")

    def _remove(self, number: int) -> WaitingRecord:
        entry = self._waiting.pop(number)
        self._samples.pop(number, None)
        self._followed.pop(number, None)
        if self._last.get(entry.uid) == number:
            del self._last[entry.uid]
        self.size -= entry.size
        return entry


class Complaints:
    """Logs failures, once in LOG_SECONDS."""

    def __init__(self, logger: logging.Logger, about: str) -> None:
        self._logger = logger
        self._about = about
        self._logged_at = float("-inf")

    def say(self, sentence: str, error: Exception | None = None) -> None:
        """Log a sentence if it is time for one; for a bug of ours, with its traceback."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            self._logger.log(
                logging.WARNING if error is None else logging.ERROR, "%s: %s", self._about, sentence, exc_info=error
            )


def line_of(record: Record) -> bytes:
    """Returns a record as a line, without its end. Raises ValueError if JSON can't hold it."""
    return _encode(to_wire(record)).encode()


def facts_of(raw: Mapping[str, Any]) -> int:
    """Returns a number that changes with a job's attempt, phase or failures."""
    status = mapping(raw.get("status"))
    return hash(_encode([status.get("attempt"), status.get("phase"), status.get("failures")]))


def job_line(at: float, raw: Mapping[str, Any], places: Sequence[PodPlace], *, large: bool) -> bytes:
    """Returns the record of a job, or the most important part of one that is too large.

    `large`: its spec is (Store.is_large), so the record is measured before it becomes a line, which costs as much.
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
    """Returns the ranks' reports, by worker and rank, as an independent list."""
    return [(rank, worker, progress) for worker, ranks in workers.items() for rank, progress in ranks.items()]


def sample_line(at: float, key: JobIdentity, attempt: int, reports: Sequence[RankReport]) -> bytes:
    """Returns the record of an attempt's reports, in any order; this takes a third of `SampleRecord`'s time.

    Thousands of numbers are written each second, so they become text at once, with as many digits as people read.
    """
    reports = sorted(reports)
    ranks, workers, progress = zip(*reports[:: -(-len(reports) // MAX_RANKS)], strict=True)
    head = line_of(SampleRecord(at, key, attempt, ranks, workers)).decode()
    parts = [head.removesuffix("}")]
    columns = list(zip(*progress, strict=True))
    for name, place in _FIELDS.items():
        values = columns[place]
        if name == "stepSeconds":
            # Ranks that wait for a slow one take equally long for a step; the computing time of each distinguishes
            # them.
            values = tuple(map(_first_known, columns[_COMPUTE], values))
        if values.count(None) < len(values):
            # A step is a whole number, and keeps all its digits.
            digits = "%d" if name == "step" else "%.6g"
            texts = ["null" if value is None else digits % value for value in values]
            parts.append(f',"{name}":[{",".join(texts)}]')
    return ("".join(parts) + "}").encode()


def _first_known(value: float | None, other: float | None) -> float | None:
    return other if value is None else value
