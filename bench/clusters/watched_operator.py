"""Runs an operator that measures itself all the time: `python -m bench.clusters.watched_operator FILE ARGUMENTS ...`.

The operator is `trainmaster ARGUMENTS`. Every quarter of a second it appends a line of JSON to FILE: `at` (seconds
since the epoch), and for this quarter the event loop's longest lag, the store's longest time for one object, the
longest decision on a job (all in seconds), and the resident memory at the end (bytes). The store's and the decision's
times are processor time of the thread.

The lag is the processor time that the process itself used while the loop was late. Time that other programs of a busy
machine use isn't counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trainmaster.cli.main import app
from trainmaster_operator.controller.app import Operator
from trainmaster_operator.controller.cache.store import Store

TICK, LINE_SECONDS = 0.005, 0.25


def main(file: Path, arguments: list[str]) -> None:
    longest: dict[str, float] = defaultdict(float)
    run, upsert = Operator.run, Store.upsert

    def watched_upsert(self: Store, *arguments: Any) -> None:
        started = time.thread_time()
        try:
            upsert(self, *arguments)
        finally:
            longest["upsert"] = max(longest["upsert"], time.thread_time() - started)

    def watched_decide(decide: Callable[..., Any]) -> Callable[..., Any]:
        def deciding(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return decide(*arguments)
            finally:
                longest["decide"] = max(longest["decide"], time.thread_time() - started)

        return deciding

    async def watch() -> None:
        process, written = psutil.Process(), time.perf_counter()
        with file.open("a", buffering=1) as lines:
            while True:
                before, used = time.perf_counter(), time.process_time()
                await asyncio.sleep(TICK)
                now = time.perf_counter()
                longest["lag"] = max(longest["lag"], min(now - before - TICK, time.process_time() - used))
                if now - written > LINE_SECONDS:
                    line = {"lag": 0.0, "upsert": 0.0, "decide": 0.0, **longest}
                    lines.write(json.dumps({"at": time.time(), "memory": process.memory_info().rss, **line}) + "\n")
                    longest.clear()
                    written = now

    async def watched_run(self: Operator, stop: asyncio.Event) -> None:
        self._decide = watched_decide(self._decide)
        watching = asyncio.create_task(watch())
        try:
            await run(self, stop)
        finally:
            watching.cancel()

    for of, name, method in ((Operator, "run", watched_run), (Store, "upsert", watched_upsert)):
        setattr(of, name, method)
    sys.argv = ["trainmaster", *arguments]
    app()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
