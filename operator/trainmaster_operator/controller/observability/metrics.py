"""The operator's Prometheus metrics are in a separate registry, so that several operators can live in one process.

Names and labels are part of the interface, because the chart's alerts and dashboards use them. Each job's own series
are computed from its status at each scrape, and end when the job is deleted. A training job has about twenty series. A
finished job keeps them for an hour, so that rates over its last minutes can be computed. Then it keeps only the phase,
and a day later nothing. `trainmaster_jobs` counts every existing job.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainmaster_operator import __version__
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import (
    SUSPENDED_PHASES,
    TERMINAL_PHASES,
    TIME_CATEGORIES,
    JobStatus,
    Phase,
    Progress,
)
from trainmaster_operator.controller.leaders.streams import Fault
from trainmaster_operator.controller.recording.outbox import Outcome
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.reconciling.transition import condition

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# The outcomes of a pass over a job.
RESULTS = ("ok", "conflict", "gone", "busy", "error", "bug")
RECOVERY = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
# Without this, each counter would have a second series with the time of its creation. That would double the scraped
# data, and we never read those series.
disable_created_metrics()  # type: ignore[no-untyped-call]
# A finished job keeps all of its series for the first period, and only its phase for the second.
ALL_SECONDS, PHASE_SECONDS = 3600.0, 86_400.0
# The label isn't called `job`, because Prometheus uses that label for a scraped target.
_NAMES = ("namespace", "job_name")


# The gauges with one series for each job, and how their values are read.
_FIGURES: Sequence[tuple[str, str, Callable[[JobStatus, Progress], float | None]]] = (
    ("workers_desired", "Workers of a job's full group.", lambda status, _: status.workers.desired),
    ("workers_running", "Workers whose ranks are up.", lambda status, _: status.workers.running),
    ("step", "Steps done, as the operator last wrote it into the status.", lambda _, progress: progress.step),
    ("total_steps", "Steps in all.", lambda _, progress: progress.total_steps),
    ("samples_per_second", "Samples a second of all ranks together.", lambda _, progress: progress.samples_per_second),
    (
        "goodput_ratio",
        "Share of a job's time since its start, suspended time apart, that went into new steps.",
        lambda _, progress: progress.goodput,
    ),
)


class OperatorMetrics:
    """Holds all metrics. Dashboards and alerts use their names and labels, so these are part of the interface."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, documentation: str, *labels: str, values: Iterable[str] = ()) -> Counter:
            made = Counter(f"trainmaster_{name}", documentation, labels, registry=registry)
            # A rate needs a counter that exists before its first increment.
            for value in values:
                made.labels(value)
            return made

        def gauge(name: str, documentation: str, *labels: str) -> Gauge:
            return Gauge(f"trainmaster_{name}", documentation, labels, registry=registry)

        def histogram(name: str, documentation: str, buckets: Sequence[float] = FAST) -> Histogram:
            return Histogram(f"trainmaster_{name}", documentation, buckets=buckets, registry=registry)

        self.reconciles = counter("reconciles", "Passes over a job, by outcome.", "result", values=RESULTS)
        self.reconcile_seconds = histogram("reconcile_duration_seconds", "Duration of a pass.")
        self.queue_depth = gauge("queue_depth", "Jobs that wait for a pass.")
        self.queue_seconds = histogram("queue_wait_seconds", "How long a job waited for its pass.")
        self.writes = counter("api_writes", "Writes to the API server that succeeded.", "verb", "kind")
        self.jobs = gauge("jobs", "Jobs by phase.", "phase")
        self.restarts = counter(
            "restarts",
            "New attempts, by what ended the one before: a failure that counts, or a disruption.",
            "cause",
            values=("failure", "disruption"),
        )
        self.finished = counter("jobs_finished", "Jobs that ended.", "phase", values=TERMINAL_PHASES)
        self.recovery_seconds = histogram(
            "recovery_seconds",
            "From the end of an attempt, as the operator learned of it, until the next one runs.",
            RECOVERY,
        )
        self.streams = gauge("streams_open", "Open streams of leaders.")
        self.stream_faults = counter(
            "stream_faults",
            "Streams of leaders that didn't just break, by what was wrong: what was sent, how it was answered, a bug.",
            "fault",
            values=get_args(Fault),
        )
        self.history_records = counter(
            "records",
            "Records for the history, by outcome: sent, dropped as too much waited, refused by the history.",
            "outcome",
            values=get_args(Outcome),
        )
        self.watch_restarts = counter("watch_restarts", "How often watching had to be started again.")
        self.unreadable = counter(
            "unreadable_objects", "Versions of objects that can't be read, and of specs that can't be run.", "kind"
        )
        self.leader = gauge("leader", "1 on the replica that leads.")
        ProcessCollector(registry=self.registry)
        version = gauge("build_info", "1, with the version that runs.", "version")
        version.labels(version=__version__).set(1)
        self._per_job = PerJob(clock)
        self.registry.register(self._per_job)

    def count_write(self, verb: str, kind: str) -> None:
        self.writes.labels(verb=verb, kind=kind).inc()

    def count_records(self, outcome: Outcome, records: int) -> None:
        self.history_records.labels(outcome=outcome).inc(records)

    def count_unreadable(self, kind: str) -> None:
        self.unreadable.labels(kind=kind).inc()

    def count_jobs(self, jobs: Iterable[Job]) -> None:
        """Update the series of jobs."""
        jobs = tuple(jobs)
        self._per_job.observe(jobs)
        phases = Counts(job.status.phase or "Pending" for job in jobs)
        for phase in get_args(Phase):
            self.jobs.labels(phase=phase).set(phases[phase])

    def count_transition(self, old: JobStatus, new: JobStatus) -> None:
        if new.restarts > old.restarts:
            self.restarts.labels(cause="failure").inc(new.restarts - old.restarts)
        if new.disruptions > old.disruptions:
            self.restarts.labels(cause="disruption").inc(new.disruptions - old.disruptions)
        if new.phase != old.phase and new.phase in ("Succeeded", "Failed"):
            self.finished.labels(phase=new.phase).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class PerJob(Collector):
    """Collects each job's series from its status."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._jobs: Sequence[Job] = ()

    def observe(self, jobs: Sequence[Job]) -> None:
        # The specs, which may be large, aren't needed.
        self._jobs = tuple(replace(job, spec=None) for job in jobs)

    def collect(self) -> Iterator[Metric]:
        """Yields the series, made at each scrape."""
        phase = _gauge("phase", "1 for the phase that a job is in, with its reason in one word.", "phase", "reason")
        phase_start = _gauge(
            "phase_start_time_seconds",
            "Since when it is in this phase (seconds since the epoch); Pending, Starting and Restarting are one.",
        )
        restarts = CounterMetricFamily(
            "trainmaster_job_restarts",
            "A job's new attempts, by what ended the one before: a failure that counts, or a disruption.",
            labels=[*_NAMES, "cause"],
        )
        last_failure = _gauge(
            "last_failure_timestamp_seconds",
            "When an attempt ended badly last (seconds since the epoch): why, and who was first.",
            *("reason", "worker", "rank", "node"),
        )
        figures = [(_gauge(name, help), figure) for name, help, figure in _FIGURES]
        spent = CounterMetricFamily(
            "trainmaster_job_time_seconds", "Where a job's time since its start went.", labels=[*_NAMES, "category"]
        )
        now = self._clock()
        for job in self._jobs:
            names, status = (job.namespace, job.name), job.status
            current, reason, since = _phase(job)
            age = now - since if current in TERMINAL_PHASES else 0.0
            if age <= PHASE_SECONDS:
                phase.add_metric([*names, current, reason], 1)
                phase_start.add_metric(names, since)
            if age > ALL_SECONDS:
                continue
            restarts.add_metric([*names, "failure"], status.restarts)
            restarts.add_metric([*names, "disruption"], status.disruptions)
            failure = status.failures[0] if status.failures else None
            failed_at = to_seconds(failure.failed_at) if failure is not None else None
            if failure is not None and failed_at is not None:
                places = (failure.worker, failure.rank, failure.node)
                culprit = ("" if value is None else str(value) for value in places)
                last_failure.add_metric([*names, failure.reason, *culprit], failed_at)
            for family, figure in figures:
                if (value := figure(status, status.progress or Progress())) is not None:
                    family.add_metric(names, value)
            for category in TIME_CATEGORIES if status.time_spent is not None else ():
                if seconds := getattr(status.time_spent, category):
                    spent.add_metric([*names, category], seconds)
        yield from (phase, phase_start, restarts, last_failure, *(family for family, _ in figures), spent)


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainmaster_job_{name}", documentation, labels=[*_NAMES, *labels])


def _phase(job: Job) -> tuple[str, str, float]:
    """Returns the phase, its reason, and when the job began to run or wait, was suspended, or ended."""
    status = job.status
    phase = status.phase or "Pending"
    running = condition(status.conditions, "Running")
    # The reason is in the phase's own condition, or else in the condition that keeps the job from running.
    suspended = condition(status.conditions, "Suspended")
    own = (suspended if phase in SUSPENDED_PHASES else condition(status.conditions, phase)) or running
    if phase in TERMINAL_PHASES:
        moments = [status.completion_time or ""]
    elif (phase == "Running" or phase in SUSPENDED_PHASES) and own is not None:
        moments = [own.last_transition_time]
    else:
        # A resumed job has been waiting since it was resumed, not since its last run.
        moments = [one.last_transition_time for one in (running, suspended) if one is not None]
    times = [to_seconds(text) for text in moments]
    since = max((moment for moment in times if moment is not None), default=job.created_at)
    return phase, own.reason if own is not None else "", since
