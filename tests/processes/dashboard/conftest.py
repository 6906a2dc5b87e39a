"""A browser for all tests of the page, and the dashboard that invents its answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard_pages.server import FakeDashboard

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


class Served:
    """Served is a FakeDashboard that runs in a thread, at `url`."""

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

    def call(self, function: object, *arguments: object) -> None:
        """Calls a function in the server's loop, which alone may touch its streams."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(*arguments), done.set()))  # type: ignore[operator]
        assert done.wait(10)

    def stop(self) -> None:
        """Ends the server."""
        self.call(self.dashboard.cut)
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, one for a file of tests."""
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing, which these tests drive: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """A dashboard with a thousand jobs that no test changes."""
    served = Served(FakeDashboard(seconds=0.25, batch=200))
    yield served
    served.stop()


@pytest.fixture
def own() -> Iterator[Served]:
    """A dashboard with few jobs that a test may change."""
    served = Served(FakeDashboard(20, seconds=0.1, batch=5))
    yield served
    served.stop()


@contextmanager
def new_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """Yields a page in a profile of its own, and what it says on the console: errors, violations of its CSP."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page, said
    context.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page and what it says on the console: the test fails that leaves any of that."""
    with new_page(browser) as (page, said):
        yield page, said
    assert said == []


@pytest.fixture
def page(opened: tuple[Page, list[str]]) -> Page:
    """The page."""
    return opened[0]


@pytest.fixture
def complaints(opened: tuple[Page, list[str]]) -> list[str]:
    """What it says on the console, from which a test takes what it has provoked."""
    return opened[1]
