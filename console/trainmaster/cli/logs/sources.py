"""A worker's output is in the logs of its pod's containers, and in what the operator kept when the pods went.

Which containers a pod has logs of: `client.containers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainmaster.cli.logs.selection import Filter, Selection, picked
from trainmaster.cli.show import pod_trouble
from trainmaster.client import InvalidRequest, JobClient, JobNotFound, TrainingJob, worker_index
from trainmaster.client.containers import Container, containers_of
from trainmaster.client.merging import WorkerLine
from trainmaster_operator.api.kept_logs import KeptLog, stamped_line

Wanted = Callable[[WorkerLine], bool]


def waiting_sentence(worker: int, pod: Mapping[str, Any]) -> str:
    """Returns why a worker has no output yet."""
    return f"Worker {worker} has no output yet: pod {pod['metadata']['name']} is {pod_trouble(pod)}."


def container_lines(
    jobs: JobClient,
    container: Container,
    *,
    previous: bool = False,
    follow: bool = False,
    tail: int | None = None,
    since: float | None = None,
) -> Iterator[WorkerLine]:
    """Yields the log of a container. Raises ClientError: JobNotFound, InvalidRequest where there is no log."""
    time = 0.0
    for raw in jobs.pod_log(container.pod, follow=follow, tail=tail, previous=previous, timestamps=True, since=since):
        stamp, text = stamped_line(raw)
        # What has no time comes with the line before it.
        time = time if stamp is None else stamp
        yield WorkerLine(time, container.worker, text)


def kept_lines(worker: int, log: KeptLog) -> Iterator[WorkerLine]:
    """Yields what the operator kept of a worker's output."""
    times = log.times or [0] * len(log.lines)
    return (WorkerLine(time / 1_000, worker, text) for time, text in zip(times, log.lines, strict=True))


def of_pod(
    jobs: JobClient, job: TrainingJob, pod: Mapping[str, Any], selection: Selection, kept: KeptLog | None = None
) -> Iterator[WorkerLine]:
    """Yields what is wanted of the output of a worker whose pod is there, behind what was `kept` of earlier pods."""
    containers = containers_of(pod)
    # The kubelet cuts only what needs no reading.
    tail = None if selection.by_content or len(containers) > 1 else selection.tail
    since = None if selection.attempt is not None else selection.since
    streams = [
        (
            _there(jobs, container, previous=container is not containers[-1], tail=tail, since=since),
            Filter(selection, job),
        )
        for container in containers
    ]
    return ending(behind_kept(worker_index(pod), kept, streams, Filter(selection, job)), selection.tail)


def behind_kept(
    worker: int, kept: KeptLog | None, streams: Iterable[tuple[Iterator[WorkerLine], Wanted]], keep_kept: Wanted
) -> Iterator[WorkerLine]:
    """Yields what is wanted of the logs of a pod, and before it what was kept of the worker's earlier pods."""
    for lines, keep in streams:
        for line in lines:
            if kept is not None:
                # The operator keeps milliseconds.
                earlier = kept.before(line.text, round(line.time * 1_000))
                yield from picked(kept_lines(worker, earlier), keep_kept)
                kept = None
            if keep(line):
                yield line
    if kept is not None:
        yield from picked(kept_lines(worker, kept), keep_kept)


def of_kept(job: TrainingJob, worker: int, log: KeptLog, selection: Selection) -> Iterator[WorkerLine]:
    """Yields what is wanted of what the operator kept of a worker's output."""
    return ending(picked(kept_lines(worker, log), Filter(selection, job)), selection.tail)


def added(log: KeptLog, before: KeptLog | None) -> KeptLog:
    """Returns the lines that a kept log has more than before; of a long one the first lines have gone meanwhile."""
    known = () if before is None else before.lines
    for gone in range(len(known)):
        if log.lines[: len(known) - gone] == known[gone:]:
            first = len(known) - gone
            return KeptLog(log.lines[first:], None if log.times is None else log.times[first:])
    return log


def ending(lines: Iterator[WorkerLine], tail: int | None) -> Iterator[WorkerLine]:
    """Yields the last lines, or all of them."""
    return lines if tail is None else _last(lines, tail)


def _last(lines: Iterable[WorkerLine], tail: int) -> Iterator[WorkerLine]:
    # Read when it is asked for: streams are opened together.
    yield from deque(lines, maxlen=tail)


def _there(
    jobs: JobClient, container: Container, *, previous: bool, tail: int | None, since: float | None
) -> Iterator[WorkerLine]:
    try:
        yield from container_lines(jobs, container, previous=previous, tail=tail, since=since)
    except InvalidRequest:
        # The container before may have left no log, and this one may not have started.
        return
    except JobNotFound:
        # The pod has gone since it was listed.
        if not previous:
            raise
