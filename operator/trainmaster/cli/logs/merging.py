"""Streams of lines become one in the order of time, in bounded memory.

`merged` has logs that are there: of each stream one line is looked at, and what nobody has read yet waits in the
connection. `Window` has logs that are followed, of which nobody knows what comes next: a line is held back a moment,
in which an older one of another log may come. Who reads slowly is waited for: the readers stop, and then the kubelet.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Generic, NamedTuple, TypeVar

from trainmaster.cli.logs.lines import Line
from trainmaster.client import ClientError

# Logs that are opened at once: each costs the API server and a kubelet a connection.
OPENERS = 16
# A followed line is held back for so long (seconds), unless all other logs have shown a later one.
HOLD_SECONDS = 0.2
# What is read ahead of a slow reader, in characters: of all logs together, and of each one at least.
MAX_AHEAD, MIN_AHEAD = 16_000_000, 64_000

Source = TypeVar("Source")


def merged(streams: Sequence[Iterator[Line]]) -> Iterator[Line]:
    """Yields the lines of all streams by time; the connections are opened together. Raises ClientError."""
    if len(streams) == 1:
        return streams[0]
    with ThreadPoolExecutor(min(OPENERS, max(1, len(streams)))) as openers:
        opened = list(openers.map(_opened, streams))
    return heapq.merge(*opened, key=lambda line: line.time)


def _opened(stream: Iterator[Line]) -> Iterator[Line]:
    first = next(stream, None)
    return iter(()) if first is None else chain([first], stream)


class Ended(NamedTuple):
    """Ended stands for the end of a log, or for what ended its reading."""

    error: ClientError | None = None


class _Waiting(NamedTuple):
    line: Line
    came: float


@dataclass
class _Log:
    """_Log is what was read ahead of one log."""

    # Says that there is room again; it shares its lock with the window.
    room: threading.Condition
    lines: deque[_Waiting] = field(default_factory=deque)
    size: int = 0
    # Its reader waits for room.
    full: bool = False
    ended: Ended | None = None


class Window(Generic[Source]):
    """Window merges logs that are followed, each read by a thread of its own."""

    def __init__(self, hold_seconds: float = HOLD_SECONDS, ahead: int = MAX_AHEAD) -> None:
        self._hold_seconds = hold_seconds
        self._ahead = ahead
        self._logs: dict[Source, _Log] = {}
        # (time of its first line, order, log) of each log that has lines.
        self._heads: list[tuple[float, int, Source]] = []
        self._order = count()
        # Logs of which nothing is left.
        self._over: deque[Source] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def sources(self) -> set[Source]:
        """Returns the logs that are read, or of which something is left."""
        with self._changed:
            return set(self._logs)

    def open(self, source: Source) -> None:
        """Adds a log, whose reader is about to start."""
        with self._changed:
            self._logs[source] = _Log(threading.Condition(self._lock))

    def put(self, source: Source, line: Line) -> None:
        """Adds a line that a reader has read; waits where too much of its log wasn't looked at yet."""
        with self._changed:
            log = self._logs[source]
            while log.size > self._share:
                log.full = True
                log.room.wait()
            self._add(source, log, _Waiting(line, time.monotonic()))
            if len(log.lines) == 1:
                self._changed.notify()

    def end(self, source: Source, error: ClientError | None = None) -> None:
        """Says that a reader has come to the end of its log."""
        with self._changed:
            log = self._logs[source]
            log.ended = Ended(error)
            if not log.lines:
                self._over.append(source)
                self._changed.notify()

    def take(self, deadline: float) -> tuple[Source, Line | Ended] | None:
        """Returns the next line by time, or the end of a log; None at the deadline (of time.monotonic)."""
        with self._changed:
            while True:
                found, wait = self._next(time.monotonic())
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left if wait is None else min(wait, left))

    def _next(self, now: float) -> tuple[tuple[Source, Line | Ended] | None, float | None]:
        """Returns what can be taken now, or for how long the first line is held back."""
        if self._over:
            source = self._over.popleft()
            return (source, self._logs.pop(source).ended or Ended()), None
        if not self._heads:
            return None, None
        _, _, source = self._heads[0]
        log = self._logs[source]
        held = log.lines[0].came + self._hold_seconds - now
        if held > 0 and len(self._heads) < len(self._logs):
            return None, held
        heapq.heappop(self._heads)
        line = log.lines.popleft().line
        log.size -= len(line.text)
        if log.lines:
            self._push(source, log)
        elif log.ended is not None:
            self._over.append(source)
        if log.full and log.size <= self._share // 2:
            # Long before it runs dry: the others' lines would be held back for it.
            log.full = False
            log.room.notify()
        return (source, line), None

    @property
    def _share(self) -> int:
        """Returns how much may be read ahead of one log, in characters."""
        return max(MIN_AHEAD, self._ahead // max(1, len(self._logs)))

    def _add(self, source: Source, log: _Log, waiting: _Waiting) -> None:
        log.lines.append(waiting)
        log.size += len(waiting.line.text)
        if len(log.lines) == 1:
            self._push(source, log)

    def _push(self, source: Source, log: _Log) -> None:
        heapq.heappush(self._heads, (log.lines[0].line.time, next(self._order), source))
