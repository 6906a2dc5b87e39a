"""Several streams are read at once: what comes of each waits in a queue, in which the reader of none is far ahead."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

# Lines of one stream that were read and that nobody has looked at yet; then its reader waits, and then the kubelet.
MAX_AHEAD = 4096


class Ended(NamedTuple):
    """Ended stands for the end of a stream, or for what ended its reading."""

    error: Exception | None = None


class Arrival(NamedTuple, Generic[T]):
    """Arrival is what came of a stream, and when (of time.monotonic)."""

    source: Hashable
    item: T | Ended
    came: float


class Readers(Protocol[T]):
    """Readers read streams, each on its own."""

    def add(self, source: Hashable, stream: AsyncGenerator[T, None]) -> None:
        """Starts to read a stream."""

    async def take(self, seconds: float | None) -> list[Arrival[T]]:
        """Returns all that has come; waits so long (None: for ever) where that is nothing."""

    def passed(self, source: Hashable) -> None:
        """Makes room for one more item of a stream."""

    async def close(self) -> None:
        """Ends the reading."""
