"""Each job's own series at /metrics are made from its status at each scrape, and go with the job.

Names and labels are part of the interface: the chart's alerts and dashboards use them. A job that trains has about
twenty series. A finished one has them for another hour, in which rates over its last minutes can be formed, then its
phase alone, and after a day none. `trainmaster_jobs` counts it for as long as it exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES, TIME_CATEGORIES, JobStatus, Progress
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.reconciling.transition import condition

ALL_SECONDS = 3600.0
PHASE_SECONDS = 86_400.0
"""A finished job has all of its series for so long, and then its phase alone."""

# Not `job`, which is Prometheus' own label for what it scrapes.
_NAMES = ("namespace", "job_name")


@dataclass(frozen=True)
class _Job:
    """What the next scrape needs of a job: one that is deleted meanwhile is not kept whole for it."""

    namespace: str
    name: str
    created_at: float
    status: JobStatus


class PerJob(Collector):
    """Collects from each job's status."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._jobs: Sequence[_Job] = ()

    def observe(self, jobs: Sequence[Job]) -> None:
        """Brings the jobs up to date."""
        self._jobs = tuple(_Job(job.namespace, job.name, job.created_at, job.status) for job in jobs)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yields the series, made at each scrape."""
        series, now = _Series(), self._clock()
        for job in self._jobs:
            names, status = (job.namespace, job.name), job.status
            phase, reason, since = _phase(job)
            age = now - since if phase in TERMINAL_PHASES else 0.0
            if age <= PHASE_SECONDS:
                series.phase.add_metric([*names, phase, reason], 1)
                series.phase_start.add_metric(names, since)
            if age <= ALL_SECONDS:
                series.add_counts(names, status)
                series.add_progress(names, status)
        yield from series.families()


class _Series:
    """The families of one scrape."""

    def __init__(self) -> None:
        self.phase = _gauge(
            "phase", "1 for the phase that a job is in, with its reason in one word.", "phase", "reason"
        )
        self.phase_start = _gauge(
            "phase_start_time_seconds",
            "Since when it is in this phase (seconds since the epoch); Pending, Starting and Restarting are one.",
        )
        self.restarts = CounterMetricFamily(
            "trainmaster_job_restarts",
            "A job's new attempts, by what ended the one before: a failure that counts, or a disruption.",
            labels=[*_NAMES, "cause"],
        )
        self.last_failure = _gauge(
            "last_failure_timestamp_seconds",
            "When an attempt ended badly last (seconds since the epoch): why, and who was first.",
            *("reason", "worker", "rank", "node"),
        )
        self.desired = _gauge("workers_desired", "Workers of a job's full group.")
        self.running = _gauge("workers_running", "Workers whose ranks are up.")
        self.step = _gauge("step", "Steps done, as the operator last wrote it into the status.")
        self.total_steps = _gauge("total_steps", "Steps in all.")
        self.samples = _gauge("samples_per_second", "Samples a second of all ranks together.")
        self.goodput = _gauge(
            "goodput_ratio", "Share of a job's time since its start, suspended time apart, that went into new steps."
        )
        self.time = CounterMetricFamily(
            "trainmaster_job_time_seconds",
            "Where a job's time since its start went.",
            labels=[*_NAMES, "category"],
        )

    def families(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield from vars(self).values()

    def add_counts(self, names: tuple[str, str], status: JobStatus) -> None:
        """Adds how often the job was restarted, why last, and how many workers it has."""
        self.restarts.add_metric([*names, "failure"], status.restarts)
        self.restarts.add_metric([*names, "disruption"], status.disruptions)
        self.desired.add_metric(names, status.workers.desired)
        self.running.add_metric(names, status.workers.running)
        failure = status.failures[0] if status.failures else None
        failed_at = to_seconds(failure.failed_at) if failure is not None else None
        if failure is not None and failed_at is not None:
            culprit = [_number(failure.worker), _number(failure.rank), failure.node or ""]
            self.last_failure.add_metric([*names, failure.reason, *culprit], failed_at)

    def add_progress(self, names: tuple[str, str], status: JobStatus) -> None:
        """Adds how far the job is, and where its time went."""
        progress, spent = status.progress or Progress(), status.time_spent
        figures = (
            (self.step, progress.step),
            (self.total_steps, progress.total_steps),
            (self.samples, progress.samples_per_second),
            (self.goodput, progress.goodput),
        )
        for family, figure in figures:
            if figure is not None:
                family.add_metric(names, figure)
        for category in TIME_CATEGORIES if spent is not None else ():
            seconds = getattr(spent, category)
            if seconds:
                self.time.add_metric([*names, category], seconds)


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trainmaster_job_{name}", documentation, labels=[*_NAMES, *labels])


def _phase(job: _Job) -> tuple[str, str, float]:
    """Returns the phase, its reason, and since when the job runs, waits, is suspended or over."""
    status = job.status
    phase = status.phase or "Pending"
    running = condition(status.conditions, "Running")
    # What a phase has a condition for says why; else what keeps the job from running.
    own = condition(status.conditions, phase) or running
    suspended = condition(status.conditions, "Suspended")
    if phase in TERMINAL_PHASES:
        moments = [status.completion_time or ""]
    elif phase in ("Running", "Suspended") and own is not None:
        moments = [own.last_transition_time]
    else:
        # A job that was resumed waits since then, not since it ran last.
        moments = [one.last_transition_time for one in (running, suspended) if one is not None]
    times = [to_seconds(text) for text in moments]
    since = max((moment for moment in times if moment is not None), default=job.created_at)
    return phase, own.reason if own is not None else "", since


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
