"""The page's tests share a browser, and the dashboard that invents its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard_pages import troubled
from tests.dashboard_pages.browser import CHROMIUM, MISSING, chromium, new_page
from tests.dashboard_pages.served import Served
from tests.dashboard_pages.server import FakeDashboard


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts Debian's Chromium, once for a file of tests."""
    if not CHROMIUM.exists():
        pytest.fail(MISSING, pytrace=False)
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """Serves a dashboard with a thousand jobs that no test changes, and two in trouble."""
    dashboard = FakeDashboard(seconds=0.25, batch=200)
    troubled.add(dashboard)
    served = Served(dashboard)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def started() -> Iterator[list[Served]]:
    """Starts single tests' dashboards, which end only after the pages that use them."""
    started: list[Served] = []
    yield started
    for served in started:
        served.stop()


@pytest.fixture
def own(started: list[Served]) -> Served:
    """Serves a dashboard with few jobs that a test may change."""
    started.append(Served(FakeDashboard(20, seconds=0.1, batch=5)))
    return started[-1]


@pytest.fixture
def opened(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """Opens a page, and collects its console messages; a test that leaves any of them fails."""
    with new_page(browser) as (page, said):
        yield page, said
    assert said == []


@pytest.fixture
def page(opened: tuple[Page, list[str]]) -> Page:
    """Returns the page."""
    return opened[0]


@pytest.fixture
def complaints(opened: tuple[Page, list[str]]) -> list[str]:
    """Returns the page's console messages; a test removes those that it provoked."""
    return opened[1]
