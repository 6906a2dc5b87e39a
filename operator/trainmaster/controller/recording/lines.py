"""Records become lines of JSON, once, and bounded: whoever writes a job or its ranks' script decides what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainmaster.api.limits import is_larger
from trainmaster.api.records import FIGURES, JobIdentity, JobRecord, PodPlace, Record, SampleRecord, to_wire
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.values import mapping

# Bytes of a line with its end, and of a request: a history takes 8 MiB.
MAX_LINE = 1024 * 1024
# Bytes of a job, as JSON; a larger one is recorded in part.
MAX_JOB = 256 * 1024
# Of such a job, the fields of the status that are larger (lists with an entry for each worker) are left out.
MAX_STATUS_FIELD = 16 * 1024
# Ranks of a sample; of a job with more, an even choice is recorded.
MAX_RANKS = 8_192
# Where a figure has another name in what ranks report.
_REPORTED = {"gradient_norm": "grad_norm"}
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


def job_line(at: float, raw: Mapping[str, Any], places: Sequence[PodPlace]) -> bytes:
    """Returns the record of a job: of an object that is too large, what matters most."""
    for job in _smaller_and_smaller(raw):
        if not is_larger(job, MAX_JOB):
            line = line_of(JobRecord(at, job, tuple(places)))
            if len(line) < MAX_LINE:
                break
    return line


def _smaller_and_smaller(raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    metadata = dict(mapping(raw.get("metadata")))
    metadata.pop("managedFields", None)
    job = {**raw, "metadata": metadata}
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


def sample_line(at: float, key: JobIdentity, attempt: int, reports: Sequence[RankReport]) -> bytes:
    """Returns the record of what an attempt's ranks have reported, in any order, with numbers as people read them."""
    reports = sorted(reports)
    reports = reports[:: max(1, -(-len(reports) // MAX_RANKS))]
    columns = {}
    for figure in FIGURES:
        name = _REPORTED.get(figure, figure)
        values = [_rounded(getattr(progress, name, None)) for _, _, progress in reports]
        if any(value is not None for value in values):
            columns[figure] = values
    ranks, workers = tuple(report[0] for report in reports), tuple(report[1] for report in reports)
    return line_of(SampleRecord(at, key, attempt, ranks, workers, columns))


def _rounded(value: float | None) -> float | None:
    """Returns a float with six digits; a step is a whole number, and stays as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
