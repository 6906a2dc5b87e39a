"""What viewers share is divided among parties: a user, or all service accounts of a namespace together.

A tenant makes tokens and service accounts without end, so a bound for each token would be none. Of everything that
costs memory, connections or work a party gets at most its own part, and the last part of the whole is kept for parties
that have little of it, so that whoever comes late still gets in.
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

from trainmaster.dashboard.errors import Refused

T = TypeVar("T")

_ACCOUNT = "system:serviceaccount:"
# Requests of one party: so many at once, and then so many a second.
BURST, PER_SECOND = 100.0, 20.0
# Live answers of one party, of which a browser's tabs have one to three each, and of all.
MOST_STREAMS, MOST_STREAMS_IN_ALL = 32, 600
# Logs that are read at once, each over a connection to the API server.
MOST_LOGS, MOST_LOGS_IN_ALL = 64, 256
# Bytes of memory that pages of jobs hold.
MOST_BYTES, MOST_BYTES_IN_ALL = 8 * 2**20, 40 * 2**20
# Heavy answers that are made at once, one of each party, and of a party those that wait for theirs.
HEAVY_AT_ONCE, MOST_WAITING = 2, 16
# Agents that are asked at once for one party.
AGENTS_AT_ONCE = 8
# Seconds after which a heavy answer is given up.
HEAVY_SECONDS = 30.0
_BUSY = {"Retry-After": "5"}


@dataclass
class Rate:
    """Rate lets so many through at once, and then so many a second."""

    burst: float
    per_second: float
    room: float = field(init=False)
    at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.room = self.burst

    def take(self) -> bool:
        """Returns whether one more may pass."""
        now = time.monotonic()
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return False
        self.room -= 1.0
        return True


class Share:
    """Share divides `total` of something; `each` is the most of one party.

    The last quarter is for parties that have at most a sixteenth of `each`.
    """

    def __init__(self, each: int, total: int) -> None:
        self.each, self.total = each, total
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Returns how much is taken in all."""
        return self._taken.total()

    def room(self, party: str) -> int:
        """Returns how much more a party may take now."""
        own, free = self._taken[party], self.total - self.taken
        open_to_all = free - self.total // 4
        few = min(self.each // 16 - own, free)
        return max(0, min(self.each - own, open_to_all), few)

    def take(self, party: str, count: int) -> None:
        """Takes so many, or gives them back where `count` is negative."""
        self._taken[party] += count
        if not self._taken[party]:
            del self._taken[party]

    @contextmanager
    def taking(self, party: str, count: int) -> Iterator[None]:
        """Takes so many for a while."""
        self.take(party, count)
        try:
            yield
        finally:
            self.take(party, -count)


class Parties:
    """Parties has what all viewers share."""

    def __init__(self) -> None:
        self.streams = Share(MOST_STREAMS, MOST_STREAMS_IN_ALL)
        self.logs = Share(MOST_LOGS, MOST_LOGS_IN_ALL)
        self.bytes = Share(MOST_BYTES, MOST_BYTES_IN_ALL)
        # One piece of a large answer is read in each round of the loop, the parties taking turns.
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
        """Counts a live answer while it goes on. Raises Refused for one too many."""
        if self.all.streams.room(self.name) < 1:
            raise Refused(429, "You have too many live views open; close some.", _BUSY)
        with self.all.streams.taking(self.name, 1):
            yield

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until it is this party's turn to read a piece of a large answer."""
        async with self._turn, self.all.turn:
            yield
            # Others get theirs only after everything else that is ready.
            await asyncio.sleep(0)

    async def heavy(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does heavy work, one at a time for each party. Raises Refused where too much waits, or it takes long."""
        if self._waiting >= MOST_WAITING:
            raise Refused(429, f"{MOST_WAITING} of your requests wait for their answers already; wait.", _BUSY)
        self._waiting += 1
        try:
            async with asyncio.timeout(HEAVY_SECONDS), self._heavy, self.all.heavy:
                return await work()
        except TimeoutError:
            raise Refused(503, f"There is no answer after {HEAVY_SECONDS:g} s; try again.", _BUSY) from None
        finally:
            self._waiting -= 1


def party_of(user: str) -> str:
    """Returns the name of a user's party."""
    if not user.startswith(_ACCOUNT):
        return user
    return _ACCOUNT + user.removeprefix(_ACCOUNT).partition(":")[0]
