"""The invented dashboard runs in a thread, for tests and benchmarks that drive a browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from aiohttp import web

from tests.dashboard_pages.server import FakeDashboard


class Served:
    """Runs a FakeDashboard in a thread, at `url`."""

    def __init__(self, dashboard: FakeDashboard) -> None:
        self.dashboard = dashboard
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(20)

    async def _start(self) -> str:
        self.runner = web.AppRunner(self.dashboard.app(), shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the server's loop; only that loop may touch its streams."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(*arguments), done.set()))
        assert done.wait(10)

    def stop(self) -> None:
        """Ends the server."""
        self.call(self.dashboard.cut)
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
