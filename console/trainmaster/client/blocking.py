"""What is written once, as coroutines, runs here without an event loop: over a transport that waits where it is called.

A coroutine that awaits nothing but such a transport never gives control away, so one step runs it to its end. asyncio,
whose import and loop a command would pay for, isn't needed, and inside a notebook's own loop nothing is nested.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainmaster.client.arrivals import MAX_AHEAD, Arrival, Ended, Readers
from trainmaster.client.transport import JSON, MOST_CONNECTIONS, Transport

T = TypeVar("T")


class AsyncTransport(Protocol):
    """AsyncTransport is what `AsyncJobClient` needs of a connection."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Sends one request and returns the decoded JSON. Raises a ClientError."""

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streaming answer (a watch, a log), until it ends."""

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that is no object, as far as it comes in that time."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs several coroutines, which raise nothing, at once, and returns what they return."""

    def readers(self) -> Readers[Any]:
        """Returns what reads several streams at once."""


@dataclass(frozen=True)
class Blocking:
    """Blocking makes coroutines of a transport that waits; they never give control away."""

    transport: Transport

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Sends one request and returns the decoded JSON. Raises a ClientError."""
        return self.transport.request(method, path, query=query, body=body, content_type=content_type)

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streaming answer."""
        for line in self.transport.lines(path, query=query, read_seconds=read_seconds):
            yield line

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that is no object."""
        return self.transport.beginning(path, limit=limit, seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs each coroutine in a thread."""
        from concurrent.futures import ThreadPoolExecutor

        if len(parts) < 2:
            return [await part for part in parts]
        with ThreadPoolExecutor(min(MOST_CONNECTIONS, len(parts))) as threads:
            return list(threads.map(run, parts))

    def readers(self) -> Readers[Any]:
        """Returns what reads several streams at once, each in a thread."""
        return ThreadReaders()


class ThreadReaders(Generic[T]):
    """ThreadReaders read each stream in a thread of its own, which ends at its stream's next item when they close."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[Arrival[T]] = queue.SimpleQueue()
        self._room: dict[Hashable, threading.Semaphore] = {}
        self._closed = False

    def add(self, source: Hashable, stream: AsyncGenerator[T, None]) -> None:
        """Starts to read a stream."""
        self._room[source] = room = threading.Semaphore(MAX_AHEAD)
        threading.Thread(target=self._read, args=(source, iterate(stream), room), daemon=True).start()

    async def take(self, seconds: float | None) -> list[Arrival[T]]:
        """Returns all that has come; waits so long (None: for ever) where that is nothing."""
        found = []
        try:
            found.append(self._arrivals.get(timeout=seconds))
            while True:
                found.append(self._arrivals.get_nowait())
        except queue.Empty:
            return found

    def passed(self, source: Hashable) -> None:
        """Makes room for one more item of a stream."""
        self._room[source].release()

    async def close(self) -> None:
        """Ends the reading."""
        self._closed = True
        for room in self._room.values():
            room.release()

    def _read(self, source: Hashable, items: Generator[T, None, None], room: threading.Semaphore) -> None:
        error: Exception | None = None
        try:
            for item in items:
                room.acquire()
                if self._closed:
                    return
                self._arrivals.put(Arrival(source, item, time.monotonic()))
        except Exception as found:
            error = found
        finally:
            items.close()
            self._arrivals.put(Arrival(source, Ended(error), time.monotonic()))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never gives control away, and returns what it returns."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of the synchronous client waited for an event loop")


def iterate(source: AsyncIterator[T]) -> Generator[T, None, None]:
    """Yields what an asynchronous generator yields that never gives control away."""
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
