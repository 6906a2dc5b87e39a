"""`/healthz`, `/readyz` and `/metrics` on one port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from trainmaster.controller.observability.metrics import OperatorMetrics


class HealthServer:
    """Serves the probes; `healthy` and `ready` answer None when all is well, else one sentence."""

    def __init__(
        self,
        metrics: OperatorMetrics,
        *,
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
        refresh: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._ready = ready
        self._refresh = refresh
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen on a port; returns it, which is a free one for 0."""
        app = web.Application()
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        app.router.add_get("/metrics", self._exposition)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return _answer(self._healthy())

    async def _readiness(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _exposition(self, _: web.Request) -> web.Response:
        self._refresh()
        # With 5,000 jobs that takes more than a second, in which recoveries would wait.
        text = await asyncio.to_thread(self._metrics.text)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})


def _answer(problem: str | None) -> web.Response:
    return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)
