"""The work queue follows the rules of client-go's `util/workqueue`, for asyncio.

- If a key is added many times before a worker takes it, it is worked on once.
- Two workers never work on a key at the same time. A key that is added while a worker works on it is *dirty*, and
  becomes ready when that worker is done.
- If a delayed add is repeated, the earliest time is used. An immediate add cancels the delayed one; the worker that
  gets the key then requests another delay if it needs one.
- After a failure, a key is delayed by its own back-off, which `forget` resets.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from trainmaster_operator.controller.background import backoff

Key = TypeVar("Key")
# Seconds. client-go's defaults are 5 ms and 1,000 s, but a job whose write fails should be retried within a minute.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.01, 60.0


class WorkQueue(Generic[Key]):
    """Holds keys to work on. All methods are synchronous and belong to the event loop's thread.

    Workers iterate over the queue. Each step returns the next key and the seconds that the key waited; after its work
    on the key, the worker calls `done`. The iteration ends after `close`, once no key is ready.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._ready: deque[Key] = deque()
        # For each key that no worker has taken yet: when the key was added (the event loop's clock).
        self._dirty: dict[Key, float] = {}
        self._working: set[Key] = set()
        self._delayed: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def add(self, key: Key) -> None:
        """Request work on the key as soon as a worker is free."""
        if (timer := self._delayed.pop(key, None)) is not None:
            timer.cancel()
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = asyncio.get_running_loop().time()
        if key not in self._working:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Request work on the key in `seconds`, or earlier if that was requested before."""
        if seconds <= 0:
            self.add(key)
            return
        loop, before = asyncio.get_running_loop(), self._delayed.get(key)
        if self._closed or key in self._dirty or (before is not None and before.when() <= loop.time() + seconds):
            return
        if before is not None:
            before.cancel()
        self._delayed[key] = loop.call_later(seconds, self.add, key)

    def add_rate_limited(self, key: Key, *, at_least: float = 0.0) -> float:
        """Request work on the key after its back-off; returns the delay. `at_least` is a server's Retry-After."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Add up to a tenth of the delay, so that keys that failed together aren't retried together.
        seconds = max(backoff(failures, FIRST_BACKOFF, LONGEST_BACKOFF), at_least) * (1.0 + 0.1 * self._jitter())
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: Key) -> None:
        """Forget the key's failures, so that its next back-off is FIRST_BACKOFF again."""
        self._failures.pop(key, None)

    def __aiter__(self) -> WorkQueue[Key]:
        return self

    async def __anext__(self) -> tuple[Key, float]:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        key = self._ready.popleft()
        self._working.add(key)
        return key, asyncio.get_running_loop().time() - self._dirty.pop(key)

    def done(self, key: Key) -> None:
        """End the work on the key; if it was added meanwhile, it is ready again."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._wake.set()

    def close(self) -> None:
        """Accept no more keys."""
        self._closed = True
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        self._wake.set()

    def __len__(self) -> int:
        """Return the number of keys that are ready or dirty; delayed ones don't count."""
        return len(self._dirty)
