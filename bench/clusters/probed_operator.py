"""Runs an operator that measures itself on command: `python -m bench.clusters.probed_operator KUBECONFIG REACH LOG`.

The commands are lines of standard input. `begin` starts a measurement, and `end` prints its result as JSON: the event
loop's lag (ms), the growth of the resident memory (MB), and the store's changes a second. A thread answers, even while
the loop is blocked. The operator's memory is limited to 3 GiB, so that an attack can't use all the machine's memory.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import NAMESPACE
from trainmaster_operator.controller import wiring
from trainmaster_operator.controller.app import Operator
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.reconciling import decide
from trainmaster_operator.serving.logs import set_up

TICK_SECONDS, MEMORY_SECONDS = 0.005, 0.02
MOST_MEMORY = 3 * 1024**3


class Probe:
    """Probe is the current measurement."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.begin()

    def begin(self) -> None:
        self.began = self.ticked = time.perf_counter()
        self.lags: list[float] = []
        self.changes = 0
        self.memory = self.peak = self._process.memory_info().rss

    async def tick(self) -> None:
        while True:
            self.ticked, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            # The time that a busy machine's other programs use isn't counted.
            late = time.perf_counter() - self.ticked - TICK_SECONDS
            self.lags.append(min(late, time.process_time() - used))

    def watch_memory(self) -> None:
        while True:
            time.sleep(MEMORY_SECONDS)
            self.peak = max(self.peak, self._process.memory_info().rss)

    def result(self) -> dict[str, float]:
        now = time.perf_counter()
        # If the loop is blocked, it has missed all these ticks.
        standing = max(0.0, now - self.ticked - TICK_SECONDS)
        missed = [standing - n * TICK_SECONDS for n in range(int(standing / TICK_SECONDS))] if standing > 0.05 else []
        lags = sorted([*self.lags, *missed]) or [0.0]
        return {
            "p50": 1000 * lags[len(lags) // 2],
            "p99": 1000 * lags[int(len(lags) * 0.99)],
            "max": 1000 * lags[-1],
            "memory": (self.peak - self.memory) / 1e6,
            "resident": self.peak / 1e6,
            "changes": self.changes / (now - self.began),
        }


def obey(probe: Probe) -> None:
    for line in sys.stdin:
        if line.strip() == "begin":
            probe.begin()
            print("{}", flush=True)
        else:
            print(json.dumps(probe.result()), flush=True)


async def main(kubeconfig: str, reach: str) -> None:
    probe = Probe()

    def counted(changed: Callable[[JobKey], None], *rest: Any, **options: Any) -> Store:
        def count(key: JobKey) -> None:
            probe.changes += 1
            changed(key)

        return Store(count, *rest, **options)

    vars(wiring)["Store"] = counted
    for work in (lambda: obey(probe), probe.watch_memory):
        threading.Thread(target=work, daemon=True).start()
    ticking = asyncio.create_task(probe.tick())
    settings = OperatorSettings(
        namespaces=(NAMESPACE,),
        kubeconfig=kubeconfig,
        leader_elect=False,
        reach="proxy" if reach == "proxy" else "direct",
    )
    await Operator(settings, decide).run(asyncio.Event())
    ticking.cancel()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    # `trainmaster operator run` does this too.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with Path(sys.argv[3]).open("w") as log:
        sys.stderr = log
        set_up("text", "INFO")
        asyncio.run(main(sys.argv[1], sys.argv[2]))
