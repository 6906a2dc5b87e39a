"""Runs coroutines without an event loop, over a transport whose calls block.

A coroutine that awaits only such a transport never yields control, so a single `send` runs it to the end. So
commands needn't import asyncio, and a notebook, which has its own event loop, doesn't get a second one inside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, Unpack

from trainmaster.client.time_order import Arrival, Merger, Source
from trainmaster.client.transport import MOST_CONNECTIONS, RequestOptions, Transport

T = TypeVar("T")


@dataclass(frozen=True)
class Blocking:
    """Blocking wraps a blocking transport in coroutines, which never yield control."""

    transport: Transport

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        return self.transport.request(method, path, **options)

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        for line in self.transport.lines(path, query=query, read_seconds=read_seconds):
            yield line

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        return self.transport.beginning(path, limit=limit, seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs each coroutine in a thread."""
        from concurrent.futures import ThreadPoolExecutor

        if len(parts) < 2:
            return [await part for part in parts]
        with ThreadPoolExecutor(min(MOST_CONNECTIONS, len(parts))) as threads:
            return list(threads.map(run, parts))

    def merger(self) -> Merger[Any]:
        return ThreadMerger()


class _BlockingEvent(threading.Event):
    """_BlockingEvent is like asyncio.Event, for coroutines that may block."""

    async def wait(self) -> None:  # type: ignore[override]
        super().wait()


class ThreadMerger(Merger[Source]):
    """ThreadMerger reads each log in a thread. After `close`, a thread ends when its log's next line arrives."""

    room, queue = _BlockingEvent, SimpleQueue

    def _start(self, reading: Coroutine[Any, Any, None]) -> None:
        threading.Thread(target=run, args=(reading,), daemon=True).start()

    async def _arrived(self, seconds: float | None) -> list[Arrival[Source]]:
        found = []
        with suppress(Empty):
            found.append(self._arrivals.get(timeout=seconds))
            while True:
                found.append(self._arrivals.get_nowait())
        return found


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
                item = run(_awaited(anext(source)))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            run(_awaited(source.aclose()))


async def _awaited(what: Awaitable[T]) -> T:
    return await what
