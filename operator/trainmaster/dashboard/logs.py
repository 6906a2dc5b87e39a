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
from trainmaster.client.job import TrainingJob
from trainmaster.client.merging import WorkerLine
from trainmaster.client.output import Output
from trainmaster.dashboard.streams import PING_SECONDS, EventStream, encoded
from trainmaster.dashboard.viewers import Viewer
from trainmaster.wire.values import mappings, number, whole

# Lines of an event at most, and seconds that its first one waits for others.
MOST_LINES, BATCH_SECONDS = 500, 0.1
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


async def send_logs(
    stream: EventStream, viewer: Viewer, job: TrainingJob, chosen: Chosen, *, tail: int, follow: bool
) -> None:
    """Sends the lines, and with `follow` what comes until the job has ended. Raises ClientError."""
    chosen = replace(chosen, job=job)
    # Of a rank or an attempt only who reads a log can pick the last lines.
    by_content = chosen.rank is not None or chosen.attempt is not None
    every = AllWorkers(Output(viewer.transport, job.namespace), job, None if by_content else tail)
    await _send(stream, every.lines(follow=follow), chosen)


async def send_recorded(
    stream: EventStream, viewer: Viewer, namespace: str, name: str, uid: str | None, chosen: Chosen, *, tail: int
) -> None:
    """Sends what the history has of a job that is gone. Raises ClientError."""
    assert viewer.history is not None
    found = await viewer.history.logs(namespace, name, uid=uid, worker=chosen.worker, tail=tail)
    await _send(stream, _recorded_lines(found), chosen)


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
    room = asyncio.Semaphore(MOST_LINES)

    async def read() -> None:
        async with aclosing(lines):
            async for line in lines:
                if chosen(line):
                    await room.acquire()
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
            for _ in found:
                room.release()
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
