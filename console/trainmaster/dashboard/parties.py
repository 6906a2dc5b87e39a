"""Divides shared resources among parties: a user, or all service accounts of a namespace together.

A tenant can make any number of tokens and service accounts, so a limit for each token would have no effect. A party
gets at most its own share of memory, connections and work. The last part of the total is reserved for parties that use
little, so that late viewers still get in.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from trainmaster.dashboard.streams import Refused

T = TypeVar("T")

# Limits of one party's requests: at once, and then per second.
BURST, PER_SECOND = 100.0, 20.0
# Maximum number of live answers of one party, and of all. A browser's tab has one to three.
MOST_STREAMS, MOST_STREAMS_IN_ALL = 32, 600
# Maximum number of logs that are read at once, each over its own connection to the API server.
MOST_LOGS, MOST_LOGS_IN_ALL = 64, 256
# Maximum bytes of memory for pages of jobs.
MOST_BYTES, MOST_BYTES_IN_ALL = 8 * 2**20, 40 * 2**20
# Heavy answers that run at once, at most one for each party, and waiting requests of a party.
HEAVY_AT_ONCE, MOST_WAITING = 2, 16
# Agents that are polled at once for one party.
AGENTS_AT_ONCE = 8
# Seconds after which a heavy answer is cancelled.
HEAVY_SECONDS = 30.0
_BUSY = {"Retry-After": "5"}


@dataclass
class Rate:
    """Rate allows `burst` requests at once, and then `per_second`."""

    burst: float
    per_second: float
    room: float = field(init=False)
    at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.room = self.burst

    def take(self) -> bool:
        """Returns whether one more request may pass."""
        now = time.monotonic()
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return False
        self.room -= 1.0
        return True


class Share:
    """Share divides `total` of a resource; `each` is the maximum of one party.

    The last quarter is for parties that have at most a sixteenth of `each`.
    """

    def __init__(self, each: int, total: int) -> None:
        self.each, self.total = each, total
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Returns the amount that all parties have taken."""
        return self._taken.total()

    def room(self, party: str) -> int:
        """Returns the amount that a party may still take now."""
        own, free = self._taken[party], self.total - self.taken
        open_to_all = free - self.total // 4
        few = min(self.each // 16 - own, free)
        return max(0, min(self.each - own, open_to_all), few)

    def take(self, party: str, count: int) -> None:
        """Takes `count`, or returns it if it is negative."""
        self._taken[party] += count
        if not self._taken[party]:
            del self._taken[party]

    @contextmanager
    def taking(self, party: str, count: int) -> Iterator[None]:
        """Takes `count` for the duration of the block."""
        self.take(party, count)
        try:
            yield
        finally:
            self.take(party, -count)


class Parties:
    """Parties holds the limits that all viewers share."""

    def __init__(self) -> None:
        self.streams = Share(MOST_STREAMS, MOST_STREAMS_IN_ALL)
        self.logs = Share(MOST_LOGS, MOST_LOGS_IN_ALL)
        self.bytes = Share(MOST_BYTES, MOST_BYTES_IN_ALL)
        # Each round of the loop reads one piece of a large answer; the parties take turns.
        self.turn = asyncio.Lock()
        self.heavy = asyncio.Semaphore(HEAVY_AT_ONCE)


@dataclass(eq=False)
class Party:
    """Party is one user, or the service accounts of one namespace."""

    name: str
    all: Parties = field(repr=False)
    requests: Rate = field(default_factory=lambda: Rate(BURST, PER_SECOND))
    agents: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AGENTS_AT_ONCE), repr=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _heavy: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _waiting: int = 0

    def count(self) -> None:
        """Counts a request. Raises Refused for one too many."""
        if not self.requests.take():
            raise Refused(429, f"These are more than {PER_SECOND:g} requests a second; wait.", _BUSY)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts a live answer while it lasts. Raises Refused for one too many."""
        if self.all.streams.room(self.name) < 1:
            raise Refused(429, "You have too many live views open; close some.", _BUSY)
        with self.all.streams.taking(self.name, 1):
            yield

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for this party's turn to read a piece of a large answer."""
        async with self._turn, self.all.turn:
            yield
            # Other ready work comes first.
            await asyncio.sleep(0)

    async def heavy(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does heavy work, one at a time for each party. Raises Refused if too many wait, or it takes too long."""
        if self._waiting >= MOST_WAITING:
            raise Refused(429, f"{MOST_WAITING} of your requests already wait for answers; wait.", _BUSY)
        self._waiting += 1
        try:
            async with asyncio.timeout(HEAVY_SECONDS), self._heavy, self.all.heavy:
                return await work()
        except TimeoutError:
            raise Refused(503, f"There is no answer after {HEAVY_SECONDS:g} s; try again.", _BUSY) from None
        finally:
            self._waiting -= 1
