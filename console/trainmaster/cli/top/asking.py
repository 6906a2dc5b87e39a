"""The picture of one job is asked for: the job, its pods, its newest Events, and each worker's own figures.

Who may not ask the workers (`pods/proxy`), or not see pods or Events, sees the rest and one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster.cli.events import JobEvent, Owners, events_of
from trainmaster.client import JobClient, JobNotFound, NotAllowed, RankMetrics, TrainingJob

_PODS = "its pods"


@dataclass(frozen=True)
class Picture:
    """Picture is what is known of a job at one time. `missing`: what the user isn't allowed to see, in sentences."""

    job: TrainingJob
    pods: Sequence[Mapping[str, Any]] = ()
    ranks: Sequence[RankMetrics] = ()
    events: Sequence[JobEvent] = ()
    missing: tuple[str, ...] = ()


class Asking:
    """Asking reads what a picture shows, and asks no more for what was forbidden once."""

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._forbidden: dict[str, str] = {}

    def picture(self, job: TrainingJob) -> Picture:
        """Returns what is known of a job now. Raises ClientError."""
        pods = self._allowed(_PODS, lambda: self._jobs.pods(job.name)) or []
        events = self._allowed("its events", lambda: self._events(job)) or []
        ranks: tuple[RankMetrics, ...] = ()
        missing = list(self._forbidden.values())
        if job.phase == "Running" and _PODS not in self._forbidden:
            ranks, why = self._metrics(job)
            missing += [why] if why else []
        return Picture(job, pods, ranks, events, tuple(missing))

    def _allowed(self, what: str, ask: Callable[[], Any]) -> Any:
        if what in self._forbidden:
            return None
        try:
            return ask()
        except NotAllowed as error:
            self._forbidden[what] = f"(without {what}: {error})"
            return None

    def _events(self, job: TrainingJob) -> list[JobEvent]:
        return events_of(self._jobs.events(), Owners.of([job]))

    def _metrics(self, job: TrainingJob) -> tuple[tuple[RankMetrics, ...], str]:
        """Returns the figures of each rank, or why there are none."""
        try:
            found = self._jobs.metrics(job.name)
        except JobNotFound:
            return (), ""
        if not found.ranks and found.silent:
            return (), f"(without figures of each rank: {next(iter(found.silent.values()))})"
        return found.ranks, ""
