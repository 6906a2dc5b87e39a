"""`/healthz`, `/readyz` and `/metrics` on one port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from trainmaster.controller.observability.metrics import OperatorMetrics
from trainmaster.serving import HttpServer, application


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
        app = application(most_body=0)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        app.router.add_get("/metrics", self._exposition)
        self._server = HttpServer(app)

    async def start(self, host: str, port: int) -> int:
        """Listens on a port; returns it, which is a free one for 0. Raises OSError."""
        return (await self._server.start(host, port))[1]

    async def close(self) -> None:
        """Accepts nothing more, and ends what is being answered."""
        await self._server.close()

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
