"""The lines of several workers become one stream in the order of time.

The oldest line that is known comes first. A log without a known line may still bring an older one: logs that are there
are waited for, and those that are followed only for a moment, because a rank may print nothing for hours.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from trainmaster.client.arrivals import Ended, Readers
from trainmaster_operator.api.kept_logs import marked_attempt

# A log that is followed is waited for so long (seconds): from when it was opened, and from when it had no more lines.
OPEN_SECONDS = 1.0
HOLD_SECONDS = 0.2
# What agents print: whose a line is, a rank's or the launcher's.
_RANK = re.compile(r"\[rank (\d{1,9})\]: ?")
_WORKER = re.compile(r"\[worker \d{1,9}\]: ?")


class WorkerLine(NamedTuple):
    """WorkerLine is a line of a worker's output; `time` in seconds since the epoch, 0 where nobody knows it.

    It says whose it is: agents print `[rank 3]: ` before it, and where an attempt begins.
    """

    time: float
    worker: int
    text: str

    @property
    def separates(self) -> int | None:
        """Returns the attempt that begins behind this line; None for any other line."""
        return marked_attempt(self.text)

    @property
    def rank(self) -> int | None:
        """Returns the rank that printed this; None where it was the launcher or the agent."""
        match = _RANK.match(self.text)
        return int(match[1]) if match else None

    @property
    def label(self) -> str:
        """Returns how the line begins, by which its author is known: `[rank 3]: `, or nothing."""
        match = _RANK.match(self.text) or _WORKER.match(self.text)
        return match[0] if match else ""


Source = TypeVar("Source", bound=Hashable)
L = TypeVar("L", bound=WorkerLine)


@dataclass
class _Log(Generic[L]):
    """_Log is what has come of one log and wasn't taken yet: lines, each with when it came."""

    # Until then its next line is waited for, where it has none.
    until: float
    lines: deque[tuple[L, float]] = field(default_factory=deque)
    ended: Ended | None = None


class Merge(Generic[Source, L]):
    """Merge puts what has come in order. It waits for nothing: `now` is its caller's time.monotonic.

    A log is waited for `open_seconds` from when it was opened, and `hold_seconds` from when it had no more lines.
    """

    def __init__(self, open_seconds: float, hold_seconds: float) -> None:
        self._open_seconds = open_seconds
        self._hold_seconds = hold_seconds
        self._logs: dict[Source, _Log[L]] = {}
        # (time of its first line, order, log) of each log that has lines.
        self._heads: list[tuple[float, int, Source]] = []
        self._order = count()
        # Logs of which nothing is left.
        self._over: deque[tuple[Source, Ended]] = deque()

    @property
    def sources(self) -> set[Source]:
        """Returns the logs that are read, or of which something is left."""
        return set(self._logs)

    @property
    def is_complete(self) -> bool:
        """Returns whether a line of every log is known, so that none has to be waited for."""
        return len(self._heads) == len(self._logs)

    def open(self, source: Source, now: float) -> None:
        """Adds a log."""
        self._logs[source] = _Log(now + self._open_seconds)

    def put(self, source: Source, line: L, came: float) -> bool:
        """Adds a log's next line, which came at that moment; returns whether it is the only one that waits."""
        log = self._logs[source]
        log.lines.append((line, came))
        if len(log.lines) > 1:
            return False
        self._push(source, log)
        return True

    def end(self, source: Source, ended: Ended) -> bool:
        """Says that a log has no more lines; returns whether none waits either."""
        log = self._logs[source]
        log.ended = ended
        if log.lines:
            return False
        self._finish(source, ended)
        return True

    def next(self, now: float) -> tuple[Source, L | Ended] | None:
        """Returns the next line by time, or that a log has ended; None while nothing can be taken."""
        if self._over:
            return self._over.popleft()
        if self.held(now) > 0:
            return None
        _, _, source = heapq.heappop(self._heads)
        log = self._logs[source]
        line, _ = log.lines.popleft()
        if log.lines:
            self._push(source, log)
        elif log.ended is not None:
            self._finish(source, log.ended)
        else:
            log.until = now + self._hold_seconds
        return source, line

    def held(self, now: float) -> float:
        """Returns for how long the oldest line is held back for logs that may bring an older one: inf without any."""
        if not self._heads:
            return math.inf
        if self.is_complete:
            return 0.0
        _, came = self._logs[self._heads[0][2]].lines[0]
        return max(came + self._hold_seconds, *(log.until for log in self._logs.values() if not log.lines)) - now

    def _push(self, source: Source, log: _Log[L]) -> None:
        heapq.heappush(self._heads, (log.lines[0][0].time, next(self._order), source))

    def _finish(self, source: Source, ended: Ended) -> None:
        del self._logs[source]
        self._over.append((source, ended))


class Merger:
    """Merger merges logs that readers read; more may be added at any time."""

    def __init__(self, readers: Readers[WorkerLine], *, follow: bool) -> None:
        self._readers = readers
        self._follow = follow
        seconds = (OPEN_SECONDS, HOLD_SECONDS) if follow else (math.inf, math.inf)
        self._merge: Merge[Any, WorkerLine] = Merge(*seconds)

    @property
    def sources(self) -> set[Hashable]:
        """Returns the logs that are read, or of which something is left."""
        return self._merge.sources

    def add(self, source: Hashable, stream: AsyncGenerator[WorkerLine, None]) -> None:
        """Adds a log."""
        self._merge.open(source, time.monotonic())
        self._readers.add(source, stream)

    async def next(self, deadline: float = math.inf) -> WorkerLine | Ended | None:
        """Returns the next line by time, or that a log has ended; None at the deadline (of time.monotonic)."""
        while True:
            if self._follow and not self._merge.is_complete:
                # Who reads slowly mustn't mistake a line that waits in the queue for silence.
                await self._take(0)
            now = time.monotonic()
            found = self._merge.next(now)
            if found is not None:
                source, item = found
                if not isinstance(item, Ended):
                    self._readers.passed(source)
                return item
            wait = min(self._merge.held(now), deadline - now)
            if wait <= 0:
                return None
            await self._take(None if math.isinf(wait) else wait)

    async def close(self) -> None:
        """Ends the reading."""
        await self._readers.close()

    async def _take(self, seconds: float | None) -> None:
        for source, item, came in await self._readers.take(seconds):
            if isinstance(item, Ended):
                self._merge.end(source, item)
            else:
                self._merge.put(source, item, came)
