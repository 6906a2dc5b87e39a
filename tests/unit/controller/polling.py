"""Lets tests wait for a condition instead of a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Polls until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is another program's doing
            await asyncio.sleep(0.01)
