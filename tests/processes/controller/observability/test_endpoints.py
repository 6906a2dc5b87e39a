"""`observability.endpoints`: probes are answered, and other work continues, while a long metrics page is made."""

from __future__ import annotations

import asyncio
import threading

import aiohttp

from trainmaster_operator.controller.observability.endpoints import exposition, probes
from trainmaster_operator.controller.observability.metrics import OperatorMetrics


class LongPage(OperatorMetrics):
    """Its page is ready when other work has been done meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def text(self) -> bytes:
        self.begun.set()
        if not self.may_end.wait(5):
            raise TimeoutError("nothing else was done")
        return super().text()


def test_probes_are_answered_while_a_page_is_made() -> None:
    async def scrape() -> None:
        metrics = LongPage()
        servers = (
            probes(healthy=lambda: None, ready=lambda: None),
            exposition(metrics, refresh=lambda: None, scrapers=None),
        )
        health, scraped = [f"http://127.0.0.1:{(await server.start('127.0.0.1', 0))[1]}" for server in servers]
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            page = asyncio.create_task(session.get(f"{scraped}/metrics"))
            assert await asyncio.to_thread(metrics.begun.wait, 5)
            probe = await session.get(f"{health}/healthz")
            metrics.may_end.set()
            assert (await probe.text(), "trainmaster_leader" in await (await page).text()) == ("ok\n", True)
        for server in servers:
            await server.close()

    asyncio.run(asyncio.wait_for(scrape(), 30))
