"""Places bound what requests of viewers hold, so that one of them, or a stranger, takes nothing from the others.

A request has a place while its viewer is asked about, while its answer is made, and until that is sent. Tokens that the
API server hasn't recognised lately have a few places of their own: whoever invents tokens keeps out other strangers
for a moment, and no viewer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

# Requests at a time: of strangers that are asked about and that wait for it, of one viewer, and of all viewers.
MAX_STRANGERS, MAX_WAITING, MAX_OF_VIEWER, MAX_READS = 16, 64, 16, 128
# Seconds that a stranger waits.
WAIT_SECONDS = 5.0
# Bytes of answers that wait for those who read them slowly, beyond which no other is made: of one viewer, and of all.
SENDING_OF_VIEWER, SENDING = 8 * 1024 * 1024, 64 * 1024 * 1024


class Full(Exception):
    """There is no place for a request; one sentence says why."""


class Places:
    """Places counts; a viewer is named by the key that `access` gives them."""

    def __init__(self) -> None:
        self._asking = asyncio.Semaphore(MAX_STRANGERS)
        self._waiting = 0
        self._reads: Counter[bytes] = Counter()
        self._sending: Counter[bytes] = Counter()
        self._long: dict[bytes, asyncio.Lock] = {}

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[None]:
        """Holds a place of somebody who isn't known yet. Raises Full."""
        if self._waiting >= MAX_WAITING:
            raise Full("Too many unknown tokens are being checked; try again in a moment.")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._asking.acquire()
        except TimeoutError as error:
            raise Full("Too many unknown tokens are being checked; try again in a moment.") from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._asking.release()

    @contextmanager
    def viewer(self, viewer: bytes) -> Iterator[None]:
        """Holds a place of a viewer; each has one, however many the others have. Raises Full."""
        own, total = self._reads[viewer], self._reads.total()
        if own >= MAX_OF_VIEWER:
            raise Full(f"{MAX_OF_VIEWER} of your requests are being answered; wait for one of them.")
        if total >= (MAX_READS if own else 2 * MAX_READS):
            raise Full(f"{total} requests of all viewers are being answered; try again in a moment.")
        if self._sending[viewer] >= SENDING_OF_VIEWER:
            raise Full("You don't read the answers that you asked for; read them before you ask for more.")
        if own and self._sending.total() >= SENDING:
            raise Full("Too many answers wait for those who asked for them; try again in a moment.")
        self._reads[viewer] += 1
        try:
            yield
        finally:
            self._reads[viewer] -= 1
            if not self._reads[viewer]:
                del self._reads[viewer]
                self._long.pop(viewer, None)

    @asynccontextmanager
    async def long(self, viewer: bytes) -> AsyncIterator[None]:
        """Holds the one place that a viewer, who has a place, has for long answers; the others wait for it."""
        async with self._long.setdefault(viewer, asyncio.Lock()):
            yield

    @contextmanager
    def sending(self, viewer: bytes, size: int) -> Iterator[None]:
        """Counts an answer until it is sent."""
        self._sending[viewer] += size
        try:
            yield
        finally:
            self._sending[viewer] -= size
            if not self._sending[viewer]:
                del self._sending[viewer]
