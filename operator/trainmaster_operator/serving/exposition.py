"""A page of metrics that anybody may ask for as often as they like: it costs a tenth of the time, and little memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

SHARE = 10
"""A page is given to all who ask until this many times the time that it took has passed."""
SEND_SECONDS = 15.0
"""Prometheus waits for 10 s by default. Pages are large, and a slow reader keeps an old one in memory."""
PIECE_BYTES = 65_536
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Exposition makes a page at a time, however many ask."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._page = b""
        self._until = 0.0
        self._making: asyncio.Task[bytes] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers a request for the page, piece by piece: of what isn't read, one piece is in memory."""
        page = memoryview(await self._current())
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Content-Length": str(len(page))})
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            for start in range(0, len(page), PIECE_BYTES):
                await response.write(page[start : start + PIECE_BYTES])
            await response.write_eof()
        return response

    async def _current(self) -> bytes:
        if time.monotonic() < self._until:
            return self._page
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make_page())
        # One who goes doesn't take the page from the others.
        return await asyncio.shield(self._making)

    async def _make_page(self) -> bytes:
        begun = time.monotonic()
        self._page = await self._make()
        ended = time.monotonic()
        self._until = ended + (SHARE - 1) * (ended - begun)
        return self._page
