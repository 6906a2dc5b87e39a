"""Sends the output of all ranks as one live answer. Each event contains a few lines.

If a viewer reads slowly, the dashboard reads from the kubelets slowly, because it buffers few lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count, repeat
from typing import Any, TypeVar

from trainmaster.client.errors import NoCluster
from trainmaster.client.job import TrainingJob, has_index, worker_index
from trainmaster.client.log_reader import Filter, LogReader, Selection
from trainmaster.client.output import Output
from trainmaster.client.time_order import Lines, WorkerLine
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster.dashboard.sessions import Viewer
from trainmaster.dashboard.streams import PING_SECONDS, EventStream, encoded
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping, whole

T = TypeVar("T")

# Maximum bytes of an event, bytes of a line besides its text, and seconds that an event's first line waits for
# further lines.
MOST_AHEAD, LINE_BYTES, BATCH_SECONDS = 131_072, 200, 0.1
# Maximum number of workers in one view.
MOST_WORKERS = 32
# Maximum number of lines to show of each kept log.
MOST_KEPT_LINES = 20_000
# Maximum characters of a line on a page.
MOST_CHARACTERS = 10_000


class _BoundedOutput(Output):
    """_BoundedOutput reads only the pods and kept logs of the selected workers."""

    transport: ViewerTransport

    def __init__(self, transport: ViewerTransport, namespace: str, workers: frozenset[int]) -> None:
        super().__init__(transport, namespace)
        self.workers = workers

    async def pods(self, name: str) -> list[Mapping[str, Any]]:
        """Returns the selected workers' pods."""
        left = count(2 * len(self.workers), -1)

        def kept(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return pod if has_index(pod) and worker_index(pod) in self.workers and next(left) > 0 else None

        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found, _ = await self.transport.listed(path, {"labelSelector": f"{JOB_NAME_LABEL}={name}"}, kept)
        return sorted(found, key=worker_index)

    async def kept_logs(self, name: str) -> dict[int, KeptLog]:
        """Returns the last kept lines of the selected workers' output."""
        kept = await self.transport.tenant.heavy(lambda: Output.kept_logs(self, name))
        return {worker: _last(log) for worker, log in kept.items() if worker in self.workers}


class _PageReader(LogReader):
    """_PageReader reads all logs at once, so that a stuck kubelet doesn't delay the tenant's other requests."""

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return list(await asyncio.gather(*parts))


def _last(log: KeptLog) -> KeptLog:
    times = None if log.times is None else log.times[-MOST_KEPT_LINES:]
    return KeptLog(log.lines[-MOST_KEPT_LINES:], times, log.cut)


async def send_logs(stream: EventStream, viewer: Viewer, job: TrainingJob, wanted: Selection, *, follow: bool) -> None:
    """Sends the selected lines, and with `follow` later lines until the job has ended. Raises ClientError."""
    tenant, (rank,) = viewer.tenant, wanted.ranks or (None,)
    all_workers = range(max(1, job.status.workers.desired, job.status.workers.created))
    workers = sorted(wanted.workers or all_workers)
    room = tenant.all.logs.room(tenant.name)
    if room < 1:
        raise NoCluster("You, or all viewers together, read as many logs as can be read at once; close some.")
    # Half of the logs that the tenant may still open are left for another page.
    most = min(len(workers), MOST_WORKERS, max(1, room // 2))
    if most < len(workers):
        sentence = f"first {most} of {len(workers)} workers (choose another one)"
        if rank is not None:
            worker, most = _worker_of(job, rank), 1
            sentence = f"worker {worker} of {len(workers)} (choose another one)"
            workers = [worker]
        await stream.send(encoded("note", {"sentence": sentence}))
    read = frozenset(workers[:most])
    # All lines of a rank or an attempt are sent: to find the last ones, the whole log would have to be read first.
    tail = None if wanted.by_content else wanted.tail
    output = _BoundedOutput(viewer.transport, job.namespace, read)
    with tenant.all.logs.taking(tenant.name, most):
        reader = _PageReader(output, job, replace(wanted, workers=read, tail=tail))
        await _send(stream, reader.lines(follow=follow))


def _worker_of(job: TrainingJob, rank: int) -> int:
    """Returns a rank's worker, assuming that all workers have the same number of ranks."""
    spec = mapping(job.raw.get("spec"))
    each = whole(spec.get("processesPerWorker")) or whole(mapping(spec.get("resources")).get("gpus")) or 1
    place, order = rank // each, job.status.worker_order
    return order[place] if place < len(order) else place


async def send_recorded(
    stream: EventStream, viewer: Viewer, namespace: str, name: str, uid: str | None, wanted: Selection
) -> None:
    """Sends the selected lines of a deleted job from the history. Raises ClientError."""
    history = viewer.history
    assert history is not None
    (worker,), tail = wanted.workers or (None,), min(wanted.tail or 0, MOST_KEPT_LINES)
    found = await viewer.tenant.heavy(lambda: history.logs(namespace, name, uid=uid, worker=worker, tail=tail))
    await _send(stream, _recorded_lines(found, wanted))


async def _recorded_lines(found: Mapping[str, Any], wanted: Selection) -> Lines:
    lines: list[WorkerLine] = []
    for log in found["items"]:
        timed = zip(log["times"] or repeat(0.0), log["lines"], strict=False)
        own = (WorkerLine((time or 0.0) / 1_000, log["worker"], text) for time, text in timed)
        lines += filter(Filter(wanted, None), own)
    for line in sorted(lines, key=lambda line: line.time):
        yield line


async def _send(stream: EventStream, lines: Lines) -> None:
    queue: asyncio.Queue[WorkerLine | None] = asyncio.Queue()
    # Bytes that were read but not sent yet. If there are too many, reading pauses.
    size, taken = 0, asyncio.Event()

    async def read() -> None:
        nonlocal size
        async with aclosing(lines):
            async for line in lines:
                while size > MOST_AHEAD:
                    taken.clear()
                    await taken.wait()
                size += len(line.text) + LINE_BYTES
                queue.put_nowait(line)

    reading = asyncio.ensure_future(read())
    # This wakes the sender when reading ends, even with an error.
    reading.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    first = await queue.get()
            except TimeoutError:
                await stream.ping()
                continue
            await asyncio.sleep(0 if first is None else BATCH_SECONDS)
            batch = [first, *(queue.get_nowait() for _ in range(queue.qsize()))]
            found = [_row(line) for line in batch if line is not None]
            if found:
                await stream.send(encoded("lines", found))
            size = 0
            taken.set()
            if None in batch:
                break
        reading.result()
        await stream.send(encoded("end", {}))
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _row(line: WorkerLine) -> dict[str, Any]:
    text = line.text[len(line.label) :][:MOST_CHARACTERS]
    return {"at": line.time or None, "worker": line.worker, "rank": line.rank, "text": text}
