"""The event loop waits for file descriptors, timers, signals and calls from threads. Nothing in it blocks.

It uses `selectors`, not asyncio, because an agent's start then takes 15 ms instead of 40 ms, in every recovery.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """Timer is a scheduled call that `cancel` prevents."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Loop calls back when a descriptor is ready, a timer expires, or a signal arrives."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self.stopped = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.watch(self._wake_read, READ, self._woken)

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(ready events)` whenever the descriptor is ready, instead of an earlier `call` for it."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, call)
        else:
            self._selector.register(fd, events, call)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor, before it is closed. It needn't be watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, call)
        heapq.heappush(self._timers, (timer.at, next(self._order), timer))
        return timer

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the loop's thread, as soon as possible. Other threads may use only this method."""
        self._soon.append(call)
        # If the pipe is full of earlier wake-ups, no other one is needed.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call in the loop, not in the signal's handler, when the signal arrives."""
        signal.signal(number, lambda _number, _frame: self.call_soon(call))

    def stop(self) -> None:
        """Make this the last round."""
        self.stopped = True

    def run_once(self, limit: float = 60.0) -> None:
        """Wait at most `limit` seconds for the next event, and handle everything that is due."""
        wait = limit
        if self._timers:
            wait = min(wait, max(0.0, self._timers[0][0] - time.monotonic()))
        for key, events in self._selector.select(0.0 if self._soon else wait):
            # An earlier call in this round may have closed or replaced the descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data(events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
        while self._soon:
            self._soon.popleft()()

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4_096)
