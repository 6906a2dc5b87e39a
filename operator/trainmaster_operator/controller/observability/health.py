"""The operator's two ports: one for the kubelet's probes, one for `/metrics`, which names every namespace's jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.controller.observability.scrapers import NotAdmitted, Scrapers
from trainmaster_operator.serving import Exposition, HttpServer, application
from trainmaster_operator.wire.names import group_of


def probes(*, healthy: Callable[[], str | None], ready: Callable[[], str | None]) -> HttpServer:
    """Returns the server of the probes; `healthy` and `ready` answer None when all is well, else one sentence."""

    def answering(problem: Callable[[], str | None]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            found = problem()
            return web.Response(text=(found or "ok") + "\n", status=503 if found else 200)

        return answer

    app = application(most_body=0)
    for path, problem in (("/healthz", healthy), ("/readyz", ready)):
        app.router.add_get(path, answering(problem))
    return HttpServer(app)


def exposition(metrics: OperatorMetrics, *, refresh: Callable[[], None], scrapers: Scrapers | None) -> HttpServer:
    """Returns the server of `/metrics`: for those whom `scrapers` admits, or for everybody where that is None."""

    async def make() -> bytes:
        refresh()
        # With 5,000 jobs that takes more than a second, in which recoveries would wait.
        return await asyncio.to_thread(metrics.text)

    page = Exposition(make)

    async def answer(request: web.Request) -> web.StreamResponse:
        if scrapers is not None:
            try:
                await scrapers.require(request.headers.get("Authorization", ""), group_of(request.remote or "::"))
            except NotAdmitted as error:
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
                return web.Response(text=f"{error}\n", status=error.status, headers=headers)
        return await page.answer(request)

    app = application(most_body=0)
    app.router.add_get("/metrics", answer, allow_head=False)
    return HttpServer(app)
