"""The operator's Prometheus metrics, in a registry of its own so that several operators can live in one process."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from trainmaster_operator import __version__
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES, JobStatus, Phase
from trainmaster_operator.controller.leaders.stream import Fault
from trainmaster_operator.controller.observability.job_metrics import PerJob
from trainmaster_operator.controller.recording.outbox import Outcome
from trainmaster_operator.reconciling.observed.snapshot import Job

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# What a pass over a job can come to.
RESULTS = ("ok", "conflict", "gone", "busy", "error", "bug")
RECOVERY = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)

# A series of timestamps beside each counter, which nothing of ours asks for, would double what is scraped.
disable_created_metrics()  # type: ignore[no-untyped-call]


class OperatorMetrics:
    """Holds all metrics. Names and labels are part of the interface: dashboards and alerts use them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "trainmaster_reconciles", "Passes over a job, by outcome.", ["result"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "trainmaster_reconcile_duration_seconds", "Duration of a pass.", buckets=FAST, registry=self.registry
        )
        self.queue_depth = Gauge("trainmaster_queue_depth", "Jobs that wait for a pass.", registry=self.registry)
        self.queue_seconds = Histogram(
            "trainmaster_queue_wait_seconds",
            "How long a job waited for its pass.",
            buckets=FAST,
            registry=self.registry,
        )
        self.writes = Counter(
            "trainmaster_api_writes",
            "Writes to the API server that succeeded.",
            ["verb", "kind"],
            registry=self.registry,
        )
        self.jobs = Gauge("trainmaster_jobs", "Jobs by phase.", ["phase"], registry=self.registry)
        self.restarts = Counter(
            "trainmaster_restarts",
            "New attempts, by what ended the one before: a failure that counts, or a disruption.",
            ["cause"],
            registry=self.registry,
        )
        self.finished = Counter("trainmaster_jobs_finished", "Jobs that ended.", ["phase"], registry=self.registry)
        self.recovery_seconds = Histogram(
            "trainmaster_recovery_seconds",
            "From the end of an attempt, as the operator learned of it, until the next one runs.",
            buckets=RECOVERY,
            registry=self.registry,
        )
        self.streams = Gauge("trainmaster_streams_open", "Open streams of leaders.", registry=self.registry)
        self.stream_faults = Counter(
            "trainmaster_stream_faults",
            "Streams of leaders that didn't just break, by what was wrong: what was sent, how it was answered, a bug.",
            ["fault"],
            registry=self.registry,
        )
        self.history_records = Counter(
            "trainmaster_records",
            "Records for the history, by outcome: sent, dropped as too much waited, refused by the history.",
            ["outcome"],
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "trainmaster_watch_restarts", "How often watching had to be started again.", registry=self.registry
        )
        self.unreadable = Counter(
            "trainmaster_unreadable_objects",
            "Versions of objects that can't be read, and of specs that can't be run.",
            ["kind"],
            registry=self.registry,
        )
        self.leader = Gauge("trainmaster_leader", "1 on the replica that leads.", registry=self.registry)
        # A rate needs a counter that was there before it was counted up.
        for result in RESULTS:
            self.reconciles.labels(result=result)
        for cause in ("failure", "disruption"):
            self.restarts.labels(cause=cause)
        for fault in get_args(Fault):
            self.stream_faults.labels(fault=fault)
        for outcome in get_args(Outcome):
            self.history_records.labels(outcome=outcome)
        for phase in TERMINAL_PHASES:
            self.finished.labels(phase=phase)
        ProcessCollector(registry=self.registry)
        version = Gauge("trainmaster_build_info", "1, with the version that runs.", ["version"], registry=self.registry)
        version.labels(version=__version__).set(1)
        self._per_job = PerJob(clock)
        self.registry.register(self._per_job)

    def count_write(self, verb: str, kind: str) -> None:
        """Count a write to the API server that succeeded."""
        self.writes.labels(verb=verb, kind=kind).inc()

    def count_records(self, outcome: Outcome, records: int) -> None:
        """Count what became of records for the history."""
        self.history_records.labels(outcome=outcome).inc(records)

    def count_unreadable(self, kind: str) -> None:
        """Count a version of an object that can't be read."""
        self.unreadable.labels(kind=kind).inc()

    def count_jobs(self, jobs: Iterable[Job]) -> None:
        """Bring the series of jobs up to date."""
        jobs = tuple(jobs)
        self._per_job.observe(jobs)
        phases = Counts(job.status.phase or "Pending" for job in jobs)
        for phase in get_args(Phase):
            self.jobs.labels(phase=phase).set(phases[phase])

    def count_transition(self, old: JobStatus, new: JobStatus) -> None:
        """Count what a written status has changed."""
        if new.restarts > old.restarts:
            self.restarts.labels(cause="failure").inc(new.restarts - old.restarts)
        if new.disruptions > old.disruptions:
            self.restarts.labels(cause="disruption").inc(new.disruptions - old.disruptions)
        if new.phase != old.phase and new.phase in ("Succeeded", "Failed"):
            self.finished.labels(phase=new.phase).inc()

    def text(self) -> bytes:
        """Returns the exposition format."""
        return generate_latest(self.registry)
