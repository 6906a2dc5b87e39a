"""Measures apply to all pods created and to all ranks joined, and counts the operator's writes."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from bench.clusters import job, operator, spread, table, world

RUNS = 7
WORKERS = 4
# A bare StatefulSet's four pods took 0.78 s to start on a real kubelet.
START_SECONDS = 0.78


async def main() -> None:
    created, started = [], []
    async with world() as made:
        with operator(made) as running:
            running.serving()
            await asyncio.sleep(1.0)
            for run in range(RUNS):
                name = f"start-{run}"
                applied = time.time()
                await made.apply(job(name, WORKERS))
                while len(pods := await made.pods(name)) < WORKERS:
                    await asyncio.sleep(0.005)
                created.append(time.time() - applied)
                joined = await made.joined(name, WORKERS, 1)
                started.append(max(at for _, at in joined.values()) - applied)
                assert all(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods)
                await made.delete(name)
            before = running.writes()
            finished = job("finishing", 2)
            finished["spec"]["command"] = ["python3", "-c", "import time; time.sleep(2)"]
            await made.apply(finished)
            while (await made.pods("finishing")) == []:
                await asyncio.sleep(0.01)
            until_pods = running.writes()
            while await made.pods("finishing"):
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)
            after = running.writes()
    columns = ["", "median", "min", "max", "ratio"]
    rows: list[list[object]] = [
        ["apply to all pods created", *spread(created)],
        ["apply to all ranks joined", *spread(started, START_SECONDS)],
    ]
    table(f"Start of a job of {WORKERS} workers, s ({RUNS} runs)", columns, rows)
    counts = {name: int(value - before.get(name, 0)) for name, value in sorted(after.items())}
    writes: list[list[object]] = [[name, count] for name, count in counts.items() if count]
    writes.append(["all", sum(counts.values())])
    writes.append(["until the pods exist (goal: 3)", int(sum(until_pods.values()) - sum(before.values()))])
    table("The operator's writes for a job of 2 workers from apply to its end", ["write", "count"], writes)


if __name__ == "__main__":
    asyncio.run(main())
