"""`FromThread` lets code that waits in a thread ask over a transport of the event loop, such as a viewer's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from trainmaster.client.transport import JSON, AsyncTransport

T = TypeVar("T")
# Lines of a streaming answer; a diagnosis reads the last few of a log.
MOST_LINES = 1_000


@dataclass(frozen=True)
class FromThread:
    """FromThread is a Transport for other threads than the loop's."""

    transport: AsyncTransport
    loop: asyncio.AbstractEventLoop

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Sends one request and returns the decoded JSON. Raises a ClientError."""
        asked = self.transport.request(method, path, query=query, body=body, content_type=content_type)
        return self._wait(asked)

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        """Yields the lines of a streaming answer."""

        async def read() -> list[bytes]:
            found: list[bytes] = []
            async with aclosing(self.transport.lines(path, query=query, read_seconds=read_seconds)) as lines:
                async for line in lines:
                    found.append(line)
                    if len(found) >= MOST_LINES:
                        break
            return found

        yield from self._wait(read())

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that is no object."""
        return self._wait(self.transport.beginning(path, limit=limit, seconds=seconds))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
