"""Tests and benchmarks of the page drive Debian's Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

# Debian's, or Chrome on a machine that has that instead.
CHROMIUM = Path(shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium")
MISSING = f"{CHROMIUM} is missing, which drives the dashboard's page: apt-get install chromium"
# Limit for things that a page shows at once, on a busy machine (milliseconds).
PATIENCE = 30_000.0
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yields a browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def new_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """Yields a page in a new profile, and its console messages: errors, violations of its CSP."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page = context.new_page()
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            said.append(f"{message.text} ({message.location['url']})")

    page.on("console", note)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page, said
    context.close()


# Resolves when the next batch of changes is on the page.
ONE_BATCH = """new Promise(done => {
  const seen = new MutationObserver(() => { seen.disconnect(); requestAnimationFrame(() => done(0)); });
  seen.observe(document.querySelector(".rows"), {subtree: true, childList: true, characterData: true});
})"""


def batch_milliseconds(page: Page, batches: int) -> list[float]:
    """Returns how long the list's scripts ran for each of some batches of changes (milliseconds)."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def script() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1e3 * next(metric["value"] for metric in metrics if metric["name"] == "ScriptDuration")

    spent = []
    before = script()
    for _ in range(batches):
        session.send("Runtime.evaluate", {"expression": ONE_BATCH, "awaitPromise": True})
        after = script()
        spent.append(after - before)
        before = after
    return spent
