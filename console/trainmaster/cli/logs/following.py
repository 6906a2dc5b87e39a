"""`-f` prints a job's output as it comes, from one container to the next, until the job has ended.

First comes what there is, merged as without `-f`: what was kept of earlier pods, and what the pods have. Then a thread
follows each container's log from its last line on and the job and its pods are read again whenever one of them ends or
has not begun. A log that breaks off is read on from its last line, by the time that the kubelet has of it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from trainmaster.cli.logs.merging import Window
from trainmaster.cli.logs.printed import kept_or_none, print_merged, print_there, say_each
from trainmaster.cli.logs.printing import Printer
from trainmaster.cli.logs.selection import Filter, Selection
from trainmaster.cli.logs.sources import (
    added,
    behind_kept,
    container_lines,
    ending,
    of_kept,
    waiting_sentence,
)
from trainmaster.cli.show import job_trouble
from trainmaster.cli.terminal import say
from trainmaster.client import ClientError, InvalidRequest, JobClient, JobNotFound, TrainingJob, worker_index
from trainmaster.client.arrivals import Ended
from trainmaster.client.containers import Container, container_of, containers_of, has_started, runs
from trainmaster.client.merging import WorkerLine
from trainmaster.client.view import view_of
from trainmaster_operator.api.kept_logs import KeptLog

# Seconds after which the pods are listed again: while output is missing, and while all workers are read.
POLL_SECONDS, CALM_SECONDS = 1.0, 15.0
# Pods that outlive their job keep their logs open: no line for so long after the end is the end.
SILENT_SECONDS = 3.0


@dataclass
class _Place:
    """_Place is how far a container's log was read: to a time, and how many lines have just that time."""

    time: float = 0.0
    lines: int = 0

    def passed(self, line: WorkerLine) -> None:
        """Moves on behind a line."""
        if line.time > self.time:
            self.time, self.lines = line.time, 0
        self.lines += line.time == self.time

    def rest(self, lines: Iterator[WorkerLine]) -> Iterator[WorkerLine]:
        """Yields what comes behind the place, of a log that is read again from the second of its time on."""
        time, known = self.time, self.lines
        for line in lines:
            if line.time > time:
                yield line
                break
            # Lines of a time before it may have been written behind it: two streams are one log.
            if line.time == time:
                known -= 1
                if known < 0:
                    yield line
        yield from lines


@dataclass
class Follower:
    """Follower prints the output that is wanted, until the job has ended."""

    jobs: JobClient
    job: TrainingJob
    selection: Selection
    printer: Printer
    _window: Window[Container] = field(default_factory=Window, init=False)
    _filters: dict[Container, Filter] = field(default_factory=dict, init=False)
    _places: dict[Container, _Place] = field(default_factory=dict, init=False)
    # Workers whose pods' output was printed.
    _printed: set[int] = field(default_factory=set, init=False)
    # What was kept of earlier pods, and was printed first.
    _kept: dict[int, KeptLog] = field(default_factory=dict, init=False)
    # What was said of each worker without output, and of the job (None).
    _said: defaultdict[int | None, set[str]] = field(default_factory=lambda: defaultdict(set), init=False)

    def run(self) -> None:
        """Follows until the job has ended. Raises ClientError, JobNotFound when the job is deleted."""
        job = self.job
        if self._over(job):
            print_there(self.jobs, job, self.selection, self.printer, with_end=True)
            return
        pods = self._pods()
        self._kept = self._now_kept()
        started = {worker_index(pod): pod for pod in pods if has_started(pod)}
        streams = [self._from_beginning(pod, self._kept.get(worker)) for worker, pod in started.items()]
        streams += [
            of_kept(job, worker, log, self.selection) for worker, log in self._kept.items() if worker not in started
        ]
        print_merged(streams, self.printer)
        if started:
            # There may be others by now: it can be long.
            job, pods = self._reread()
        while True:
            for pod in pods:
                self._read_on(job, pod)
            if self._over(job):
                break
            self._explain(job, pods)
            self._print(self._patience(job))
            job, pods = self._reread()
        if job.finished:
            self._print(None)
            self._print_missed()
            say(view_of(job.raw).end, error=True)
        else:
            self._print(POLL_SECONDS)

    def _over(self, job: TrainingJob) -> bool:
        """Returns whether nothing that is wanted can come any more."""
        attempt = self.selection.attempt
        return job.finished or (attempt is not None and job.status.attempt > attempt)

    def _pods(self) -> list[Mapping[str, Any]]:
        return [pod for pod in self.jobs.pods(self.job.name) if self.selection.wants(worker_index(pod))]

    def _reread(self) -> tuple[TrainingJob, list[Mapping[str, Any]]]:
        try:
            job = self.jobs.get(self.job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {self.job.name} was deleted while its output was followed.") from error
        if job.uid != self.job.uid:
            raise JobNotFound(
                f"Job {self.job.name} was deleted while its output was followed; another has its name now."
            )
        return job, self._pods()

    def _from_beginning(self, pod: Mapping[str, Any], kept: KeptLog | None) -> Iterator[WorkerLine]:
        """Yields what there is of a worker's output and is wanted; the places are behind it then."""
        selection, containers = self.selection, containers_of(pod)
        # One line at least, which says where following begins.
        cut_there = selection.tail is not None and not selection.by_content and len(containers) == 1
        tail = max(1, selection.tail or 0) if cut_there else None
        since = None if selection.attempt is not None else selection.since

        def lines(container: Container, place: _Place) -> Iterator[WorkerLine]:
            previous = container is not containers[-1]
            try:
                for line in container_lines(self.jobs, container, previous=previous, tail=tail, since=since):
                    place.passed(line)
                    yield line
            except (InvalidRequest, JobNotFound):
                # There is no log yet, or none any more: the next list of the pods says which.
                if not previous:
                    del self._places[container]

        streams = (
            (lines(container, self._begin(container, Filter(selection, self.job))), partial(self._wanted, container))
            for container in containers
        )
        return ending(
            behind_kept(worker_index(pod), kept, streams, Filter(selection, self.job)),
            selection.tail,
        )

    def _begin(self, container: Container, kept: Filter) -> _Place:
        self._filters[container] = kept
        return self._places.setdefault(container, _Place())

    def _wanted(self, container: Container, line: WorkerLine) -> bool:
        wanted = self._filters[container](line)
        if wanted:
            self._printed.add(container.worker)
        return wanted

    def _read_on(self, job: TrainingJob, pod: Mapping[str, Any]) -> None:
        """Starts to read the pod's containers, those that aren't read."""
        container, reading = container_of(pod), self._window.sources
        if not has_started(pod) or container in reading:
            return
        if container.restarts > 0 and container not in self._places and container.before not in reading:
            # It ran between two looks, or ended behind the last line that was read of it.
            self._read(job, container.before, previous=True)
        if container not in self._places or runs(pod) or not self._places[container].time:
            # One that was read to its end and still runs broke off, or is to be followed from there.
            self._read(job, container, previous=False)

    def _read(self, job: TrainingJob, container: Container, *, previous: bool) -> None:
        if container not in self._places:
            self._begin(container, Filter(self.selection, job))
        place = self._places[container]
        known = _Place(place.time, place.lines)
        since = known.time or (None if self.selection.attempt is not None else self.selection.since)
        self._window.open(container)

        def read() -> None:
            error: ClientError | None = None
            try:
                lines = container_lines(self.jobs, container, previous=previous, follow=not previous, since=since)
                for line in known.rest(lines):
                    self._window.put(container, line)
            except (JobNotFound, InvalidRequest):
                # The pod is gone, or its container has no log yet: the next list of the pods says which.
                pass
            except ClientError as found:
                error = found
            finally:
                self._window.end(container, error)

        threading.Thread(target=read, daemon=True).start()

    def _print(self, seconds: float | None) -> None:
        """Prints lines for some seconds, or until a log ends; without seconds until all have, or nothing comes."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is not None or self._window.sources:
            found = self._window.take(time.monotonic() + SILENT_SECONDS if deadline is None else deadline)
            if found is None:
                return
            container, line = found
            if isinstance(line, Ended):
                if line.error is not None:
                    raise line.error
                if deadline is not None:
                    # The job's status follows within moments.
                    deadline = min(deadline, time.monotonic() + POLL_SECONDS)
                continue
            self._places[container].passed(line)
            if self._wanted(container, line):
                self.printer(line)

    def _patience(self, job: TrainingJob) -> float:
        workers = self.selection.workers
        wanted = len(workers) if workers is not None else max(1, job.status.workers.desired)
        return CALM_SECONDS if len(self._window.sources) >= wanted else POLL_SECONDS

    def _explain(self, job: TrainingJob, pods: Sequence[Mapping[str, Any]]) -> None:
        """Says what is waited for, each thing once: an image's pull fails and is put off in turns."""
        waiting: dict[int | None, str] = {}
        for pod in pods:
            worker = worker_index(pod)
            if has_started(pod):
                self._said.pop(worker, None)
            else:
                waiting[worker] = waiting_sentence(worker, pod)
        if pods:
            self._said.pop(None, None)
        elif not self._window.sources:
            waiting[None] = f"Job {self.job.name} has no pods: {job_trouble(job)}"
        new = {each: text for each, text in waiting.items() if text not in self._said[each]}
        for each, text in new.items():
            self._said[each].add(text)
        say_each(list(new.values()))

    def _now_kept(self) -> dict[int, KeptLog]:
        kept = kept_or_none(self.jobs, self.job.name)
        return {worker: log for worker, log in kept.items() if self.selection.wants(worker)}

    def _print_missed(self) -> None:
        """Prints what was kept of workers whose pods' output nobody has read, but for what was printed first."""
        # A tail is of what was there before.
        selection = replace(self.selection, tail=None) if self._places or self._kept else self.selection
        missed = {
            worker: added(log, self._kept.get(worker))
            for worker, log in self._now_kept().items()
            if worker not in self._printed
        }
        print_merged([of_kept(self.job, worker, log, selection) for worker, log in missed.items()], self.printer)
