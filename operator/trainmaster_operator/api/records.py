"""Records carry data from the operator to the history of jobs (`trainmaster history`), one JSON object per line.

| record | when | what |
|---|---|---|
| `JobRecord` | a job's status was written, or the operator has started | the job, and the nodes of its pods |
| `DeletedRecord` | the job was deleted | |
| `SampleRecord` | every few seconds while ranks run | the figures of all ranks, in columns |
| `EvidenceRecord` | evidence of an attempt was kept | `AttemptEvidence`, as JSON |
| `LogRecord` | the end of a worker's log was kept, or a pod of a deleted job ended | `KeptLog` |

Records of one job are sent in order. Repeating a record changes nothing, so records that weren't acknowledged are sent
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.wire.limits import MAX_ATTEMPT, MAX_HOST, MAX_INDEX, MAX_NODE, MAX_UID
from trainmaster_operator.wire.values import (
    ProtocolError,
    camel,
    mapping,
    mappings,
    number,
    shown,
    text,
    time_in,
    whole,
    whole_in,
)

# Figures of a rank in a sample. The keys are their names in RankProgress (wire/ranks.py), and the values are their
# names in a record. `step_seconds` is the rank's own time for a step. If the rank reports `compute_seconds`, this value
# is used instead.
FIGURES: Mapping[str, str] = {
    name: camel(name) for name in ("step", "loss", "learning_rate", "grad_norm", "samples_per_second", "step_seconds")
}
MAX_NAME = 253


@dataclass(frozen=True)
class PodPlace:
    """PodPlace is a worker's pod and node. The node is empty until the pod is scheduled."""

    worker: int
    pod: str
    node: str = ""


@dataclass(frozen=True)
class JobRecord:
    """JobRecord contains a job's object at `at` (seconds since the epoch), without `metadata.managedFields`."""

    kind: ClassVar[str] = "job"
    at: float
    job: Mapping[str, Any]
    pods: tuple[PodPlace, ...] = ()

    @property
    def key(self) -> JobIdentity:
        """Returns the identity of the job."""
        metadata = mapping(self.job.get("metadata"))
        return JobIdentity(str(metadata.get("namespace")), str(metadata.get("name")), str(metadata.get("uid")))


@dataclass(frozen=True)
class DeletedRecord:
    """DeletedRecord reports that a job was deleted."""

    kind: ClassVar[str] = "deleted"
    at: float
    key: JobIdentity


@dataclass(frozen=True)
class SampleRecord:
    """SampleRecord contains the figures of an attempt's ranks at `at` (seconds since the epoch).

    `ranks` is sorted, and `workers` contains the worker of each rank. For each figure that any rank reports, `columns`
    contains one number or None for each rank.
    """

    kind: ClassVar[str] = "sample"
    at: float
    key: JobIdentity
    attempt: int
    ranks: tuple[int, ...]
    workers: tuple[int, ...]
    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class EvidenceRecord:
    """EvidenceRecord contains the evidence of a failed attempt, in the form of `AttemptEvidence.to_json`."""

    kind: ClassVar[str] = "evidence"
    at: float
    key: JobIdentity
    attempt: int
    evidence: str


@dataclass(frozen=True)
class LogRecord:
    """LogRecord contains the end of a worker's log, which may repeat lines of an earlier record."""

    kind: ClassVar[str] = "log"
    at: float
    key: JobIdentity
    worker: int
    log: KeptLog


Record = JobRecord | DeletedRecord | SampleRecord | EvidenceRecord | LogRecord


def to_wire(record: Record) -> dict[str, Any]:
    """Returns the JSON object for a record."""
    wire: dict[str, Any] = {"record": record.kind, "at": round(record.at, 3)}
    match record:
        case JobRecord():
            return wire | {"job": dict(record.job), "pods": [vars(place) for place in record.pods]}
        case SampleRecord():
            wire |= {"attempt": record.attempt, "ranks": list(record.ranks), "workers": list(record.workers)}
            wire |= {FIGURES[name]: list(values) for name, values in record.columns.items()}
        case EvidenceRecord():
            wire |= {"attempt": record.attempt, "evidence": record.evidence}
        case LogRecord():
            wire |= {"worker": record.worker, "data": record.log.to_data(record.worker)}
    return wire | vars(record.key)


def parse_record(data: object) -> Record:
    """Returns the record for a JSON object. Raises ProtocolError, which names the invalid field."""
    if not isinstance(data, Mapping):
        raise ProtocolError(f"record: {shown(data)} is not an object")
    at = time_in(data, "at")
    match data.get("record"):
        case JobRecord.kind:
            return _job(at, data)
        case DeletedRecord.kind:
            return DeletedRecord(at, _key(data))
        case SampleRecord.kind:
            return _sample(at, data)
        case EvidenceRecord.kind:
            evidence = data.get("evidence")
            if not isinstance(evidence, str):
                raise ProtocolError(f"evidence: {shown(evidence)} is not text")
            return EvidenceRecord(at, _key(data), whole_in(data, "attempt", MAX_ATTEMPT + 1), evidence)
        case LogRecord.kind:
            worker = whole_in(data, "worker", MAX_INDEX)
            return LogRecord(at, _key(data), worker, KeptLog.parse(mapping(data.get("data")), worker) or KeptLog())
        case other:
            kinds = ", ".join(each.kind for each in (JobRecord, DeletedRecord, SampleRecord, EvidenceRecord, LogRecord))
            raise ProtocolError(f"record: {shown(other)} is none of {kinds}")


def _job(at: float, data: Mapping[str, Any]) -> JobRecord:
    job = data.get("job")
    if not isinstance(job, Mapping):
        raise ProtocolError(f"job: {shown(job)} is not an object")
    _key(mapping(job.get("metadata")))
    places = []
    for place in mappings(data.get("pods")):
        worker = whole(place.get("worker"), MAX_INDEX)
        if worker is not None:
            places.append(PodPlace(worker, text(place.get("pod"), MAX_HOST), text(place.get("node"), MAX_NODE)))
    return JobRecord(at, job, tuple(places))


def _sample(at: float, data: Mapping[str, Any]) -> SampleRecord:
    ranks, workers = _indexes(data, "ranks"), _indexes(data, "workers")
    if len(workers) != len(ranks):
        raise ProtocolError(f"workers: {len(workers)} are not one for each of {len(ranks)} ranks")
    columns: dict[str, Sequence[float | None]] = {}
    for name, key in FIGURES.items():
        values = data.get(key)
        if values is None:
            continue
        if not isinstance(values, list) or len(values) != len(ranks):
            raise ProtocolError(f"{key}: {shown(values)} is not a list with one number for each of {len(ranks)} ranks")
        columns[name] = [number(value) for value in values]
    return SampleRecord(at, _key(data), whole_in(data, "attempt", MAX_ATTEMPT + 1), ranks, workers, columns)


def _indexes(data: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = data.get(name)
    if not isinstance(found, list) or any(whole(each, MAX_INDEX) is None for each in found):
        raise ProtocolError(f"{name}: {shown(found)} is not a list of whole numbers")
    return tuple(found)


def _key(data: Mapping[str, Any]) -> JobIdentity:
    found = []
    for name, most in (("namespace", MAX_NAME), ("name", MAX_NAME), ("uid", MAX_UID)):
        value = data.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= most:
            raise ProtocolError(f"{name}: {shown(value)} is not text of 1 to {most} characters")
        found.append(value)
    return JobIdentity(*found)
