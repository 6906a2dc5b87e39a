"""A worker's output is in the logs of its pod's containers, and in what the operator kept when the pods went.

The kubelet has the log of the container that runs, and of the one before it. Both are read, because an agent that
reports by exiting leaves what its ranks printed in the older one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainmaster.api.kept_logs import KeptLog
from trainmaster.api.stamped_lines import stamped_line
from trainmaster.cli.logs.lines import Line
from trainmaster.cli.logs.selection import Filter, Selection, picked
from trainmaster.cli.show import pod_trouble
from trainmaster.client import InvalidRequest, JobClient, JobNotFound, TrainingJob, worker_index

Wanted = Callable[[Line], bool]


class Life(NamedTuple):
    """Life is one container of a worker: its log is one stream."""

    worker: int
    pod: str
    uid: str
    restarts: int

    @property
    def before(self) -> Life:
        """Returns the container that ran before it in its pod."""
        return self._replace(restarts=self.restarts - 1)


def life_of(pod: Mapping[str, Any]) -> Life:
    """Returns the container that a worker's pod has now."""
    metadata = pod["metadata"]
    restarts = (_worker_status(pod) or {}).get("restartCount")
    return Life(
        worker_index(pod), metadata["name"], str(metadata.get("uid")), restarts if isinstance(restarts, int) else 0
    )


def lives_of(pod: Mapping[str, Any]) -> list[Life]:
    """Returns the containers whose logs the kubelet may have, the older one first."""
    life = life_of(pod)
    # While the container waits for its next start, the log is the one of the container before.
    waits = "waiting" in ((_worker_status(pod) or {}).get("state") or {})
    return [life.before, life] if life.restarts > 0 and not waits else [life]


def has_started(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container has a log."""
    status = _worker_status(pod)
    if status is None:
        return bool((pod.get("status") or {}).get("phase") != "Pending")
    return "waiting" not in (status.get("state") or {}) or bool(status.get("restartCount"))


def runs(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container runs, and isn't to be stopped."""
    status = _worker_status(pod)
    return (
        status is not None and "running" in (status.get("state") or {}) and not pod["metadata"].get("deletionTimestamp")
    )


def waiting_sentence(worker: int, pod: Mapping[str, Any]) -> str:
    """Returns why a worker has no output yet."""
    return f"Worker {worker} has no output yet: pod {pod['metadata']['name']} is {pod_trouble(pod)}."


def container_lines(
    jobs: JobClient,
    life: Life,
    *,
    previous: bool = False,
    follow: bool = False,
    tail: int | None = None,
    since: float | None = None,
) -> Iterator[Line]:
    """Yields the log of a container. Raises ClientError: JobNotFound, InvalidRequest where there is no log."""
    time = 0.0
    for raw in jobs.pod_log(life.pod, follow=follow, tail=tail, previous=previous, timestamps=True, since=since):
        stamp, text = stamped_line(raw)
        # What has no time comes with the line before it.
        time = time if stamp is None else stamp
        yield Line(time, life.worker, text)


def kept_lines(worker: int, log: KeptLog) -> Iterator[Line]:
    """Yields what the operator kept of a worker's output."""
    times = log.times or [0] * len(log.lines)
    return (Line(time / 1_000, worker, text) for time, text in zip(times, log.lines, strict=True))


def kept_before(worker: int, log: KeptLog, first: Line) -> Iterator[Line]:
    """Yields what the operator kept of a worker's output from before the first line of a pod's log.

    What is kept has the pod's own lines at its end where the pod has outlived the end or the suspension of its job.
    They begin where the pod's log does: at the attempt that it begins with, or else at its time.
    """
    begins = first.separates
    for line in kept_lines(worker, log):
        if begins is not None:
            own = (line.separates or 0) >= begins
        elif log.times is not None:
            # The operator keeps milliseconds.
            own = round(line.time * 1_000) >= round(first.time * 1_000)
        else:
            own = line.text == first.text
        if own:
            return
        yield line


def of_pod(
    jobs: JobClient, job: TrainingJob, pod: Mapping[str, Any], selection: Selection, kept: KeptLog | None = None
) -> Iterator[Line]:
    """Yields what is wanted of the output of a worker whose pod is there, behind what was `kept` of earlier pods."""
    lives = lives_of(pod)
    # The kubelet cuts only what needs no reading.
    tail = None if selection.by_content or len(lives) > 1 else selection.tail
    since = None if selection.attempt is not None else selection.since
    streams = [
        (_there(jobs, life, previous=life is not lives[-1], tail=tail, since=since), Filter(selection, job))
        for life in lives
    ]
    return ending(behind_kept(worker_index(pod), kept, streams, Filter(selection, job)), selection.tail)


def behind_kept(
    worker: int, kept: KeptLog | None, streams: Iterable[tuple[Iterator[Line], Wanted]], keep_kept: Wanted
) -> Iterator[Line]:
    """Yields what is wanted of the logs of a pod, and before it what was kept of the worker's earlier pods."""
    for lines, keep in streams:
        for line in lines:
            if kept is not None:
                yield from picked(kept_before(worker, kept, line), keep_kept)
                kept = None
            if keep(line):
                yield line
    if kept is not None:
        yield from picked(kept_lines(worker, kept), keep_kept)


def of_kept(job: TrainingJob, worker: int, log: KeptLog, selection: Selection) -> Iterator[Line]:
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


def ending(lines: Iterator[Line], tail: int | None) -> Iterator[Line]:
    """Yields the last lines, or all of them."""
    return lines if tail is None else _last(lines, tail)


def _last(lines: Iterable[Line], tail: int) -> Iterator[Line]:
    # Read when it is asked for: streams are opened together.
    yield from deque(lines, maxlen=tail)


def _there(jobs: JobClient, life: Life, *, previous: bool, tail: int | None, since: float | None) -> Iterator[Line]:
    try:
        yield from container_lines(jobs, life, previous=previous, tail=tail, since=since)
    except InvalidRequest:
        # The container before may have left no log, and this one may not have started.
        return
    except JobNotFound:
        # The pod has gone since it was listed.
        if not previous:
            raise


def _worker_status(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == "worker"), None)
