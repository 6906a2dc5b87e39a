"""`LogReader` reads a job's output as one stream, for the SDK, the command line and the dashboard.

It first reads the existing output: the kept output of earlier pods, then the logs of the pods' containers. With
`follow`, it then follows each container's log from its last line. Until the job has ended, it lists the job and its
pods again whenever a log ends or hasn't begun. A log that breaks off is continued after its last line, according to the
kubelet's timestamp of that line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.client.errors import InvalidRequest, JobNotFound
from trainmaster.client.job import TrainingJob, worker_index
from trainmaster.client.merging import Lines, Merger, WorkerLine, merged
from trainmaster.client.output import Container, Output, container_of, containers_of, has_started, runs
from trainmaster.client.watching import read_job
from trainmaster_operator.api.kept_logs import KeptLog, stamped_line
from trainmaster_operator.api.times import to_seconds

# Interval of listing the pods (seconds): while output is missing, and while all workers are read.
POLL_SECONDS, CALM_SECONDS = 1.0, 15.0
# Pods that outlive their job keep their logs open, so after the job's end this many silent seconds end a log.
SILENT_SECONDS = 3.0
# Limit of logs merged at once. Beyond it, the output of the first workers precedes that of the next.
MAX_MERGED = 128


@dataclass(frozen=True)
class Selection:
    """Selection describes the wanted lines; None means all."""

    workers: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    since: float | None = None
    """No older lines than this time (seconds since the epoch)."""
    tail: int | None = None
    """Only this many lines of each worker, the last ones."""

    @property
    def by_content(self) -> bool:
        """Returns whether lines are selected by their content, which the kubelet can't do."""
        return self.ranks is not None or self.attempt is not None

    def wants(self, worker: int) -> bool:
        """Returns whether a worker's output is wanted."""
        return self.workers is None or worker in self.workers


class Filter:
    """Filter selects the wanted lines of one container's log, from its beginning.

    A line belongs to the attempt of the last separator before it. A log without a separator at its beginning starts
    with attempt 1, or the kubelet has rotated its beginning away; then the failures in the job's status give the
    attempt at the time.
    """

    def __init__(self, selection: Selection, job: TrainingJob | None) -> None:
        self._selection = selection
        self._by_content = selection.by_content
        self._job = job
        self._attempt: int | None = None

    def __call__(self, line: WorkerLine) -> bool:
        """Returns whether the next line of the log is wanted."""
        wanted = self._selection
        if self._by_content:
            begins = line.separates
            if begins is not None or self._attempt is None:
                self._attempt = begins or self._attempt_at(line.time)
            if wanted.attempt not in (None, self._attempt):
                return False
            if wanted.ranks is not None and line.rank not in wanted.ranks:
                return False
        return wanted.since is None or not line.time or line.time >= wanted.since

    def _attempt_at(self, time: float) -> int:
        failures = () if self._job is None else self._job.status.failures
        ended = [each.attempt for each in failures if (at := to_seconds(each.failed_at)) is not None and at < time]
        return max(ended, default=0) + 1


class Observer:
    """Observer is informed of what a reader waits for. This one ignores it; the command line's prints it."""

    def listed(self, job: TrainingJob, pods: Sequence[Mapping[str, Any]], *, is_idle: bool) -> None:
        """Receives the wanted workers' pods each time they are listed. `is_idle`: no log is followed."""

    def too_many(self, logs: int) -> None:
        """Receives the number of logs if they are too many to merge."""


@dataclass
class _Place:
    """_Place is a position in a container's log: the last line's time, and the number of lines of that time."""

    time: float = 0.0
    lines: int = 0

    def pass_(self, line: WorkerLine) -> None:
        """Advances the position past a line."""
        if line.time > self.time:
            self.time, self.lines = line.time, 0
        self.lines += line.time == self.time

    async def rest(self, lines: Lines) -> Lines:
        """Yields the lines after the position, from a log that is read again from the second of its time."""
        known, is_known = self.lines, True
        async for line in lines:
            if is_known and line.time > self.time:
                is_known = False
            elif is_known:
                # A line with an earlier time may still be newer, because two streams make one log.
                known -= line.time == self.time
                if line.time < self.time or known >= 0:
                    continue
            yield line


@dataclass
class LogReader:
    """LogReader reads the wanted output of one job. Use it once."""

    output: Output
    # The newest state read.
    job: TrainingJob
    selection: Selection = Selection()
    observer: Observer = field(default_factory=Observer)
    # The wanted workers' pods and their kept output, as first found.
    pods: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, init=False)
    kept: Mapping[int, KeptLog] = field(default_factory=dict, init=False)
    _filters: dict[Container, Filter] = field(default_factory=dict, init=False)
    _places: dict[Container, _Place] = field(default_factory=dict, init=False)
    # Workers whose pods have yielded a wanted line.
    _seen: set[int] = field(default_factory=set, init=False)

    @property
    def is_over(self) -> bool:
        """Returns whether no more wanted lines can follow."""
        attempt = self.selection.attempt
        return self.job.finished or (attempt is not None and self.job.status.attempt > attempt)

    def lines(self, *, follow: bool) -> Lines:
        """Yields the wanted lines, sorted by time.

        Raises ClientError, and JobNotFound if the job is deleted meanwhile.
        """
        return self._followed() if follow and not self.is_over else self._there()

    def of_pod(self, pod: Mapping[str, Any]) -> Lines:
        """Yields the wanted lines of a pod's containers. Raises JobNotFound if the pod is gone."""
        return self._tail(self._of_pod(pod))

    def of_kept(self, worker: int, log: KeptLog) -> Lines:
        """Yields the wanted lines of a worker's kept output."""
        return self._tail(_stream(self._kept_lines(worker, log)))

    async def _of_pod(self, pod: Mapping[str, Any], kept: KeptLog | None = None, *, follow: bool = False) -> Lines:
        """Yields a worker's existing output: the kept output of earlier pods, then the logs of its containers.

        With `follow`, each container's position is at its end afterwards.
        """
        worker, containers, tail = worker_index(pod), containers_of(pod), self._cut_at
        if follow and tail is not None:
            # Following needs at least one line to find its position.
            tail = max(1, tail)
        is_first = True
        for container in containers:
            previous, place = container is not containers[-1], self._begin(container)
            keep = self._filters[container]
            lines = self._read(container, previous=previous, tail=tail, since=self._since)
            try:
                async with aclosing(lines):
                    async for line in lines:
                        if is_first and kept is not None:
                            for earlier in self._kept_lines(worker, kept.before(line.text, round(line.time * 1_000))):
                                yield earlier
                        is_first = False
                        if follow:
                            place.pass_(line)
                        if keep(line):
                            self._seen.add(worker)
                            yield line
            except InvalidRequest:
                # The older container may have no log, or the newer one may not have started.
                if not previous:
                    del self._places[container]
            except JobNotFound:
                if not previous:
                    del self._places[container]
                    if not follow and is_first:
                        raise
        if is_first and kept is not None:
            for earlier in self._kept_lines(worker, kept):
                yield earlier

    def _kept_lines(self, worker: int, log: KeptLog) -> Iterable[WorkerLine]:
        times = log.times or [0] * len(log.lines)
        lines = (WorkerLine(time / 1_000, worker, text) for time, text in zip(times, log.lines, strict=True))
        return filter(Filter(self.selection, self.job), lines)

    async def _there(self) -> Lines:
        """Yields the existing output: that of the pods, and the kept output of former pods."""
        pods = await self._list()
        self.pods = {worker_index(pod): pod for pod in pods}
        self.kept = await self._now_kept(is_needed=not pods)
        self.observer.listed(self.job, pods, is_idle=False)
        async with aclosing(self._merged(self._streams(follow=False))) as lines:
            async for line in lines:
                yield line

    async def _followed(self) -> Lines:
        """Yields the existing output, then new lines until no more can follow."""
        pods = await self._list()
        self.pods = {worker_index(pod): pod for pod in pods}
        self.kept = await self._now_kept()
        async with aclosing(self._merged(self._streams(follow=True))) as lines:
            async for line in lines:
                yield line
        if any(map(has_started, pods)):
            # Reading the existing output may have taken long.
            pods = await self._reread()
        merger: Merger[Container] = Merger(self.output.transport.readers())
        try:
            while True:
                for pod in pods:
                    self._read_on(merger, pod)
                # Reads the last lines: of all logs after the job's end, and for a moment after the attempt's end.
                seconds = self._patience(merger) if not self.is_over else None if self.job.finished else POLL_SECONDS
                if not self.is_over:
                    self.observer.listed(self.job, pods, is_idle=not merger.sources)
                async with aclosing(self._taken(merger, seconds)) as lines:
                    async for line in lines:
                        yield line
                if self.is_over:
                    break
                pods = await self._reread()
        finally:
            await merger.close()
        if self.job.finished:
            async with aclosing(self._merged(await self._missed())) as lines:
                async for line in lines:
                    yield line

    async def _list(self) -> list[Mapping[str, Any]]:
        pods = await self.output.pods(self.job.name)
        return [pod for pod in pods if self.selection.wants(worker_index(pod))]

    async def _reread(self) -> list[Mapping[str, Any]]:
        """Reads the job again, and returns its pods."""
        deleted = f"Job {self.job.name} was deleted while its output was followed"
        try:
            job = await read_job(self.output.transport, self.output.namespace, self.job.name)
        except JobNotFound as error:
            raise JobNotFound(f"{deleted}.") from error
        if job.uid != self.job.uid:
            raise JobNotFound(f"{deleted}; another has its name now.")
        self.job = job
        return await self._list()

    async def _now_kept(self, *, is_needed: bool = False) -> dict[int, KeptLog]:
        read = self.output.kept_logs if is_needed else self.output.kept_logs_or_none
        kept = await read(self.job.name)
        return {worker: log for worker, log in kept.items() if self.selection.wants(worker)}

    def _streams(self, *, follow: bool) -> list[Lines]:
        """Returns each worker's existing output."""
        started = {worker: pod for worker, pod in self.pods.items() if has_started(pod)}
        streams = [self._of_pod_or_kept(pod, follow=follow) for pod in started.values()]
        return streams + [self.of_kept(worker, log) for worker, log in self.kept.items() if worker not in started]

    async def _of_pod_or_kept(self, pod: Mapping[str, Any], *, follow: bool) -> Lines:
        """Yields a worker's output, or its kept output if the pod has gone since it was listed."""
        worker = worker_index(pod)
        kept = self.kept.get(worker)
        lines = self._of_pod(pod, kept, follow=follow)
        if kept is not None or len(containers_of(pod)) > 1 or not self._cut_at:
            lines = self._tail(lines)
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield line
        except JobNotFound:
            if (log := (await self._now_kept()).get(worker)) is not None:
                async with aclosing(self.of_kept(worker, log)) as lines:
                    async for line in lines:
                        yield line

    @property
    def _cut_at(self) -> int | None:
        """Returns the tail that the kubelet itself can cut, if all lines of the logs are wanted."""
        return None if self.selection.by_content else self.selection.tail

    async def _tail(self, lines: Lines) -> Lines:
        """Yields the wanted number of last lines."""
        last = deque[WorkerLine](maxlen=self.selection.tail)
        async with aclosing(lines):
            async for line in lines:
                if self.selection.tail is None:
                    yield line
                else:
                    last.append(line)
        for line in last:
            yield line

    async def _merged(self, streams: Sequence[Lines]) -> Lines:
        if len(streams) > MAX_MERGED:
            self.observer.too_many(len(streams))
        for first in range(0, len(streams), MAX_MERGED):
            lines = merged(streams[first : first + MAX_MERGED], self.output.together)
            async with aclosing(lines):
                async for line in lines:
                    yield line

    async def _read(
        self,
        container: Container,
        *,
        previous: bool,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> Lines:
        """Yields the log of a container. Raises ClientError: JobNotFound, or InvalidRequest if there is no log."""
        at = 0.0
        raws = self.output.pod_log(
            container.pod, follow=follow, tail=tail, previous=previous, timestamps=True, since=since
        )
        async with aclosing(raws):
            async for raw in raws:
                stamp, text = stamped_line(raw)
                # A line without a timestamp belongs to the previous line.
                at = at if stamp is None else stamp
                yield WorkerLine(at, container.worker, text)

    @property
    def _since(self) -> float | None:
        """Returns the time to read logs from. To find an attempt's lines, logs must be read from their beginning."""
        return None if self.selection.attempt is not None else self.selection.since

    def _begin(self, container: Container) -> _Place:
        self._filters.setdefault(container, Filter(self.selection, self.job))
        return self._places.setdefault(container, _Place())

    def _read_on(self, merger: Merger[Container], pod: Mapping[str, Any]) -> None:
        """Starts to follow those of the pod's containers that aren't followed yet."""
        container, reading = container_of(pod), merger.sources
        if not has_started(pod) or container in reading:
            return
        if container.restarts > 0 and container not in self._places and container.before not in reading:
            # It ran between two lists, or ended after the last line read from it.
            self._follow(merger, container.before, previous=True)
        if container not in self._places or runs(pod) or not self._places[container].time:
            # If the container still runs, a log that ended has broken off.
            self._follow(merger, container, previous=False)

    def _follow(self, merger: Merger[Container], container: Container, *, previous: bool) -> None:
        merger.add(container, self._rest(container, replace(self._begin(container)), previous=previous))

    async def _rest(self, container: Container, place: _Place, *, previous: bool) -> Lines:
        """Yields a container's log after a position."""
        since = place.time or self._since
        lines = self._read(container, previous=previous, follow=not previous, since=since)
        try:
            async with aclosing(lines), aclosing(place.rest(lines)) as rest:
                async for line in rest:
                    yield line
        except (JobNotFound, InvalidRequest):
            # The pod is gone, or its container has no log yet; the next list of pods shows which.
            return

    async def _taken(self, merger: Merger[Container], seconds: float | None) -> Lines:
        """Yields lines for some seconds or until a log ends; None: until all have ended or are silent."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is not None or merger.sources:
            found = await merger.next(time.monotonic() + SILENT_SECONDS if deadline is None else deadline)
            if found is None:
                return
            container, line = found
            if isinstance(line, WorkerLine):
                self._places[container].pass_(line)
                if self._filters[container](line):
                    self._seen.add(container.worker)
                    yield line
            elif line.error is not None:
                raise line.error
            elif deadline is not None:
                # The job's status follows within moments.
                deadline = min(deadline, time.monotonic() + POLL_SECONDS)

    def _patience(self, merger: Merger[Container]) -> float:
        workers = self.selection.workers
        wanted = len(workers) if workers is not None else max(1, self.job.status.workers.desired)
        return CALM_SECONDS if len(merger.sources) >= wanted else POLL_SECONDS

    async def _missed(self) -> list[Lines]:
        """Returns the kept output of workers whose pods couldn't be read, without lines already yielded."""
        if self._places or self.kept:
            # A tail applies only to output that existed before.
            self.selection = replace(self.selection, tail=None)
        return [
            self.of_kept(worker, _added(log, self.kept.get(worker)))
            for worker, log in (await self._now_kept()).items()
            if worker not in self._seen
        ]


async def _stream(lines: Iterable[WorkerLine]) -> Lines:
    for line in lines:
        yield line


def _added(log: KeptLog, before: KeptLog | None) -> KeptLog:
    """Returns the lines that a kept log has more than an earlier version; its first lines may be lost meanwhile."""
    known = () if before is None else before.lines
    for gone in range(len(known)):
        if log.lines[: len(known) - gone] == known[gone:]:
            first = len(known) - gone
            return KeptLog(log.lines[first:], None if log.times is None else log.times[first:])
    return log


async def labelled(lines: Lines, *, several: bool) -> AsyncGenerator[str, None]:
    """Yields the lines' texts. Lines of several workers get labels, and each attempt's beginning appears once."""
    newest = 0
    async with aclosing(lines):
        async for line in lines:
            begins = line.separates
            if not several or line.label:
                yield line.text
            elif begins is None:
                yield f"[worker {line.worker}] {line.text}"
            elif begins > newest:
                newest = begins
                yield line.text


def may_have_several(job: TrainingJob) -> bool:
    """Returns whether the job has or may get several workers, so that lines need labels."""
    spec: Mapping[str, Any] = job.raw.get("spec") or {}
    if any(spec.get(name) for name in ("workerGroups", "elastic", "spares")):
        return True
    return spec.get("workers") not in (None, 1) or job.status.workers.desired > 1
