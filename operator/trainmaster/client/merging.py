"""The lines of several workers become one stream in the order of time, in bounded memory.

The oldest line that is known comes first. A log without a known line may still bring an older one: logs that are there
are waited for, and those that are followed only for a moment, because a rank may print nothing for hours.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from trainmaster.client.arrivals import Arrival, Ended, Readers

# A log that is followed is waited for so long (seconds): from when it was opened, and from when it had no more lines.
OPEN_SECONDS = 1.0
HOLD_SECONDS = 0.2


class WorkerLine(NamedTuple):
    """WorkerLine is a line of a worker's output; `time` in seconds since the epoch, 0 where nobody knows it."""

    time: float
    worker: int
    text: str


class _Waiting(NamedTuple):
    line: WorkerLine
    came: float


@dataclass
class _Log:
    """_Log is what was read ahead of one log."""

    # When it was opened or its last line was taken, and for how long (seconds) its next line is waited for from then.
    empty_since: float
    hold: float
    lines: deque[_Waiting] = field(default_factory=deque)
    ended: Ended | None = None


class Merger:
    """Merger merges logs; more may be added at any time."""

    def __init__(self, readers: Readers[WorkerLine], *, follow: bool) -> None:
        self._readers = readers
        self._follow = follow
        self._logs: dict[Hashable, _Log] = {}
        # (time of its first line, order, log) of each log that has lines.
        self._heads: list[tuple[float, int, Hashable]] = []
        self._order = count()
        # Logs of which nothing is left.
        self._over: deque[Ended] = deque()

    @property
    def sources(self) -> set[Hashable]:
        """Returns the logs that are read, or of which something is left."""
        return set(self._logs)

    def add(self, source: Hashable, stream: AsyncGenerator[WorkerLine, None]) -> None:
        """Adds a log."""
        self._logs[source] = _Log(time.monotonic(), OPEN_SECONDS if self._follow else math.inf)
        self._readers.add(source, stream)

    async def next(self, deadline: float = math.inf) -> WorkerLine | Ended | None:
        """Returns the next line by time, or that a log has ended; None at the deadline (of time.monotonic)."""
        while True:
            if self._follow and len(self._heads) < len(self._logs):
                # Who reads slowly mustn't mistake a line that waits in the queue for silence.
                self._arrived(await self._readers.take(0))
            if self._over:
                return self._over.popleft()
            now = time.monotonic()
            held = self._held(now)
            if held <= 0:
                return self._pop(now)
            wait = min(held, deadline - now)
            if wait <= 0:
                return None
            self._arrived(await self._readers.take(None if math.isinf(wait) else wait))

    async def close(self) -> None:
        """Ends the reading."""
        await self._readers.close()

    def _held(self, now: float) -> float:
        """Returns for how long the oldest line is held back for logs that may bring an older one."""
        if not self._heads:
            return math.inf
        came = self._logs[self._heads[0][2]].lines[0].came
        empty = [log for log in self._logs.values() if not log.lines]
        return max((max(log.empty_since + log.hold, came + HOLD_SECONDS) for log in empty), default=now) - now

    def _arrived(self, arrivals: list[Arrival[WorkerLine]]) -> None:
        for source, item, came in arrivals:
            log = self._logs[source]
            if isinstance(item, Ended):
                log.ended = item
                if not log.lines:
                    self._end(source, item)
                continue
            log.lines.append(_Waiting(item, came))
            if len(log.lines) == 1:
                self._push(source, log)

    def _pop(self, now: float) -> WorkerLine:
        _, _, source = heapq.heappop(self._heads)
        log = self._logs[source]
        line, _ = log.lines.popleft()
        self._readers.passed(source)
        if log.lines:
            self._push(source, log)
        elif log.ended is not None:
            self._end(source, log.ended)
        else:
            log.empty_since, log.hold = now, HOLD_SECONDS if self._follow else math.inf
        return line

    def _push(self, source: Hashable, log: _Log) -> None:
        heapq.heappush(self._heads, (log.lines[0].line.time, next(self._order), source))

    def _end(self, source: Hashable, ended: Ended) -> None:
        del self._logs[source]
        self._over.append(ended)
