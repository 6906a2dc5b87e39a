"""Divides shared resources among tenants. A tenant is a user, or all service accounts of a namespace together.

A tenant can create any number of tokens and service accounts, so a limit for each token would have no effect. Each
tenant gets at most its share of memory, connections and work. The last quarter of the total is reserved for tenants
that use little, so that late viewers are still served.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from trainmaster.serving import Refused, counted

T = TypeVar("T")

# Limits of one tenant's requests: at once, and then per second.
BURST, PER_SECOND = 100.0, 20.0
# Maximum number of live answers for one tenant, and for all. A browser tab uses one to three.
MOST_STREAMS, MOST_STREAMS_IN_ALL = 32, 600
# Maximum number of logs that are read at once, for one tenant and for all. Each uses a connection to the API server.
MOST_LOGS, MOST_LOGS_IN_ALL = 64, 256
# Maximum bytes of memory for pages of jobs, for one tenant and for all.
MOST_BYTES, MOST_BYTES_IN_ALL = 8 * 2**20, 40 * 2**20
# Maximum number of expensive answers that are prepared at once (one for each tenant), and of one tenant's requests that
# wait for such an answer.
HEAVY_AT_ONCE, MOST_WAITING = 2, 16
# Maximum agents that are polled at once for one tenant.
AGENTS_AT_ONCE = 8
# Seconds after which an expensive answer is cancelled.
HEAVY_SECONDS = 30.0
_BUSY = {"Retry-After": "5"}


@dataclass
class Rate:
    """Rate allows `burst` requests at once, and then `per_second` each second."""

    burst: float
    per_second: float
    room: float = 0.0
    at: float = -math.inf

    def take(self) -> bool:
        """Returns whether one more request is allowed, and counts it if so."""
        now = time.monotonic()
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return False
        self.room -= 1.0
        return True


class Share:
    """Share divides `total` units of a resource among tenants, each of which may take at most `each`.

    The last quarter is reserved for tenants that have taken at most a sixteenth of `each`.
    """

    def __init__(self, each: int, total: int) -> None:
        self.each, self.total = each, total
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Returns the amount that all tenants together have taken."""
        return self._taken.total()

    def room(self, tenant: str) -> int:
        """Returns the amount that a tenant can still take now."""
        own, free = self._taken[tenant], self.total - self.taken
        open_to_all = free - self.total // 4
        few = min(self.each // 16 - own, free)
        return max(0, min(self.each - own, open_to_all), few)

    def take(self, tenant: str, count: int) -> None:
        """Takes `count` for a tenant. A negative count gives back."""
        self._taken[tenant] += count
        if not self._taken[tenant]:
            del self._taken[tenant]

    def taking(self, tenant: str, count: int) -> AbstractContextManager[None]:
        """Takes `count` for a tenant during the block."""
        return counted(self._taken, tenant, count)


class SharedLimits:
    """SharedLimits contains the limits that all viewers share."""

    def __init__(self) -> None:
        self.streams = Share(MOST_STREAMS, MOST_STREAMS_IN_ALL)
        self.logs = Share(MOST_LOGS, MOST_LOGS_IN_ALL)
        self.bytes = Share(MOST_BYTES, MOST_BYTES_IN_ALL)
        # Held while a piece of a large answer is read, so that tenants take turns.
        self.turn = asyncio.Lock()
        self.heavy = asyncio.Semaphore(HEAVY_AT_ONCE)


@dataclass(eq=False)
class Tenant:
    """Tenant is one user, or all service accounts of one namespace."""

    name: str
    all: SharedLimits = field(repr=False)
    requests: Rate = field(default_factory=lambda: Rate(BURST, PER_SECOND))
    agents: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AGENTS_AT_ONCE), repr=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _heavy: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _waiting: int = 0

    def count(self) -> None:
        """Counts a request. Raises Refused if there were too many."""
        if not self.requests.take():
            raise Refused(429, f"These are more than {PER_SECOND:g} requests a second; wait.", _BUSY)

    def streaming(self) -> AbstractContextManager[None]:
        """Counts a live answer during the block. Raises Refused if there are too many."""
        if self.all.streams.room(self.name) < 1:
            raise Refused(429, "You have too many live views open; close some.", _BUSY)
        return self.all.streams.taking(self.name, 1)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until this tenant may read a piece of a large answer. The turn lasts until the end of the block."""
        async with self._turn, self.all.turn:
            yield
            # Other tasks that are ready run first.
            await asyncio.sleep(0)

    async def heavy(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs expensive work, one at a time for each tenant. Raises Refused if too many wait, or it takes too long."""
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
