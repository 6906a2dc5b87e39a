"""`kubectl dtj logs` prints the output of a job's workers, and follows it from one container to the next.

A worker's output has many places in a job's life: the logs of its containers, of its pods that replaced each other,
and what the operator kept when the job ended or was suspended. Whoever follows gets one stream: a thread reads each
container's log, and the job and its pods are read again whenever one of them ends or hasn't begun.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainmaster.cli.show import job_end, job_trouble, pod_trouble
from trainmaster.cli.terminal import log_line, say
from trainmaster.client import (
    ClientError,
    InvalidRequest,
    JobClient,
    JobNotFound,
    NotAllowed,
    TrainingJob,
    worker_index,
)

# Seconds after which the pods are listed again: while output is missing, and while all workers are read.
POLL_SECONDS, CALM_SECONDS = 1.0, 15.0
# Pods that outlive their job keep their logs open: no line for so long after the end is the end.
SILENT_SECONDS = 3.0
# Lines that are read ahead of a slow reader of ours.
MAX_AHEAD = 10_000
# Workers without output that are named one by one.
MAX_NAMED = 8


class Life(NamedTuple):
    """Life is one container of a worker: its log is one stream."""

    worker: int
    pod: str
    uid: str
    restarts: int


class Line(NamedTuple):
    """Line is what a reader found: a line, the end of the log (None), or an error."""

    life: Life
    text: str | ClientError | None


def print_logs(jobs: JobClient, job: TrainingJob, worker: int | None, tail: int | None) -> None:
    """Prints what there is of the workers' output, and says why there is none. Raises ClientError."""
    pods = {worker_index(pod): pod for pod in jobs.pods(job.name)}
    workers = sorted(pods) if pods else jobs.kept_workers(job.name)
    require_worker(job, worker)
    label = _Labels(job, worker, len(workers))
    printed = 0
    for each in workers if worker is None else [worker]:
        pod = pods.get(each)
        if pod is not None and not _started(pod):
            say(_waiting(each, pod), error=True)
        elif pod is not None or each in workers:
            for line in jobs.logs(job.name, each, tail=tail):
                log_line(line, label(each))
                printed += 1
    if printed or tail == 0:
        return
    if job.finished:
        say(f"{job_end(job)}\nIt printed nothing that was kept.", error=True)
    elif not pods:
        say(f"Job {job.name} has no output: {job_trouble(job)}", error=True)


def require_worker(job: TrainingJob, worker: int | None) -> None:
    """Raises JobNotFound for a worker that the job can't have."""
    spec: Any = job.raw.get("spec") or {}
    elastic = spec.get("elastic")
    sizes = [job.status.workers.desired, spec.get("workers"), elastic.get("maxWorkers") if elastic else None]
    most = max((size for size in sizes if isinstance(size, int)), default=0)
    if most:
        # A spare's output is a worker's as soon as it has taken a worker's place.
        most += sum(group.get("spares") or 0 for group in (spec, *(spec.get("workerGroups") or ())))
    if worker is not None and 0 < most <= worker:
        there = "worker 0 alone" if most == 1 else f"workers 0 to {most - 1}"
        raise JobNotFound(f"Job {job.name} has no worker {worker}: it has {there}")


class _Labels:
    """_Labels name the worker before each line, where a job has several and not one was asked for."""

    def __init__(self, job: TrainingJob, worker: int | None, known: int) -> None:
        self._wanted = worker is None and max(job.status.workers.desired, known) > 1

    def __call__(self, worker: int) -> str:
        return f"[worker {worker}] " if self._wanted else ""


@dataclass
class Follower:
    """Follower prints a job's output as it comes, until the job has ended."""

    jobs: JobClient
    job: TrainingJob
    worker: int | None
    tail: int | None
    _lines: queue.Queue[Line] = field(default_factory=lambda: queue.Queue(MAX_AHEAD), init=False)
    _reading: set[Life] = field(default_factory=set, init=False)
    # Lines that were printed of each life, by which one that broke off is read on.
    _printed: dict[Life, int] = field(default_factory=dict, init=False)
    # What was said of each worker without output, and of the job (None).
    _said: defaultdict[int | None, set[str]] = field(default_factory=lambda: defaultdict(set), init=False)

    def run(self) -> None:
        """Follows until the job has ended. Raises ClientError, JobNotFound when the job is deleted."""
        job = self.job
        require_worker(job, self.worker)
        if job.finished:
            print_logs(self.jobs, job, self.worker, self.tail)
            return
        pods = self.jobs.pods(self.job.name)
        label = _Labels(job, self.worker, len(pods))
        if not pods:
            self._print_kept(self._kept_workers(), label, self.tail)
        first = True
        while True:
            for life, previous in self._lives(pods, first=first):
                self._read(life, self.tail if first else None, previous=previous)
            first = False
            if job.finished:
                break
            self._explain(job, pods)
            self._print(label, self._patience(job))
            job, pods = self._reread()
        self._print(label, None)
        self._print_kept(self._kept_workers(), label, None)
        say(job_end(job), error=True)

    def _reread(self) -> tuple[TrainingJob, list[Mapping[str, Any]]]:
        try:
            job = self.jobs.get(self.job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {self.job.name} was deleted while its output was followed.") from error
        if job.uid != self.job.uid:
            raise JobNotFound(
                f"Job {self.job.name} was deleted while its output was followed; another has its name now."
            )
        return job, self.jobs.pods(self.job.name)

    def _lives(self, pods: Iterable[Mapping[str, Any]], *, first: bool) -> list[tuple[Life, bool]]:
        """Returns the containers whose logs are to be read from now on, and which are of the container before."""
        found = []
        for pod in pods:
            life = _life(pod)
            if self.worker not in (None, life.worker) or not _started(pod) or life in self._reading:
                continue
            before = life._replace(restarts=life.restarts - 1)
            if not first and life.restarts > 0 and life not in self._printed and before not in self._printed:
                found.append((before, True))
            if life not in self._printed or _runs(pod):
                # One that was read to its end and still runs broke off; it is read on.
                found.append((life, False))
        return found

    def _read(self, life: Life, tail: int | None, *, previous: bool) -> None:
        again = self._printed.get(life)
        self._printed.setdefault(life, 0)
        self._reading.add(life)
        # What was printed is left out; behind a tail nobody knows how much there is before it.
        skip, tail = (again or 0, tail) if again is None or self.tail is None else (0, 0)

        def read() -> None:
            left = skip
            try:
                log = self.jobs.pod_log(life.pod, follow=not previous, tail=tail, previous=previous)
                for line in log:
                    if left:
                        left -= 1
                        continue
                    self._lines.put(Line(life, line))
            except (JobNotFound, InvalidRequest):
                # The pod is gone, or its container has no log yet: the next list of the pods says which.
                return
            except ClientError as error:
                self._lines.put(Line(life, error))
            finally:
                self._lines.put(Line(life, None))

        threading.Thread(target=read, daemon=True).start()

    def _print(self, label: _Labels, seconds: float | None) -> None:
        """Prints lines for some seconds, or until a log ends; without seconds until all have, or nothing comes."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is not None or self._reading:
            left = SILENT_SECONDS if deadline is None else deadline - time.monotonic()
            try:
                life, text = self._lines.get(timeout=max(0.0, left))
            except queue.Empty:
                return
            if isinstance(text, ClientError):
                raise text
            if text is not None:
                log_line(text, label(life.worker))
                self._printed[life] += 1
                continue
            self._reading.discard(life)
            if deadline is not None:
                # The job's status follows within moments.
                deadline = min(deadline, time.monotonic() + POLL_SECONDS)

    def _patience(self, job: TrainingJob) -> float:
        wanted = 1 if self.worker is not None else max(1, job.status.workers.desired)
        return CALM_SECONDS if len(self._reading) >= wanted else POLL_SECONDS

    def _explain(self, job: TrainingJob, pods: Sequence[Mapping[str, Any]]) -> None:
        """Says what is waited for, each thing once: an image's pull fails and is put off in turns."""
        waiting: dict[int | None, str] = {}
        for pod in pods:
            worker = worker_index(pod)
            if _started(pod):
                self._said.pop(worker, None)
            elif self.worker in (None, worker):
                waiting[worker] = _waiting(worker, pod)
        if pods:
            self._said.pop(None, None)
        elif not self._reading:
            waiting[None] = f"Job {self.job.name} has no pods: {job_trouble(job)}"
        new = {each: text for each, text in waiting.items() if text not in self._said[each]}
        for each, text in new.items():
            self._said[each].add(text)
        for text in list(new.values())[:MAX_NAMED]:
            say(text, error=True)
        if len(new) > MAX_NAMED:
            say(f"... and {len(new) - MAX_NAMED} more workers.", error=True)

    def _kept_workers(self) -> list[int]:
        """Returns the workers whose output was kept, and of which nothing was read."""
        seen = {life.worker for life, lines in self._printed.items() if lines}
        try:
            kept = self.jobs.kept_workers(self.job.name)
        except NotAllowed:
            # Who may read pods' logs needn't be allowed to read ConfigMaps.
            return []
        return [each for each in kept if each not in seen and self.worker in (None, each)]

    def _print_kept(self, workers: Iterable[int], label: _Labels, tail: int | None) -> None:
        for worker in workers:
            for line in self.jobs.logs(self.job.name, worker, tail=tail):
                log_line(line, label(worker))


def _life(pod: Mapping[str, Any]) -> Life:
    metadata = pod["metadata"]
    restarts = (_worker_status(pod) or {}).get("restartCount")
    return Life(
        worker_index(pod), metadata["name"], str(metadata.get("uid")), restarts if isinstance(restarts, int) else 0
    )


def _worker_status(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == "worker"), None)


def _started(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container has a log."""
    status = _worker_status(pod)
    if status is None:
        return bool((pod.get("status") or {}).get("phase") != "Pending")
    return "waiting" not in (status.get("state") or {}) or bool(status.get("restartCount"))


def _runs(pod: Mapping[str, Any]) -> bool:
    status = _worker_status(pod)
    return (
        status is not None and "running" in (status.get("state") or {}) and not pod["metadata"].get("deletionTimestamp")
    )


def _waiting(worker: int, pod: Mapping[str, Any]) -> str:
    return f"Worker {worker} has no output yet: pod {pod['metadata']['name']} is {pod_trouble(pod)}."
