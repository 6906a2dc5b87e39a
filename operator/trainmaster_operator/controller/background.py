"""Defines how background tasks, which no other code waits for, end, retry and report failures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# Minimum seconds between two messages about failures; the metrics count all failures.
LOG_SECONDS = 60.0


def backoff(failures: int, first: float, longest: float) -> float:
    """Returns the seconds until the next try: `first` if `failures` is 0, doubled with each failure up to `longest`."""
    # Without this limit, 2.0 ** 1024 would overflow, after 17 hours of failures a minute apart.
    return min(first * 2.0 ** min(failures, 40), longest)


async def end_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> list[Any]:
    """Cancel the tasks, wait for their end, and return their results and exceptions."""
    running = [task for task in tasks if task is not None]
    for task in running:
        # Cancel only once, because a second cancellation would interrupt a task's cleanup.
        if not task.cancelling():
            task.cancel()
    return await asyncio.gather(*running, return_exceptions=True)


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, for at most `seconds`."""
    # asyncio.wait_for can lose a cancellation in Python 3.11.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


@dataclass
class FailureLog:
    """Logs at most one failure in LOG_SECONDS."""

    logger: logging.Logger
    about: str
    _logged_at: float = field(default=float("-inf"), init=False)

    def report(self, message: str, bug: Exception | None = None) -> None:
        """Log a message, unless another was logged in the last LOG_SECONDS.

        `bug` is an error of ours, whose traceback is logged too.
        """
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            level = logging.WARNING if bug is None else logging.ERROR
            self.logger.log(level, "%s: %s", self.about, message, exc_info=bug)
