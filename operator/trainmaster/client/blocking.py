"""What is written once, as coroutines, runs here without an event loop: over a transport that waits where it is called.

A coroutine that awaits nothing but such a transport never gives control away, so one step runs it to its end. asyncio,
whose import and loop a command would pay for, isn't needed, and inside a notebook's own loop nothing is nested.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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
