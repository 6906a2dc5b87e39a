"""Measures the dashboard's page in Debian's Chromium: its bytes, its first paint, and the cost of a second of changes.

    python -m bench.dashboard_page

The dashboard invents a thousand jobs, of which 200 change at once. The first paint is measured over the loopback, in a
browser with an empty cache. Chromium itself counts the scripts' time for a batch. The best of several tries is printed,
because other programs may use the machine.
"""

from __future__ import annotations

import sys
import zlib

from tests.dashboard_pages.browser import CHROMIUM, MISSING, batch_milliseconds, chromium, new_page
from tests.dashboard_pages.served import Served
from tests.dashboard_pages.server import PAGE, SENT, FakeDashboard

TRIES, BATCHES = 5, 12
LIMIT_BYTES, LIMIT_PAINT_SECONDS, LIMIT_SCRIPT_MILLISECONDS = 200_000, 0.5, 16.0
PAINT = """() => new Promise(done => new PerformanceObserver(list => {
  const paint = list.getEntries().find(entry => entry.name === "first-contentful-paint");
  if (paint) done(paint.startTime / 1000);
}).observe({type: "paint", buffered: true}))"""
ROWS = "() => performance.now() / 1000"


def main() -> int:
    """Measures, prints the table, and returns 1 if a limit is exceeded."""
    if not CHROMIUM.exists():
        print(MISSING)
        return 1
    files = [path.read_bytes() for path in PAGE.rglob("*") if path.suffix in SENT]
    sent, packed = sum(map(len, files)), sum(len(zlib.compress(content)) for content in files)
    served = Served(FakeDashboard(seconds=0.25, batch=200))
    paints, rows, batches = [], [], []
    with chromium() as browser:
        for _ in range(TRIES):
            with new_page(browser) as (page, _):
                page.goto(served.url)
                paints.append(page.evaluate(PAINT))
                page.locator(".rows .job-row").first.wait_for()
                rows.append(page.evaluate(ROWS))
                batches += batch_milliseconds(page, BATCHES // TRIES + 1)
    served.stop()
    results = [
        ("the page, as it is (bytes)", f"{sent:,}", f"{LIMIT_BYTES:,}", sent < LIMIT_BYTES),
        ("the same, packed (bytes)", f"{packed:,}", "", True),
        ("first paint (s)", f"{min(paints):.3f}", f"{LIMIT_PAINT_SECONDS}", min(paints) < LIMIT_PAINT_SECONDS),
        ("1,000 jobs on the page (s)", f"{min(rows):.3f}", "", True),
        ("scripts for 200 changed rows (ms)", f"{min(batches):.1f}", f"{LIMIT_SCRIPT_MILLISECONDS:.0f}",
         min(batches) < LIMIT_SCRIPT_MILLISECONDS),
    ]  # fmt: skip
    print(f"{'':36}{'best':>10}{'limit':>10}")
    for what, best, limit, _ in results:
        print(f"{what:36}{best:>10}{limit:>10}")
    return 0 if all(kept for *_, kept in results) else 1


if __name__ == "__main__":
    sys.exit(main())
