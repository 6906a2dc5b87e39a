"""Records carry data from the operator to the history of jobs (`trainmaster history`), one JSON object per line.

| record | when | what |
|---|---|---|
| `JobRecord` | a job's status was written, or the operator has started | the job, and the nodes of its pods |
| `DeletedRecord` | the job was deleted | |
| `SampleRecord` | every few seconds while ranks run | the figures of all ranks, in columns |
| `SystemRecord` | every few seconds while ranks run | processor, memory, network and GPUs of all workers, in columns |
| `EvidenceRecord` | evidence of an attempt was kept | `AttemptEvidence`, as JSON |
| `LogRecord` | the end of a worker's log was kept, or a pod of a deleted job ended | `KeptLog` |

Records of one job are sent in order. Repeating a record changes nothing, so records that weren't acknowledged are sent
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args

from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.wire.limits import MAX_ATTEMPT, MAX_GPUS, MAX_HOST, MAX_INDEX, MAX_NODE, MAX_UID
from trainmaster_operator.wire.ranks import own_metrics
from trainmaster_operator.wire.system import WORKER_FIELDS, GpuSample, SystemSample
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
MAX_JOB_METRICS = 64
"""The most metrics that a history keeps of a job, besides those that every job can have."""


Columns = Mapping[str, Sequence[float | None]]


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
    contains one number or None for each rank. `metrics` contains the ranks' own metrics, by name. If several ranks
    report a metric, its value is the first rank's.
    """

    kind: ClassVar[str] = "sample"
    at: float
    key: JobIdentity
    attempt: int
    ranks: tuple[int, ...]
    workers: tuple[int, ...]
    columns: Columns = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SystemRecord:
    """SystemRecord contains the figures of an attempt's workers and their GPUs at `at` (seconds since the epoch).

    `gpus` contains the worker and the index of each GPU. `columns` contains, by a figure's name in JSON, one number or
    None for each worker or for each GPU.
    """

    kind: ClassVar[str] = "system"
    at: float
    key: JobIdentity
    attempt: int
    workers: tuple[int, ...]
    gpus: tuple[tuple[int, int], ...] = ()
    columns: Columns = field(default_factory=dict)

    @classmethod
    def of(cls, at: float, key: JobIdentity, attempt: int, samples: Mapping[int, SystemSample]) -> SystemRecord:
        """Returns the record of samples by worker. Only figures that any worker or GPU reports are included."""
        workers = sorted(samples)
        gpus = {(worker, index): gpu for worker in workers for index, gpu in sorted(samples[worker].gpus.items())}
        columns = {camel(name): [getattr(samples[worker], name) for worker in workers] for name in WORKER_FIELDS}
        columns |= {camel(name): [getattr(gpu, name) for gpu in gpus.values()] for name in GpuSample._fields}
        known = {name: values for name, values in columns.items() if values.count(None) < len(values)}
        return cls(at, key, attempt, tuple(workers), tuple(gpus), known)


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


Record = JobRecord | DeletedRecord | SampleRecord | SystemRecord | EvidenceRecord | LogRecord


def to_wire(record: Record) -> dict[str, Any]:
    """Returns the JSON object for a record."""
    wire: dict[str, Any] = {"record": record.kind, "at": round(record.at, 3)}
    match record:
        case JobRecord():
            return wire | {"job": dict(record.job), "pods": [vars(place) for place in record.pods]}
        case SampleRecord():
            wire |= {"attempt": record.attempt, "ranks": list(record.ranks), "workers": list(record.workers)}
            wire |= {FIGURES[name]: list(values) for name, values in record.columns.items()}
            wire |= {"metrics": dict(record.metrics)} if record.metrics else {}
        case SystemRecord():
            wire |= {"attempt": record.attempt, "workers": list(record.workers)}
            # With six digits, the records of a thousand workers of eight GPUs fit into a request.
            wire |= {name: [_short(value) for value in values] for name, values in record.columns.items()}
            wire["gpus"] = [list(gpu) for gpu in record.gpus]
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
        case SystemRecord.kind:
            return _system(at, data)
        case EvidenceRecord.kind:
            evidence = data.get("evidence")
            if not isinstance(evidence, str):
                raise ProtocolError(f"evidence: {shown(evidence)} is not text")
            return EvidenceRecord(at, _key(data), whole_in(data, "attempt", MAX_ATTEMPT + 1), evidence)
        case LogRecord.kind:
            worker = whole_in(data, "worker", MAX_INDEX)
            return LogRecord(at, _key(data), worker, KeptLog.parse(mapping(data.get("data")), worker) or KeptLog())
        case other:
            kinds = ", ".join(each.kind for each in get_args(Record))
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
    found = {name: _column(data, key, len(ranks), "ranks") for name, key in FIGURES.items()}
    columns = {name: values for name, values in found.items() if values is not None}
    metrics = dict(own_metrics(mapping(data.get("metrics")), MAX_JOB_METRICS + 1))
    return SampleRecord(at, _key(data), whole_in(data, "attempt", MAX_ATTEMPT + 1), ranks, workers, columns, metrics)


def _system(at: float, data: Mapping[str, Any]) -> SystemRecord:
    workers, given = _indexes(data, "workers"), data.get("gpus", [])
    if not isinstance(given, list) or not all(map(_is_gpu, given)):
        raise ProtocolError(f"gpus: {shown(given)} is not a list of pairs of a worker and a GPU's index")
    found = {name: _column(data, name, len(workers), "workers") for name in map(camel, WORKER_FIELDS)}
    found |= {name: _column(data, name, len(given), "GPUs") for name in map(camel, GpuSample._fields)}
    columns = {name: values for name, values in found.items() if values is not None}
    gpus = tuple((worker, index) for worker, index in given)
    return SystemRecord(at, _key(data), whole_in(data, "attempt", MAX_ATTEMPT + 1), workers, gpus, columns)


def _is_gpu(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return whole(pair[0], MAX_INDEX) is not None and whole(pair[1], MAX_GPUS) is not None


def _column(data: Mapping[str, Any], key: str, length: int, of: str) -> list[float | None] | None:
    values = data.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != length:
        raise ProtocolError(f"{key}: {shown(values)} is not a list with one number for each of {length} {of}")
    return [number(value) for value in values]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


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
