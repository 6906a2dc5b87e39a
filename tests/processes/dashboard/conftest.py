"""A browser for all tests of the page, and the dashboard that invents its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard_pages.browser import CHROMIUM, MISSING, chromium, new_page
from tests.dashboard_pages.served import Served
from tests.dashboard_pages.server import FakeDashboard


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, one for a file of tests."""
    if not CHROMIUM.exists():
        pytest.fail(MISSING, pytrace=False)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """A dashboard with a thousand jobs that no test changes."""
    served = Served(FakeDashboard(seconds=0.25, batch=200))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def started() -> Iterator[list[Served]]:
    """Dashboards of single tests, which end when the pages are gone that would miss them."""
    started: list[Served] = []
    yield started
    for served in started:
        served.stop()


@pytest.fixture
def own(started: list[Served]) -> Served:
    """A dashboard with few jobs that a test may change."""
    started.append(Served(FakeDashboard(20, seconds=0.1, batch=5)))
    return started[-1]


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
