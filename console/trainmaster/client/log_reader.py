"""`LogReader` reads a job's output as one stream, for the SDK, the command line and the dashboard.

The reader first yields the existing output: the kept output of earlier pods, then the logs of the pods' containers.
With `follow`, it then follows each container's log, beginning after the last line that was read. Whenever a log ends or
hasn't begun, the reader reads the job and its pods again, until the job has ended. If a log breaks off, the reader
finds the last line by the kubelet's timestamp and continues after this line.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from trainmaster.client.errors import InvalidRequest, JobNotFound
from trainmaster.client.job import TrainingJob, worker_index
from trainmaster.client.output import (
    Container,
    Output,
    container_of,
    containers_of,
    has_started,
    kept_logs_or_none,
    runs,
)
from trainmaster.client.time_order import Lines, Merger, WorkerLine, merged
from trainmaster.client.watching import read_job
from trainmaster_operator.api.kept_logs import KeptLog, stamped_line
from trainmaster_operator.api.times import to_seconds

T = TypeVar("T")
# Intervals between lists of the pods (seconds): while output is missing, and while all workers' output is being read.
POLL_SECONDS, CALM_SECONDS = 1.0, 15.0
# Pods that outlive their job keep their logs open. So after the job's end, a log that is silent this long (seconds)
# counts as ended.
SILENT_SECONDS = 3.0
# Maximum number of logs to merge at once. If there are more, they are merged in batches, one batch after the other.
MAX_MERGED = 128


@dataclass(frozen=True)
class Selection:
    """Selection describes which lines to read. None means all."""

    workers: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    since: float | None = None
    """Lines before this time (seconds since the epoch) are left out."""
    tail: int | None = None
    """The number of each worker's last lines to read."""

    @property
    def by_content(self) -> bool:
        """Returns whether lines are selected by content, which the kubelet can't do."""
        return self.ranks is not None or self.attempt is not None

    def wants(self, worker: int) -> bool:
        """Returns whether a worker's output is wanted."""
        return self.workers is None or worker in self.workers


@dataclass
class Filter:
    """Filter selects lines of one container's log, which must be read from its beginning.

    A line belongs to the attempt of the last separator before it. A log without a separator at its beginning either
    begins with attempt 1, or the kubelet has removed its beginning (rotation). In both cases, the times of the failures
    in the job's status show to which attempt its first lines belong.
    """

    selection: Selection
    job: TrainingJob | None
    _attempt: int | None = field(default=None, init=False)

    def __call__(self, line: WorkerLine) -> bool:
        """Returns whether the next line of the log is wanted."""
        wanted = self.selection
        if wanted.by_content:
            begins = line.separates
            if begins is not None or self._attempt is None:
                self._attempt = begins or self._attempt_at(line.time)
            if wanted.attempt not in (None, self._attempt):
                return False
            if wanted.ranks is not None and line.rank not in wanted.ranks:
                return False
        return wanted.since is None or not line.time or line.time >= wanted.since

    def _attempt_at(self, time: float) -> int:
        failures = () if self.job is None else self.job.status.failures
        ended = [each.attempt for each in failures if (at := to_seconds(each.failed_at)) is not None and at < time]
        return max(ended, default=0) + 1


class Observer:
    """Observer is notified of what a reader waits for. This class ignores it; the command line's subclass prints it."""

    def listed(self, job: TrainingJob, pods: Sequence[Mapping[str, Any]], *, is_idle: bool) -> None:
        """Receives the selected workers' pods whenever they were listed. `is_idle` means that no log is followed."""

    def too_many(self, logs: int) -> None:
        """Receives the number of logs if they are too many to merge."""


@dataclass
class _Place:
    """_Place is a position in a container's log: the last line's time, and the number of lines with that time."""

    keep: Filter
    time: float = 0.0
    lines: int = 0

    def pass_(self, line: WorkerLine) -> None:
        """Advances the position past a line."""
        if line.time > self.time:
            self.time, self.lines = line.time, 0
        self.lines += line.time == self.time

    async def rest(self, lines: Lines) -> Lines:
        """Yields the lines after the position. `lines` is the log, read again from the full second of the position."""
        known, is_known = self.lines, True
        async for line in lines:
            if is_known and line.time > self.time:
                is_known = False
            elif is_known:
                # A line with an earlier time may still be new, because stdout and stderr are merged into one log.
                known -= line.time == self.time
                if line.time < self.time or known >= 0:
                    continue
            yield line


@dataclass
class LogReader:
    """LogReader reads the selected output of one job. Use each reader once."""

    output: Output
    # The job's newest state that was read.
    job: TrainingJob
    selection: Selection = Selection()
    observer: Observer = field(default_factory=Observer)
    # The pods and the kept output of the selected workers, as they were at the start.
    pods: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, init=False)
    kept: Mapping[int, KeptLog] = field(default_factory=dict, init=False)
    _places: dict[Container, _Place] = field(default_factory=dict, init=False)
    # Workers whose pods have yielded a selected line.
    _seen: set[int] = field(default_factory=set, init=False)

    @property
    def is_over(self) -> bool:
        """Returns whether no more selected lines can follow."""
        attempt = self.selection.attempt
        return self.job.finished or (attempt is not None and self.job.status.attempt > attempt)

    async def lines(self, *, follow: bool) -> Lines:
        """Yields the selected lines, sorted by time. Raises ClientError, and JobNotFound if the job is deleted."""
        async with aclosing(self._parts(follow=follow and not self.is_over)) as parts:
            async for part in parts:
                async with aclosing(part) as lines:
                    async for line in lines:
                        yield line

    def of_pod(self, pod: Mapping[str, Any]) -> Lines:
        """Yields the selected lines of a pod's containers. Raises JobNotFound if the pod is gone."""
        return self._tail(self._of_pod(pod))

    def of_kept(self, worker: int, log: KeptLog) -> Lines:
        """Yields the selected lines of a worker's kept output."""
        return self._tail(_stream(self._kept_lines(worker, log)))

    async def _of_pod(self, pod: Mapping[str, Any], kept: KeptLog | None = None, *, follow: bool = False) -> Lines:
        """Yields the kept output of earlier pods, then the containers' logs. If `follow`, records positions."""
        worker, containers, tail = worker_index(pod), containers_of(pod), self._cut_at
        if follow and tail is not None:
            # Following begins after the last line that was read, so at least one line must be read.
            tail = max(1, tail)
        is_first = True
        for container in containers:
            previous, place = container is not containers[-1], self._begin(container)
            lines = self._read(container, previous=previous, tail=tail)
            try:
                async with aclosing(lines):
                    async for line in lines:
                        if is_first and kept is not None:
                            for earlier in self._kept_lines(worker, kept.before(line.text, round(line.time * 1_000))):
                                yield earlier
                        is_first = False
                        if follow:
                            place.pass_(line)
                        if place.keep(line):
                            self._seen.add(worker)
                            yield line
            except (InvalidRequest, JobNotFound) as error:
                # The older container's log or the pod may be gone, or the newer container may not have started.
                if not previous:
                    del self._places[container]
                    if isinstance(error, JobNotFound) and not follow and is_first:
                        raise
        if is_first and kept is not None:
            for earlier in self._kept_lines(worker, kept):
                yield earlier

    def _kept_lines(self, worker: int, log: KeptLog) -> Iterable[WorkerLine]:
        times = log.times or [0] * len(log.lines)
        lines = (WorkerLine(time / 1_000, worker, text) for time, text in zip(times, log.lines, strict=True))
        return filter(Filter(self.selection, self.job), lines)

    async def _parts(self, *, follow: bool) -> AsyncGenerator[Lines, None]:
        """Yields the existing output, then new lines until no more can follow. Read each stream before the next."""
        pods = await self._list()
        self.pods = {worker_index(pod): pod for pod in pods}
        self.kept = await self._now_kept(is_needed=not follow and not pods)
        if not follow:
            self.observer.listed(self.job, pods, is_idle=False)
        for part in self._merged(self._streams(follow=follow)):
            yield part
        if not follow:
            return
        if any(map(has_started, pods)):
            # Reading the existing output may have taken long, so read the pods again.
            pods = await self._reread()
        merger: Merger[Container] = self.output.transport.merger()
        try:
            while True:
                for pod in pods:
                    self._read_on(merger, pod)
                # After the job's end, lines are read until all logs end; after a selected attempt's end, for a moment.
                seconds = self._patience(merger) if not self.is_over else None if self.job.finished else POLL_SECONDS
                if not self.is_over:
                    self.observer.listed(self.job, pods, is_idle=not merger.sources)
                yield self._taken(merger, seconds)
                if self.is_over:
                    break
                pods = await self._reread()
        finally:
            await merger.close()
        if self.job.finished:
            for part in self._merged(await self._missed()):
                yield part

    async def _list(self) -> list[Mapping[str, Any]]:
        pods = await self.output.pods(self.job.name)
        return [pod for pod in pods if self.selection.wants(worker_index(pod))]

    async def _reread(self) -> list[Mapping[str, Any]]:
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
        name = self.job.name
        kept = await (self.output.kept_logs(name) if is_needed else kept_logs_or_none(self.output, name))
        return {worker: log for worker, log in kept.items() if self.selection.wants(worker)}

    def _streams(self, *, follow: bool) -> list[Lines]:
        started = {worker: pod for worker, pod in self.pods.items() if has_started(pod)}
        streams = [self._of_pod_or_kept(pod, follow=follow) for pod in started.values()]
        return streams + [self.of_kept(worker, log) for worker, log in self.kept.items() if worker not in started]

    async def _of_pod_or_kept(self, pod: Mapping[str, Any], *, follow: bool) -> Lines:
        """Yields a pod's output. If the pod has been deleted since it was listed, yields the worker's kept output."""
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
        """Returns the `tail` for the kubelet. None means all lines, because the kubelet can't select by content."""
        return None if self.selection.by_content else self.selection.tail

    async def _tail(self, lines: Lines) -> Lines:
        """Yields the last `tail` lines, or all lines if `tail` is None."""
        last = deque[WorkerLine](maxlen=self.selection.tail)
        async with aclosing(lines):
            async for line in lines:
                if self.selection.tail is None:
                    yield line
                else:
                    last.append(line)
        for line in last:
            yield line

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Reads parts of several logs at once."""
        return await self.output.transport.together(parts)

    def _merged(self, streams: Sequence[Lines]) -> Iterator[Lines]:
        if len(streams) > MAX_MERGED:
            self.observer.too_many(len(streams))
        for first in range(0, len(streams), MAX_MERGED):
            yield merged(streams[first : first + MAX_MERGED], self.together)

    async def _read(
        self, container: Container, *, previous: bool, follow: bool = False, tail: int | None = None, after: float = 0.0
    ) -> Lines:
        """Yields the lines of a container's log. Raises ClientErrors, such as InvalidRequest if there is no log."""
        at, since = 0.0, after or self.selection.since
        if not after and self.selection.attempt is not None:
            # To find an attempt's lines, the log must be read from its beginning.
            since = None
        options: dict[str, Any] = {"previous": previous, "follow": follow, "tail": tail, "since": since}
        async with aclosing(self.output.pod_log(container.pod, timestamps=True, **options)) as raws:
            async for raw in raws:
                stamp, text = stamped_line(raw)
                # A line without a timestamp continues the previous line.
                at = at if stamp is None else stamp
                yield WorkerLine(at, container.worker, text)

    def _begin(self, container: Container) -> _Place:
        return self._places.setdefault(container, _Place(Filter(self.selection, self.job)))

    def _read_on(self, merger: Merger[Container], pod: Mapping[str, Any]) -> None:
        """Starts to follow the pod's containers that aren't followed yet."""
        container, reading = container_of(pod), merger.sources
        if not has_started(pod) or container in reading:
            return
        if container.restarts > 0 and container not in self._places and container.before not in reading:
            # The previous container ran between two lists of the pods, or its log was last read before it ended.
            self._follow(merger, container.before, previous=True)
        if container not in self._places or runs(pod) or not self._places[container].time:
            # If the container is still running but its log ended, the log broke off.
            self._follow(merger, container, previous=False)

    def _follow(self, merger: Merger[Container], container: Container, *, previous: bool) -> None:
        merger.add(container, self._rest(container, replace(self._begin(container)), previous=previous))

    async def _rest(self, container: Container, place: _Place, *, previous: bool) -> Lines:
        lines = self._read(container, previous=previous, follow=not previous, after=place.time)
        try:
            async with aclosing(lines), aclosing(place.rest(lines)) as rest:
                async for line in rest:
                    yield line
        except (JobNotFound, InvalidRequest):
            # The pod is gone, or its container has no log yet. The next list of pods shows which is true.
            return

    async def _taken(self, merger: Merger[Container], seconds: float | None) -> Lines:
        """Yields lines for `seconds` or until soon after a log's end. None: until all logs have ended or are silent."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is not None or merger.sources:
            found = await merger.next(time.monotonic() + SILENT_SECONDS if deadline is None else deadline)
            if found is None:
                return
            container, line = found
            if isinstance(line, WorkerLine):
                place = self._places[container]
                place.pass_(line)
                if place.keep(line):
                    self._seen.add(container.worker)
                    yield line
            elif line.error is not None:
                raise line.error
            elif deadline is not None:
                # The job's status may change soon after a log's end, so the caller gets the chance to read it.
                deadline = min(deadline, time.monotonic() + POLL_SECONDS)

    def _patience(self, merger: Merger[Container]) -> float:
        workers = self.selection.workers
        wanted = len(workers) if workers is not None else max(1, self.job.status.workers.desired)
        return CALM_SECONDS if len(merger.sources) >= wanted else POLL_SECONDS

    async def _missed(self) -> list[Lines]:
        """Returns the kept output of workers whose pods couldn't be read, without lines that were already yielded."""
        if self._places or self.kept:
            # `tail` applies only to output that existed at the start.
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
    """Returns the lines of a kept log that an earlier version lacks. The earlier version may begin with older lines."""
    known = () if before is None else before.lines
    for gone in range(len(known)):
        if log.lines[: len(known) - gone] == known[gone:]:
            first = len(known) - gone
            return KeptLog(log.lines[first:], None if log.times is None else log.times[first:])
    return log


async def labelled(lines: Lines, *, several: bool) -> AsyncGenerator[str, None]:
    """Yields the lines' texts. With several workers, lines get labels, and each attempt's start appears once."""
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
    """Returns whether the job has several workers or may get them, so that lines need labels."""
    spec: Mapping[str, Any] = job.raw.get("spec") or {}
    if any(spec.get(name) for name in ("workerGroups", "elastic", "spares")):
        return True
    return spec.get("workers") not in (None, 1) or job.status.workers.desired > 1
