"""The output of all ranks is one live answer, a few lines in each event.

A viewer who reads slowly makes the reading wait, and then the kubelets: nothing is kept for them here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from trainmaster.client.all_workers import AllWorkers
from trainmaster.client.errors import NoCluster
from trainmaster.client.job import TrainingJob, has_index, worker_index
from trainmaster.client.merging import WorkerLine
from trainmaster.client.output import Output
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster.dashboard.streams import PING_SECONDS, EventStream, encoded
from trainmaster.dashboard.viewers import Viewer
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping, mappings, number, whole

# Bytes of an event at most, those of a line beside its text, and seconds that an event's first line waits for others.
MOST_AHEAD, LINE_BYTES, BATCH_SECONDS = 131_072, 200, 0.1
# Workers whose output one view has.
MOST_WORKERS = 32
# Lines of each worker that are shown of what was kept.
MOST_KEPT_LINES = 20_000
# Characters of a line: a page shows no more.
MOST_CHARACTERS = 10_000


@dataclass
class Chosen:
    """Chosen says which lines are wanted, of lines that come in their order."""

    worker: int | None = None
    rank: int | None = None
    attempt: int | None = None
    # By whose failures the attempt is known of a log whose beginning is gone.
    job: TrainingJob | None = None
    _attempts: dict[int, int] = field(default_factory=dict)

    def __call__(self, line: WorkerLine) -> bool:
        """Returns whether the next line is wanted."""
        begins = line.separates
        if begins is not None or line.worker not in self._attempts:
            self._attempts[line.worker] = begins or _attempt_at(self.job, line.time)
        return (
            self.worker in (None, line.worker)
            and self.rank in (None, line.rank)
            and self.attempt in (None, self._attempts[line.worker])
        )


def _attempt_at(job: TrainingJob | None, time: float) -> int:
    """Returns which attempt there was at a time, as far as the newest failures say it."""
    failures = () if job is None else job.status.failures
    return max((each.attempt for each in failures if _seconds(each.failed_at) < time), default=0) + 1


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return math.inf


@dataclass(frozen=True)
class _Window(Output):
    """_Window is the output of a few of a job's workers, of which only what reading logs needs is kept."""

    transport: ViewerTransport
    first: int = 0
    count: int = 1

    async def pods(self, name: str) -> list[Mapping[str, Any]]:
        """Returns the pods of these workers."""
        found: list[Mapping[str, Any]] = []

        def take(pod: Mapping[str, Any]) -> None:
            if has_index(pod) and self._has(worker_index(pod)) and len(found) < 2 * self.count:
                found.append(pod)

        path = f"/api/v1/namespaces/{self.namespace}/pods"
        await self.transport.listed(path, {"labelSelector": f"{JOB_NAME_LABEL}={name}"}, take)
        return sorted(found, key=worker_index)

    async def kept_logs(self, name: str) -> dict[int, KeptLog]:
        """Returns what was kept of these workers' output."""

        async def read() -> dict[int, KeptLog]:
            kept = await Output.kept_logs(self, name)
            return {worker: _last(log) for worker, log in kept.items() if self._has(worker)}

        return await self.transport.party.heavy(read)

    def _has(self, worker: int) -> bool:
        return self.first <= worker < self.first + self.count


def _last(log: KeptLog) -> KeptLog:
    times = None if log.times is None else log.times[-MOST_KEPT_LINES:]
    return KeptLog(log.lines[-MOST_KEPT_LINES:], times, log.cut)


async def send_logs(
    stream: EventStream, viewer: Viewer, job: TrainingJob, chosen: Chosen, *, tail: int, follow: bool
) -> None:
    """Sends the lines, and with `follow` what comes until the job has ended. Raises ClientError."""
    chosen = replace(chosen, job=job)
    party = viewer.party
    workers = max(job.status.workers.desired, job.status.workers.created)
    wanted = 1 if chosen.worker is not None else max(1, workers)
    room = party.all.logs.room(party.name)
    # Another view of the party finds room too.
    first, count = chosen.worker or 0, min(wanted, MOST_WORKERS, max(1, room // 2))
    if room < 1:
        raise NoCluster("You, or all viewers together, read as many logs as can be read at once; close some.")
    if count < wanted:
        said = f"first {count} of {wanted} workers (choose another one)"
        if chosen.rank is not None:
            first, count = _worker_of(job, chosen.rank), 1
            said = f"worker {first} of {wanted} (choose another one)"
        await stream.send(encoded("note", {"sentence": said}))
    window = _Window(viewer.transport, job.namespace, first, count)
    # Of a rank or an attempt only who reads a log can pick the last lines.
    by_content = chosen.rank is not None or chosen.attempt is not None
    with party.all.logs.taking(party.name, count):
        every = AllWorkers(window, job, None if by_content else tail, most=count)
        await _send(stream, every.lines(follow=follow), chosen)


def _worker_of(job: TrainingJob, rank: int) -> int:
    """Returns which worker has a rank, where each worker has as many."""
    spec = mapping(job.raw.get("spec"))
    each = whole(spec.get("processesPerWorker")) or whole(mapping(spec.get("resources")).get("gpus")) or 1
    place, order = rank // each, job.status.worker_order
    return order[place] if place < len(order) else place


async def send_recorded(
    stream: EventStream, viewer: Viewer, namespace: str, name: str, uid: str | None, chosen: Chosen, *, tail: int
) -> None:
    """Sends what the history has of a job that is gone. Raises ClientError."""
    history = viewer.history
    assert history is not None
    tail = min(tail, MOST_KEPT_LINES)

    async def read() -> Mapping[str, Any]:
        return await history.logs(namespace, name, uid=uid, worker=chosen.worker, tail=tail)

    await _send(stream, _recorded_lines(await viewer.party.heavy(read)), chosen)


async def _recorded_lines(found: Mapping[str, Any]) -> AsyncGenerator[WorkerLine, None]:
    lines = []
    for log in mappings(found.get("items")):
        texts, times = log.get("lines") or [], log.get("times") or []
        worker = whole(log.get("worker")) or 0
        for place, text in enumerate(texts):
            at = number(times[place]) if place < len(times) else None
            lines.append(WorkerLine((at or 0.0) / 1_000, worker, str(text)))
    for line in sorted(lines, key=lambda line: line.time):
        yield line


async def _send(stream: EventStream, lines: AsyncGenerator[WorkerLine, None], chosen: Chosen) -> None:
    queue: asyncio.Queue[WorkerLine | None] = asyncio.Queue()
    # Bytes that were read and not sent; the reading waits while they are too many.
    size, taken = 0, asyncio.Event()

    async def read() -> None:
        nonlocal size
        async with aclosing(lines):
            async for line in lines:
                if chosen(line):
                    while size > MOST_AHEAD:
                        taken.clear()
                        await taken.wait()
                    size += len(line.text) + LINE_BYTES
                    queue.put_nowait(line)

    reading = asyncio.ensure_future(read())
    # The end of the reading, also by an error, wakes the sending.
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
