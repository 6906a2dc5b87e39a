"""Merges the lines of several workers into one stream, sorted by time.

`merged` reads existing logs. It keeps one line of each log in memory, and the other lines wait in the connections.
`Merger` reads logs that are being followed. A rank may print nothing for hours, so a line isn't held back until every
log has a line, but only for a moment, in which an older line of another log may arrive. If the consumer is slow, the
readers wait, and so do the kubelets.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from trainmaster_operator.api.kept_logs import marked_attempt

# How long a silent log holds back other logs' lines (seconds).
HOLD_SECONDS = 0.2
# Maximum number of characters read ahead of a slow consumer in all logs together, and the number that each log may
# always read ahead.
MAX_AHEAD, MIN_AHEAD = 16_000_000, 64_000
# The labels that agents put before each line of a rank and before each line of the launcher.
_RANK = re.compile(r"\[rank (\d{1,9})\]: ?")
_WORKER = re.compile(r"\[worker \d{1,9}\]: ?")


class WorkerLine(NamedTuple):
    """WorkerLine is a line of output. Agents put `[rank 3]: ` before ranks' lines. An unknown `time` is 0."""

    time: float
    worker: int
    text: str

    @property
    def separates(self) -> int | None:
        """Returns the attempt that begins after this line, or None."""
        return marked_attempt(self.text)

    @property
    def rank(self) -> int | None:
        """Returns the rank that printed this line, or None for the launcher and the agent."""
        match = _RANK.match(self.text)
        return int(match[1]) if match else None

    @property
    def label(self) -> str:
        """Returns the line's label, such as `[rank 3]: `, or an empty text."""
        match = _RANK.match(self.text) or _WORKER.match(self.text)
        return match[0] if match else ""


class Ended(NamedTuple):
    """Ended marks the end of a stream. It contains the error, if an error ended the stream."""

    error: Exception | None = None


Lines = AsyncGenerator[WorkerLine, None]
Source = TypeVar("Source", bound=Hashable)
# A line or the end of a log, with the time of arrival (time.monotonic).
Arrival = tuple[Source, WorkerLine | Ended, float]
_Head = WorkerLine | Exception | None


async def merged(
    streams: Sequence[Lines], together: Callable[[list[Coroutine[Any, Any, _Head]]], Awaitable[list[_Head]]]
) -> Lines:
    """Yields all lines, sorted by time, then by stream. `together` (a transport's) opens the streams at once."""
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        heads = []
        for order, line in enumerate(await together([_first(stream) for stream in streams])):
            if isinstance(line, Exception):
                raise line
            if line is not None:
                heads.append((line.time, order, line))
        heapq.heapify(heads)
        while heads:
            _, order, line = heads[0]
            yield line
            following = await anext(streams[order], None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.time, order, following))


async def _first(stream: Lines) -> _Head:
    try:
        return await anext(stream, None)
    except Exception as error:
        return error


class Room(Protocol):
    """Room is the part of asyncio.Event's interface that a waiting reader needs."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    async def wait(self) -> object: ...


@dataclass
class _Log:
    """_Log contains the lines of one log that aren't consumed yet, each with its time of arrival."""

    # The log's reader waits here for a slow consumer.
    room: Room
    # Until this time, lines of other logs wait for the next line of this log.
    until: float
    lines: deque[tuple[WorkerLine, float]] = field(default_factory=deque)
    ended: Ended | None = None
    # Numbers of characters. Only the log's reader changes `read`, and only the consumer changes `consumed`.
    read: int = 0
    consumed: int = 0

    @property
    def ahead(self) -> int:
        return self.read - self.consumed


class Merger(ABC, Generic[Source]):
    """Merger follows logs and merges their lines. Further logs can be added at any time.

    Subclasses read each log in a separate thread or task.
    """

    # The type of event that a reader waits for while the consumer is slow, and the type of queue in which lines arrive.
    room: ClassVar[type[Room]]
    queue: ClassVar[type[Any]]

    def __init__(self, ahead: int = MAX_AHEAD, hold_seconds: float = HOLD_SECONDS) -> None:
        """`ahead` limits the characters read ahead in all logs together. Each log may always read MIN_AHEAD."""
        self._most_ahead = ahead
        self._hold_seconds = hold_seconds
        self._logs: dict[Source, _Log] = {}
        # For each log that has lines: the first line's time, a sequence number and the log.
        self._heads: list[tuple[float, int, Source]] = []
        self._order = count()
        # Logs that have ended and are completely consumed.
        self._over: deque[tuple[Source, Ended]] = deque()
        self._closed = False
        self._arrivals = self.queue()

    @property
    def sources(self) -> set[Source]:
        """Returns the logs that are being read or still have lines."""
        return set(self._logs)

    def add(self, source: Source, stream: Lines) -> None:
        """Adds a log. Other logs' lines don't wait for its first line, because its older lines were already read."""
        self._logs[source] = log = _Log(self.room(), time.monotonic())
        self._start(self._read(source, stream, log))

    async def next(self, deadline: float = math.inf) -> tuple[Source, WorkerLine | Ended] | None:
        """Returns the oldest of the logs' next lines, or a log's end, or None at the deadline (time.monotonic)."""
        while True:
            if len(self._heads) < len(self._logs):
                # Takes the lines that have arrived, because a log whose lines wait for a slow consumer isn't silent.
                await self._take(0)
            now = time.monotonic()
            if self._over:
                return self._over.popleft()
            held = self._held(now)
            if held <= 0:
                return self._pop(now)
            wait = min(held, deadline - now)
            if wait <= 0:
                return None
            await self._take(None if math.isinf(wait) else wait)

    async def close(self) -> None:
        """Ends all reading."""
        self._closed = True
        for log in self._logs.values():
            log.room.set()

    @property
    def _share(self) -> int:
        """Returns the number of characters that each log may read ahead."""
        return max(MIN_AHEAD, self._most_ahead // max(1, len(self._logs)))

    async def _read(self, source: Source, stream: Lines, log: _Log) -> None:
        error: Exception | None = None
        try:
            async with aclosing(stream) as lines:
                async for line in lines:
                    while log.ahead > self._share and not self._closed:
                        log.room.clear()
                        # The consumer may have made room before `clear`.
                        if log.ahead > self._share // 2 and not self._closed:
                            await log.room.wait()
                    if self._closed:
                        return
                    log.read += len(line.text)
                    self._arrivals.put_nowait((source, line, time.monotonic()))
        except Exception as found:
            error = found
        self._arrivals.put_nowait((source, Ended(error), time.monotonic()))

    @abstractmethod
    def _start(self, reading: Coroutine[Any, Any, None]) -> None: ...

    @abstractmethod
    async def _arrived(self, seconds: float | None) -> list[Arrival[Source]]:
        """Returns all arrivals. If there are none, waits up to `seconds` for the first (None: forever)."""

    def _pop(self, now: float) -> tuple[Source, WorkerLine]:
        _, _, source = heapq.heappop(self._heads)
        log = self._logs[source]
        line, _ = log.lines.popleft()
        log.consumed += len(line.text)
        # Wakes the reader while its buffer is still half full, because other logs' lines wait for a log without lines.
        if log.ahead <= self._share // 2:
            log.room.set()
        if log.lines:
            self._push(source, log)
        elif log.ended is not None:
            self._finish(source, log.ended)
        else:
            log.until = now + self._hold_seconds
        return source, line

    def _held(self, now: float) -> float:
        """Returns how long to wait for an older line before yielding the oldest line. Without lines, returns inf."""
        if not self._heads:
            return math.inf
        if len(self._heads) == len(self._logs):
            return 0.0
        _, came = self._logs[self._heads[0][2]].lines[0]
        return max(came + self._hold_seconds, *(log.until for log in self._logs.values() if not log.lines)) - now

    async def _take(self, seconds: float | None) -> None:
        for source, item, came in await self._arrived(seconds):
            log = self._logs[source]
            if isinstance(item, WorkerLine):
                log.lines.append((item, came))
                if len(log.lines) == 1:
                    self._push(source, log)
            else:
                log.ended = item
                if not log.lines:
                    self._finish(source, item)

    def _push(self, source: Source, log: _Log) -> None:
        heapq.heappush(self._heads, (log.lines[0][0].time, next(self._order), source))

    def _finish(self, source: Source, ended: Ended) -> None:
        del self._logs[source]
        self._over.append((source, ended))
