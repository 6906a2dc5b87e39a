"""A selection says which lines of a job's output are wanted; a filter picks them from one container's log.

The attempt of a line isn't written in it: it is the one of the last separator before it. A log that begins without one
begins with attempt 1, or its beginning is gone (the kubelet rotates long logs); then the failures in the job's status
say which attempt there was at the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from trainmaster.client import TrainingJob
from trainmaster.client.merging import WorkerLine
from trainmaster.client.view import parse_time


@dataclass(frozen=True)
class Selection:
    """Selection holds what is wanted; None is all there is."""

    workers: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    since: float | None = None
    """No lines that are older, in seconds since the epoch."""
    tail: int | None = None
    """Only so many lines of each worker, the last ones."""

    @property
    def by_content(self) -> bool:
        """Returns whether only who reads a log can pick the lines from it; the kubelet can't."""
        return self.ranks is not None or self.attempt is not None

    def wants(self, worker: int) -> bool:
        """Returns whether a worker's output is looked at."""
        return self.workers is None or worker in self.workers


class Filter:
    """Filter picks what is wanted from the log of one container, from its beginning on."""

    def __init__(self, selection: Selection, job: TrainingJob) -> None:
        self._selection = selection
        self._job = job
        self._attempt: int | None = None

    def __call__(self, line: WorkerLine) -> bool:
        """Returns whether the next line of the log is wanted."""
        wanted = self._selection
        if wanted.by_content:
            begins = line.separates
            if begins is not None or self._attempt is None:
                self._attempt = begins or attempt_at(self._job, line.time)
            if wanted.attempt not in (None, self._attempt):
                return False
            if wanted.ranks is not None and line.rank not in wanted.ranks:
                return False
        return wanted.since is None or not line.time or line.time >= wanted.since


def attempt_at(job: TrainingJob, time: float) -> int:
    """Returns which attempt there was at a time, as far as the newest failures say it."""
    ended = [
        failure.attempt
        for failure in job.status.failures
        if (at := parse_time(failure.failed_at)) is not None and at.timestamp() < time
    ]
    return max(ended, default=0) + 1


def picked(lines: Iterable[WorkerLine], keep: Callable[[WorkerLine], bool]) -> Iterator[WorkerLine]:
    """Yields the lines that are wanted."""
    return (line for line in lines if keep(line))


def attempts_in(lines: Collection[WorkerLine]) -> list[int]:
    """Returns the attempts that begin within some lines."""
    return [begins for line in lines if (begins := line.separates) is not None]
