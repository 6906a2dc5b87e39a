"""Streams of lines become one in the order of time, in bounded memory.

`merged` has logs that are there: of each stream one line is looked at, and what nobody has read yet waits in the
connection. `Window` has logs that are followed, of which nobody knows what comes next: a line is held back a moment,
in which an older one of another log may come. Who reads slowly is waited for: the readers stop, and then the kubelet.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from trainmaster.client import ClientError
from trainmaster.client.arrivals import Ended
from trainmaster.client.merging import HOLD_SECONDS, Merge, WorkerLine

# Logs that are opened at once: each costs the API server and a kubelet a connection.
OPENERS = 16
# What is read ahead of a slow reader, in characters: of all logs together, and of each one at least.
MAX_AHEAD, MIN_AHEAD = 16_000_000, 64_000

Source = TypeVar("Source", bound=Hashable)


def merged(streams: Sequence[Iterator[WorkerLine]]) -> Iterator[WorkerLine]:
    """Yields the lines of all streams by time; the connections are opened together. Raises ClientError."""
    if len(streams) == 1:
        return streams[0]
    with ThreadPoolExecutor(min(OPENERS, max(1, len(streams)))) as openers:
        opened = list(openers.map(_opened, streams))
    return heapq.merge(*opened, key=lambda line: line.time)


def _opened(stream: Iterator[WorkerLine]) -> Iterator[WorkerLine]:
    first = next(stream, None)
    return iter(()) if first is None else chain([first], stream)


@dataclass
class _Ahead:
    """_Ahead is how much was read ahead of one log, in characters."""

    # Says that there is room again; it shares its lock with the window.
    room: threading.Condition
    size: int = 0
    # Its reader waits for room.
    full: bool = False


class Window(Generic[Source]):
    """Window merges logs that are followed, each read by a thread of its own."""

    def __init__(self, hold_seconds: float = HOLD_SECONDS, ahead: int = MAX_AHEAD) -> None:
        self._most_ahead = ahead
        # What there was when they were opened has been printed, so that no log is waited for at first.
        self._merge: Merge[Source, WorkerLine] = Merge(0.0, hold_seconds)
        self._ahead: dict[Source, _Ahead] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def sources(self) -> set[Source]:
        """Returns the logs that are read, or of which something is left."""
        with self._changed:
            return self._merge.sources

    def open(self, source: Source) -> None:
        """Adds a log, whose reader is about to start."""
        with self._changed:
            self._ahead[source] = _Ahead(threading.Condition(self._lock))
            self._merge.open(source, time.monotonic())

    def put(self, source: Source, line: WorkerLine) -> None:
        """Adds a line that a reader has read; waits where too much of its log wasn't looked at yet."""
        with self._changed:
            ahead = self._ahead[source]
            while ahead.size > self._share:
                ahead.full = True
                ahead.room.wait()
            ahead.size += len(line.text)
            if self._merge.put(source, line, time.monotonic()):
                self._changed.notify()

    def end(self, source: Source, error: ClientError | None = None) -> None:
        """Says that a reader has come to the end of its log."""
        with self._changed:
            if self._merge.end(source, Ended(error)):
                self._changed.notify()

    def take(self, deadline: float) -> tuple[Source, WorkerLine | Ended] | None:
        """Returns the next line by time, or the end of a log; None at the deadline (of time.monotonic)."""
        with self._changed:
            while True:
                now = time.monotonic()
                found = self._merge.next(now)
                if found is not None:
                    self._make_room(*found)
                    return found
                if now >= deadline:
                    return None
                self._changed.wait(min(self._merge.held(now), deadline - now))

    def _make_room(self, source: Source, taken: WorkerLine | Ended) -> None:
        if isinstance(taken, Ended):
            del self._ahead[source]
            return
        ahead = self._ahead[source]
        ahead.size -= len(taken.text)
        if ahead.full and ahead.size <= self._share // 2:
            # Long before it runs dry: the others' lines would be held back for it.
            ahead.full = False
            ahead.room.notify()

    @property
    def _share(self) -> int:
        """Returns how much may be read ahead of one log, in characters."""
        return max(MIN_AHEAD, self._most_ahead // max(1, len(self._ahead)))
