"""Runs coroutines without an event loop, over a transport whose calls block.

A coroutine that awaits only such a transport never yields control, so a single `send` runs it to the end. Commands
needn't import asyncio, and no event loop is nested in a notebook's own loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trainmaster.client.merging import MAX_AHEAD, MIN_AHEAD, Arrival, Ended, Lines, Readers, WorkerLine
from trainmaster.client.transport import MOST_CONNECTIONS, Transport

T = TypeVar("T")


@dataclass(frozen=True)
class Blocking:
    """Blocking wraps a blocking transport in coroutines, which never yield control."""

    transport: Transport

    async def request(self, method: str, path: str, **options: Any) -> Any:
        """Sends one request and returns the decoded JSON. Raises a ClientError."""
        return self.transport.request(method, path, **options)

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streaming answer."""
        for line in self.transport.lines(path, query=query, read_seconds=read_seconds):
            yield line

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that isn't JSON."""
        return self.transport.beginning(path, limit=limit, seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Blocks for some seconds."""
        time.sleep(seconds)

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs each coroutine in a thread."""
        from concurrent.futures import ThreadPoolExecutor

        if len(parts) < 2:
            return [await part for part in parts]
        with ThreadPoolExecutor(min(MOST_CONNECTIONS, len(parts))) as threads:
            return list(threads.map(run, parts))

    def readers(self) -> Readers:
        """Returns readers that read several streams at once, each in a thread."""
        return ThreadReaders()


@dataclass
class _Ahead:
    """_Ahead counts the characters read ahead of one stream."""

    # Notifies the reader of new room. All streams share the lock.
    room: threading.Condition
    size: int = 0
    # Whether the reader waits for room.
    is_full: bool = False


class ThreadReaders:
    """ThreadReaders reads each stream in a thread of its own.

    After `close`, a thread ends when its stream's next line arrives.
    """

    def __init__(self, ahead: int = MAX_AHEAD) -> None:
        self._most_ahead = ahead
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._arrivals: list[Arrival] = []
        self._ahead: dict[Hashable, _Ahead] = {}
        self._closed = False

    def add(self, source: Hashable, stream: Lines) -> None:
        """Starts to read a stream."""
        self._ahead[source] = ahead = _Ahead(threading.Condition(self._lock))
        threading.Thread(target=self._read, args=(source, iterate(stream), ahead), daemon=True).start()

    async def take(self, seconds: float | None) -> list[Arrival]:
        """Returns all arrivals. If there are none, waits up to `seconds` for the first (None: forever)."""
        with self._changed:
            if not self._arrivals and seconds != 0:
                self._changed.wait(seconds)
            found, self._arrivals = self._arrivals, []
            for source, item, _ in found:
                if isinstance(item, Ended):
                    del self._ahead[source]
        return found

    def passed(self, source: Hashable, line: WorkerLine) -> None:
        """Makes room for further lines of a source."""
        with self._lock:
            ahead = self._ahead.get(source)
            if ahead is None:
                # The stream has ended.
                return
            ahead.size -= len(line.text)
            # Wakes the reader when the buffer is half empty. If it were empty, the other streams' lines would wait.
            if ahead.is_full and ahead.size <= self._share // 2:
                ahead.is_full = False
                ahead.room.notify()

    async def close(self) -> None:
        """Makes all readers end."""
        with self._lock:
            self._closed = True
            for ahead in self._ahead.values():
                ahead.room.notify()

    @property
    def _share(self) -> int:
        """Returns the limit of characters read ahead of one stream."""
        return max(MIN_AHEAD, self._most_ahead // max(1, len(self._ahead)))

    def _read(self, source: Hashable, lines: Generator[WorkerLine, None, None], ahead: _Ahead) -> None:
        error: Exception | None = None
        try:
            for line in lines:
                with self._lock:
                    while ahead.size > self._share and not self._closed:
                        ahead.is_full = True
                        ahead.room.wait()
                    if self._closed:
                        return
                    ahead.size += len(line.text)
                    self._put(Arrival(source, line, time.monotonic()))
        except Exception as found:
            error = found
        finally:
            lines.close()
            with self._lock:
                self._put(Arrival(source, Ended(error), time.monotonic()))

    def _put(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if len(self._arrivals) == 1:
            self._changed.notify()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never yields control, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of the synchronous client waited for an event loop")


def iterate(source: AsyncIterator[T]) -> Generator[T, None, None]:
    """Yields the items of an asynchronous generator that never yields control."""
    try:
        while True:
            try:
                item = run(_next(source))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            run(_close(source))


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()
