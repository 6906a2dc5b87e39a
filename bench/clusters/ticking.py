"""Runs a command that measures its own event loop: `python -m bench.clusters.ticking FILE ARGUMENTS ...`.

The command is `trainmaster ARGUMENTS`. Every quarter of a second it appends a line of JSON to FILE: `at` (seconds since
the epoch), `lags` (the loop's delay at each tick of 5 ms, in seconds of the clock, which includes other processes'
time), and `own` (the processor time that the process itself used during each delay).
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

TICK, LINE_SECONDS = 0.005, 0.25


async def tick(file: Path) -> None:
    """Writes the loop's delays until cancelled."""
    lags: list[float] = []
    own: list[float] = []
    written = time.perf_counter()
    with file.open("a", buffering=1) as lines:
        while True:
            before, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            lags.append(now - before - TICK)
            own.append(min(lags[-1], time.process_time() - used))
            if now - written > LINE_SECONDS:
                lines.write(json.dumps({"at": time.time(), "lags": lags, "own": own}) + "\n")
                lags, own, written = [], [], now


def main(file: Path, arguments: list[str]) -> None:
    """Runs the command, with the ticks in its main thread's event loop."""
    run = asyncio.run

    def ticking(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def both() -> Any:
            task = asyncio.create_task(tick(file))
            try:
                return await main
            finally:
                task.cancel()

        is_main = threading.current_thread() is threading.main_thread()
        return run(both() if is_main else main, **options)

    vars(asyncio)["run"] = ticking
    from trainmaster.cli.main import app

    sys.argv = ["trainmaster", *arguments]
    app()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
