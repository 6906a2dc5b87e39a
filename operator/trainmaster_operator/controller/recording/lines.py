"""Records become lines of JSON, once, and bounded: whoever writes a job or its ranks' script decides what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster_operator.api.json_codec import is_larger
from trainmaster_operator.api.records import FIGURES, JobRecord, PodPlace, Record, SampleRecord, to_wire
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.controller.apiserver.kept import MAX_RECORDED_BYTES
from trainmaster_operator.wire.progress import RankProgress
from trainmaster_operator.wire.values import mapping

# Bytes of a line with its end, and of a request: a history takes 8 MiB.
MAX_LINE = 1024 * 1024
# Of such a job, the fields of the status that are larger (lists with an entry for each worker) are left out.
MAX_STATUS_FIELD = 16 * 1024
# Ranks of a sample; of a job with more, an even choice is recorded.
MAX_RANKS = 8_192
# By its name on the wire, the place of each figure in what ranks report.
_FIELDS = {key: RankProgress._fields.index(name) for name, key in FIGURES.items()}
_COMPUTE = RankProgress._fields.index("compute_seconds")
_IDENTITY = ("namespace", "name", "uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp")

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode

RankReport = tuple[int, int, RankProgress]
"""A rank, its worker, and what it has reported."""


def line_of(record: Record) -> bytes:
    """Returns a record as a line, without its end. Raises ValueError where JSON can't hold it."""
    return _encode(to_wire(record)).encode()


def facts_of(raw: Mapping[str, Any]) -> int:
    """Returns a number that is another one when a job's attempt, phase or failures are."""
    status = mapping(raw.get("status"))
    return hash(_encode([status.get("attempt"), status.get("phase"), status.get("failures")]))


def job_line(at: float, raw: Mapping[str, Any], places: Sequence[PodPlace], *, large: bool) -> bytes:
    """Returns the record of a job: of an object that is too large, what matters most.

    `large`: its spec is (Store.is_large), so that it pays to look before it becomes a line. That costs as much.
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
    """Returns what ranks have reported, by worker and rank, as a list that nothing else changes."""
    return [(rank, worker, progress) for worker, ranks in workers.items() for rank, progress in ranks.items()]


def sample_line(at: float, key: JobIdentity, attempt: int, reports: Sequence[RankReport]) -> bytes:
    """Returns the record of what an attempt's ranks have reported, in any order; `SampleRecord` in a third of its time.

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
            # Who waits for a slow rank takes as long for a step as it does; what a rank computes tells them apart.
            values = tuple(map(_first_known, columns[_COMPUTE], values))
        if values.count(None) < len(values):
            # A step is a whole number, and keeps all its digits.
            digits = "%d" if name == "step" else "%.6g"
            texts = ["null" if value is None else digits % value for value in values]
            parts.append(f',"{name}":[{",".join(texts)}]')
    return ("".join(parts) + "}").encode()


def _first_known(value: float | None, other: float | None) -> float | None:
    return other if value is None else value
