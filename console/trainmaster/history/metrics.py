"""The history's Prometheus metrics, in a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from trainmaster_operator import __version__
from trainmaster_operator.api.records import DeletedRecord, EvidenceRecord, JobRecord, LogRecord, SampleRecord

_COMMIT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Why a request was refused, by the answer's status.
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


class HistoryMetrics:
    """Holds all metrics. Names and labels are part of the interface: dashboards and alerts use them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.records = Counter("trainmaster_history_records", "Records written.", ["record"], registry=registry)
        self.bytes = Gauge("trainmaster_history_file_bytes", "Bytes of the file, on the disk.", registry=registry)
        self.most_bytes = Gauge("trainmaster_history_max_bytes", "What it may have.", registry=registry)
        self.jobs = Gauge("trainmaster_history_jobs", "Jobs that are recorded.", registry=registry)
        self.commit_seconds = Histogram(
            "trainmaster_history_commit_duration_seconds",
            "Seconds until a batch of records was on the disk.",
            buckets=_COMMIT,
            registry=registry,
        )
        self.refused = Counter(
            "trainmaster_history_refused_requests", "Requests that were refused.", ["reason"], registry=registry
        )
        self.damaged = Counter(
            "trainmaster_history_damaged_files", "Damaged files that were moved aside.", registry=registry
        )
        self.lost = Counter(
            "trainmaster_history_lost_files",
            "Times that the file was deleted or replaced while it was in use.",
            registry=registry,
        )
        for kind in (JobRecord, DeletedRecord, SampleRecord, EvidenceRecord, LogRecord):
            self.records.labels(record=kind.kind)
        for reason in REASONS.values():
            self.refused.labels(reason=reason)
        ProcessCollector(registry=registry)
        version = Gauge("trainmaster_build_info", "1, with the version that runs.", ["version"], registry=registry)
        version.labels(version=__version__).set(1)

    def count_records(self, written: Mapping[str, int]) -> None:
        """Counts records that were written, by their kind."""
        for kind, number in written.items():
            self.records.labels(record=kind).inc(number)

    def text(self) -> bytes:
        """Returns the exposition format."""
        return generate_latest(self.registry)
