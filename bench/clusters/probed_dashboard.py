"""A dashboard's process measures its loop: `python -m bench.clusters.probed_dashboard ARGUMENTS`.

A line on standard input begins a measurement, and prints that of before as JSON: how late the event loop came to what
was due every 5 ms (ms). Memory is bounded to 3 GiB, so that no attack takes the whole machine.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time

from trainmaster.cli import dashboard as command
from trainmaster.cli.main import app

TICK_SECONDS = 0.005
MOST_MEMORY = 3 * 1024**3
lags: list[float] = []
ticked = time.perf_counter()


async def tick() -> None:
    global ticked
    while True:
        ticked = time.perf_counter()
        await asyncio.sleep(TICK_SECONDS)
        lags.append(time.perf_counter() - ticked - TICK_SECONDS)


def obey() -> None:
    for _ in sys.stdin:
        # A loop that stands still has missed all these ticks.
        standing = time.perf_counter() - ticked - TICK_SECONDS
        missed = [standing - n * TICK_SECONDS for n in range(int(standing / TICK_SECONDS))]
        found = sorted([*lags, *missed]) or [0.0]
        lags.clear()
        print(json.dumps({"p99": 1000 * found[int(len(found) * 0.99)], "max": 1000 * found[-1]}), flush=True)


def probed() -> None:
    serve = command._serve

    async def serve_probed(*arguments: object) -> None:
        ticking = asyncio.create_task(tick())
        await serve(*arguments)  # type: ignore[arg-type]
        ticking.cancel()

    vars(command)["_serve"] = serve_probed
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    threading.Thread(target=obey, daemon=True).start()
    sys.argv[1:1] = ["dashboard"]
    app()


if __name__ == "__main__":
    probed()
