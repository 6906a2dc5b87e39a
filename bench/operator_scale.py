"""Measures CPU, memory and resync with many jobs of four faked pods: `python -m bench.operator_scale [JOBS]`.

The limits apply to 1,000 jobs. On two cores the embedded cluster takes many minutes to create so many jobs, so the
default is 250.
"""

from __future__ import annotations

import asyncio
import sys
import time

import psutil

from bench.clusters import Operator, World, job, operator, table, until, world
from trainmaster_operator.controller.apiserver.cluster import PODS

WORKERS = 4
IDLE_SECONDS = 30.0
# The limits for 1,000 jobs: seconds, MB, per cent of a core.
RESYNC_LIMIT, MEMORY_LIMIT, CPU_LIMIT = 10.0, 300.0, 3.0


async def all_running(made: World, running: Operator, jobs: int) -> float:
    return await until(lambda: running.metrics().get('trainmaster_jobs{phase="Running"}', 0) >= jobs, 900)


def settled(running: Operator, jobs: int) -> bool:
    metrics = running.metrics()
    return metrics["trainmaster_queue_depth"] == 0 and metrics["trainmaster_streams_open"] >= jobs


async def main(jobs: int) -> None:
    rows: list[list[object]] = []
    async with world(fake=True) as made:
        agents = ("--reach", "direct", "--agent-port", str(made.agent_port))
        with operator(made, *agents) as running:
            running.serving()
            started = time.monotonic()
            process = psutil.Process(running.process.pid)
            for first in range(0, jobs, 50):
                await asyncio.gather(
                    *(made.apply(job(f"job-{n}", WORKERS)) for n in range(first, min(first + 50, jobs)))
                )
            await all_running(made, running, jobs)
            rows.append(["apply to all running", f"{time.monotonic() - started:.1f} s", ""])
            rows.append(["operator CPU for it, a job", f"{1000 * sum(process.cpu_times()[:2]) / jobs:.1f} ms", ""])
            await asyncio.sleep(10)
            before = sum(process.cpu_times()[:2])
            await asyncio.sleep(IDLE_SECONDS)
            share = 100 * (sum(process.cpu_times()[:2]) - before) / IDLE_SECONDS
            rows.append(["idle CPU", f"{share:.2f} %", f"{share / CPU_LIMIT:.2f} of {CPU_LIMIT:g} %"])
            memory = process.memory_info().rss / 1e6
            rows.append(["resident memory", f"{memory:.0f} MB", f"{memory / MEMORY_LIMIT:.2f} of {MEMORY_LIMIT:g} MB"])
            writes = sum(running.writes().values()) / jobs
            rows.append(["writes a job until it runs", f"{writes:.2f}", ""])
        with operator(made, *agents) as running:
            known = running.serving()
            await until(lambda: settled(running, jobs), 300)
            seconds = time.monotonic() - running.started
            memory = psutil.Process(running.process.pid).memory_info().rss / 1e6
            rows.append(
                ["restart to all jobs known", f"{known:.1f} s", f"{known / RESYNC_LIMIT:.2f} of {RESYNC_LIMIT:g} s"]
            )
            rows.append(["restart to all reconciled, streams open", f"{seconds:.1f} s", ""])
            rows.append(["resident memory after the restart", f"{memory:.0f} MB", ""])
            rows.append(["writes after the restart", int(sum(running.writes().values())), ""])
        count = sum([len(page) async for page in made.cluster.pages(PODS, "bench", metadata_only=True)])
    table(f"{jobs} jobs of {WORKERS} faked pods ({count} pods)", ["", "measured", "ratio to the limit"], rows)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 250))
