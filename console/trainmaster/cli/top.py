"""Reads the pictures of running jobs for `top`, every two seconds. `top_picture` draws them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.text import Text

from trainmaster.cli.arguments import none_found
from trainmaster.cli.events import events_of, owners_of
from trainmaster.cli.live import View
from trainmaster.cli.top_picture import JobPicture, JobsPicture
from trainmaster.client import JobClient, JobNotFound, NotAllowed, RankMetrics, TrainingJob

# Interval between readings.
READ_SECONDS = 2.0
# Maximum number of values in a line of blocks.
MAX_SEEN = 120
_PODS = "its pods"


class JobReader:
    """JobReader reads a job's pods, newest Events and ranks. It doesn't repeat a forbidden request.

    If the user lacks a right (to `pods/proxy`, pods or Events), the rest is shown with a message about what is missing.
    """

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._forbidden: dict[str, str] = {}
        self._losses: deque[float] = deque(maxlen=MAX_SEEN)
        self._speeds: deque[float] = deque(maxlen=MAX_SEEN)

    def view(self, job: TrainingJob) -> Callable[[], JobPicture]:
        """Returns a function that draws what was read now. Raises ClientError."""
        pods = self._allowed(_PODS, lambda: self._jobs.pods(job.name)) or []
        events = self._allowed("its events", lambda: events_of(self._jobs.events(), owners_of([job]))) or []
        ranks: tuple[RankMetrics, ...] = ()
        missing = list(self._forbidden.values())
        if job.phase == "Running" and _PODS not in self._forbidden:
            ranks, why = self._metrics(job)
            missing += [why] if why else []
        if (progress := job.status.progress) is not None:
            for value, seen in ((progress.loss, self._losses), (progress.samples_per_second, self._speeds)):
                if value is not None and (not seen or seen[-1] != value):
                    seen.append(value)
        return partial(JobPicture, job, pods, ranks, events, missing, self._losses, self._speeds)

    def _allowed(self, what: str, ask: Callable[[], Any]) -> Any:
        if what in self._forbidden:
            return None
        try:
            return ask()
        except NotAllowed as error:
            self._forbidden[what] = f"(without {what}: {error})"
            return None

    def _metrics(self, job: TrainingJob) -> tuple[tuple[RankMetrics, ...], str]:
        """Returns each rank's figures, or the reason why there are no figures."""
        try:
            found = self._jobs.metrics(job.name)
        except JobNotFound:
            return (), ""
        if not found.ranks and found.silent:
            return (), f"(without figures of each rank: {next(iter(found.silent.values()))})"
        return found.ranks, ""


def job_views(jobs: JobClient, job: TrainingJob) -> Iterator[View]:
    """Reads and yields one job's picture until the job has ended. Raises ClientError."""
    reader = JobReader(jobs)
    while True:
        try:
            now = jobs.get(job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched.") from error
        if now.uid != job.uid:
            raise JobNotFound(f"Job {job.name} was deleted while it was watched; another has its name now.")
        yield reader.view(now)
        time.sleep(READ_SECONDS)
        if now.finished:
            return


def jobs_views(jobs: JobClient, *, all_namespaces: bool) -> Iterator[View]:
    """Reads and yields the rows of all unfinished jobs. Raises ClientError."""
    while True:
        unfinished = [job for job in jobs.list(all_namespaces=all_namespaces) if not job.finished]
        if unfinished:
            yield partial(JobsPicture, unfinished, namespaces=all_namespaces)
        else:
            yield partial(Text, none_found(jobs, all_namespaces, kind="unfinished jobs"))
        time.sleep(READ_SECONDS)
