"""The output of all workers is one stream, in which each line names its rank or its worker.

What there is comes first, and with `follow` what is printed from then on, from one container to the next until the job
has ended. A log that breaks off is read on from its last line, by the time that the kubelet has of it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from trainmaster.client.arrivals import Ended
from trainmaster.client.containers import Container, container_of, containers_of, has_started, runs
from trainmaster.client.errors import InvalidRequest, JobNotFound
from trainmaster.client.job import TrainingJob, worker_index
from trainmaster.client.merging import Merger, WorkerLine
from trainmaster.client.output import Output
from trainmaster.client.watching import read_job
from trainmaster_operator.api.kept_logs import KeptLog, stamped_line

# Seconds after which the pods are listed again: while output is missing, and while all workers are read.
POLL_SECONDS, CALM_SECONDS = 1.0, 15.0
# Pods that outlive their job keep their logs open: no line for so long (seconds) after the end is the end.
SILENT_SECONDS = 3.0
# Logs that are read at once; of more workers, the output of so many comes before that of the next.
MAX_MERGED = 128


@dataclass
class _Place:
    """_Place is how far a container's log was read: to a time, and how many lines have just that time."""

    tail: int | None
    time: float = 0.0
    lines: int = 0

    def passed(self, time: float) -> None:
        """Moves on behind a line."""
        if time > self.time:
            self.time, self.lines = time, 0
        self.lines += time == self.time


@dataclass
class AllWorkers:
    """AllWorkers reads the output of one job; `tail` is how many of each worker's last lines it begins with.

    `most` is how many of the workers `output` knows, where these aren't all.
    """

    output: Output
    job: TrainingJob
    tail: int | None
    most: float = math.inf
    _places: dict[Container, _Place] = field(default_factory=dict, init=False)
    _kept: dict[int, KeptLog] = field(default_factory=dict, init=False)

    async def text(self, *, follow: bool) -> AsyncGenerator[str, None]:
        """Yields the lines, labelled where there may be several workers. Raises ClientError."""
        several = not _alone(self.job)
        newest = 0
        async with aclosing(self.lines(follow=follow)) as lines:
            async for line in lines:
                begins = line.separates
                if not several or line.label:
                    yield line.text
                elif begins is None:
                    yield f"[worker {line.worker}] {line.text}"
                elif begins > newest:
                    # It stands in the log of each worker.
                    newest = begins
                    yield line.text

    def lines(self, *, follow: bool) -> AsyncGenerator[WorkerLine, None]:
        """Yields the lines as they are, by time. Raises ClientError."""
        return self._followed() if follow and not self.job.finished else self._there()

    async def _there(self) -> AsyncGenerator[WorkerLine, None]:
        """Yields what there is: from the pods, and what was kept of those that are gone."""
        name = self.job.name
        pods = {worker_index(pod): pod for pod in await self.output.pods(name) if has_started(pod)}
        kept = await (self.output.kept_logs_or_none(name) if pods else self.output.kept_logs(name))
        streams = [self._of_pod(pod, kept.get(worker)) for worker, pod in pods.items()]
        streams += [_of_kept(worker, log, self.tail) for worker, log in kept.items() if worker not in pods]
        async with aclosing(self._merged(streams)) as lines:
            async for line in lines:
                yield line

    async def _merged(self, streams: Sequence[AsyncGenerator[WorkerLine, None]]) -> AsyncGenerator[WorkerLine, None]:
        for first in range(0, len(streams), MAX_MERGED):
            merger = Merger(self.output.transport.readers(), follow=False)
            try:
                for place, stream in enumerate(streams[first : first + MAX_MERGED]):
                    merger.add(place, stream)
                while merger.sources:
                    if line := _line(await merger.next()):
                        yield line
            finally:
                await merger.close()

    async def _of_pod(self, pod: Mapping[str, Any], kept: KeptLog | None) -> AsyncGenerator[WorkerLine, None]:
        """Yields a worker's output, as it was kept when its pod has gone since it was listed."""
        worker, found = worker_index(pod), False
        lines = _behind_kept(worker, kept, self._of_containers(pod))
        last = deque[WorkerLine](maxlen=self.tail)
        try:
            async with aclosing(lines):
                async for line in lines:
                    found = True
                    if self.tail is None:
                        yield line
                    else:
                        last.append(line)
        except JobNotFound:
            log = None if found else (await self.output.kept_logs_or_none(self.job.name)).get(worker)
            if log is not None:
                last.extend(_kept_lines(worker, log, self.tail))
        for line in last:
            yield line

    async def _of_containers(self, pod: Mapping[str, Any]) -> AsyncGenerator[WorkerLine, None]:
        containers = containers_of(pod)
        # The kubelet cuts the log of one container.
        place = _Place(self.tail if len(containers) == 1 else None)
        for container in containers:
            previous = container is not containers[-1]
            async with aclosing(self._read(container, replace(place), previous=previous)) as lines:
                async for line in lines:
                    yield line

    async def _followed(self) -> AsyncGenerator[WorkerLine, None]:
        """Yields what there is and what comes, until the job has ended."""
        merger = Merger(self.output.transport.readers(), follow=True)
        job, tail = self.job, self.tail
        # Of earlier pods, what was kept comes before the first line of the one that is there.
        self._kept = await self.output.kept_logs_or_none(job.name) if tail is None else {}
        try:
            while True:
                for pod in await self.output.pods(job.name):
                    self._read_on(merger, pod, tail)
                # What starts later is read from its beginning.
                tail = None
                calm = len(merger.sources) >= min(self.most, max(1, job.status.workers.desired))
                deadline = time.monotonic() + (CALM_SECONDS if calm else POLL_SECONDS)
                while merger.sources if job.finished else time.monotonic() < deadline:
                    found = await merger.next(time.monotonic() + SILENT_SECONDS if job.finished else deadline)
                    if found is None:
                        break
                    if line := _line(found):
                        yield line
                    else:
                        # The job's status follows within moments.
                        deadline = min(deadline, time.monotonic() + POLL_SECONDS)
                if job.finished:
                    break
                job = await self._reread()
        finally:
            await merger.close()
        seen = {container.worker for container, place in self._places.items() if place.time}
        tail = None if self._places else self.tail
        kept = (await self.output.kept_logs_or_none(job.name)).items()
        rest = [line for worker, log in kept if worker not in seen for line in _kept_lines(worker, log, tail)]
        for line in sorted(rest, key=lambda line: line.time):
            yield line

    def _read_on(self, merger: Merger, pod: Mapping[str, Any], tail: int | None) -> None:
        """Starts to read the pod's containers, those that aren't read."""
        container, before = container_of(pod), containers_of(pod)[0]
        if not has_started(pod) or container in merger.sources:
            return
        is_new = container not in self._places
        if before != container and is_new and before not in merger.sources and tail is None:
            # It ran between two looks, or ended behind the last line that was read of it.
            place = self._places.setdefault(before, _Place(None))
            merger.add(before, self._read(before, place, previous=True, gone_is_the_end=True))
        known = container in self._places
        place = self._places.setdefault(container, _Place(tail))
        if not known or runs(pod) or not place.time:
            # One that was read to its end and still runs broke off, or is to be followed from there.
            lines = self._read(container, place, follow=True, gone_is_the_end=True)
            kept = self._kept.pop(container.worker, None)
            merger.add(container, lines if kept is None else _behind_kept(container.worker, kept, lines))

    async def _read(
        self,
        container: Container,
        place: _Place,
        *,
        previous: bool = False,
        follow: bool = False,
        gone_is_the_end: bool = False,
    ) -> AsyncGenerator[WorkerLine, None]:
        """Yields the log of a container from a place on, which moves with it."""
        since, behind = place.time, place.lines
        at, caught_up = since, not since
        raws = self.output.pod_log(
            container.pod,
            follow=follow,
            tail=None if since else place.tail,
            previous=previous,
            timestamps=True,
            since=since or None,
        )
        try:
            async with aclosing(raws):
                async for raw in raws:
                    stamp, text = stamped_line(raw)
                    # What has no time comes with the line before it.
                    at = at if stamp is None else stamp
                    if not caught_up:
                        # Whole seconds are asked for, so lines that are known come again.
                        if at < since or (at == since and behind):
                            behind -= at == since
                            continue
                        caught_up = True
                    place.passed(at)
                    yield WorkerLine(at, container.worker, text)
        except InvalidRequest:
            # The container before may have left no log, and this one may not have started.
            return
        except JobNotFound:
            # The pod has gone since it was listed.
            if not (previous or gone_is_the_end):
                raise

    async def _reread(self) -> TrainingJob:
        try:
            job = await read_job(self.output.transport, self.output.namespace, self.job.name)
        except JobNotFound as error:
            raise JobNotFound(f"Job {self.job.name} was deleted while its output was followed.") from error
        if job.uid != self.job.uid:
            raise JobNotFound(
                f"Job {self.job.name} was deleted while its output was followed; another has its name now."
            )
        return job


async def _behind_kept(
    worker: int, kept: KeptLog | None, lines: AsyncGenerator[WorkerLine, None]
) -> AsyncGenerator[WorkerLine, None]:
    """Yields the lines of a pod, and before them what was kept of the worker's earlier pods."""
    async with aclosing(lines):
        async for line in lines:
            if kept is not None:
                for earlier in _kept_lines(worker, kept.before(line.text, round(line.time * 1_000)), None):
                    yield earlier
                kept = None
            yield line
    for earlier in _kept_lines(worker, kept or KeptLog(), None):
        yield earlier


async def _of_kept(worker: int, log: KeptLog, tail: int | None) -> AsyncGenerator[WorkerLine, None]:
    for line in _kept_lines(worker, log, tail):
        yield line


def _kept_lines(worker: int, log: KeptLog, tail: int | None) -> list[WorkerLine]:
    first = 0 if tail is None else max(0, len(log.lines) - tail)
    times = log.times or [0] * len(log.lines)
    return [WorkerLine(time / 1_000, worker, text) for time, text in zip(times[first:], log.lines[first:], strict=True)]


def _line(found: WorkerLine | Ended | None) -> WorkerLine | None:
    """Returns what is a line. Raises what ended the reading of a log."""
    if isinstance(found, Ended):
        if found.error is not None:
            raise found.error
        return None
    return found


def _alone(job: TrainingJob) -> bool:
    """Returns whether the job has one worker and never more: no line needs its author."""
    spec: Mapping[str, Any] = job.raw.get("spec") or {}
    more = any(spec.get(name) for name in ("workerGroups", "elastic", "spares"))
    return not more and spec.get("workers") in (None, 1) and job.status.workers.desired <= 1
