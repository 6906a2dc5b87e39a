"""A killed rank to all ranks joined again, through the whole operator: `python -m bench.operator_restart`.

The ranks' processes are killed from here, so the cluster's containers must be processes of this machine (the embedded
cluster; a real kubelet on the same machine works too).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

from bench.clusters import World, job, operator, spread, table, world

WORKERS = 4
FRESH, IN_A_ROW = 3, 5
# PEERS.md: the goal, the program's own start apart, fresh and ten times in a row; JobSet's best is 1.34.
GOAL_SECONDS = 0.25


async def kill_rank(made: World, name: str, rank: int, attempt: int) -> float:
    """SIGKILL a rank; seconds until every rank of the next attempt has joined."""
    ranks = await made.joined(name, WORKERS, attempt)
    await asyncio.sleep(0.5)
    killed = time.time()
    os.kill(ranks[rank][0], signal.SIGKILL)
    again = await made.joined(name, WORKERS, attempt + 1)
    return max(at for _, at in again.values()) - killed


async def main() -> None:
    policy = {"failurePolicy": {"maxRestarts": 50}}
    fresh, repeated, pod_deleted = [], [], []
    async with world() as made:
        with operator(made) as running:
            running.serving()
            await asyncio.sleep(1.0)
            for run in range(FRESH):
                name = f"fresh-{run}"
                await made.apply(job(name, WORKERS, **policy))
                fresh.append(await kill_rank(made, name, 2, 1))
                await made.delete(name)
            await made.apply(job("row", WORKERS, **policy))
            for attempt in range(1, IN_A_ROW + 1):
                repeated.append(await kill_rank(made, "row", attempt % WORKERS, attempt))
            attempt = IN_A_ROW + 1
            for worker in (1, 0):
                await made.joined("row", WORKERS, attempt)
                await asyncio.sleep(1.0)
                pods = await made.pods("row")
                pod = next(p for p in pods if p["metadata"]["name"] == f"row-{worker}")
                killed = time.time()
                await made.force_delete(pod)
                again = await made.joined("row", WORKERS, attempt + 1)
                pod_deleted.append(max(at for _, at in again.values()) - killed)
                attempt += 1
    rows: list[list[object]] = [
        [f"rank killed, fresh ({FRESH} jobs)", *spread(fresh, GOAL_SECONDS)],
        [f"rank killed, {IN_A_ROW} times in a row", *spread(repeated, GOAL_SECONDS)],
        ["in the order they came", ", ".join(f"{value:.2f}" for value in repeated), "", "", ""],
        ["pod deleted by force (a member, the lead)", *spread(pod_deleted, 1.0)],
    ]
    table(f"From the fault to all {WORKERS} ranks joined, s", ["", "median", "min", "max", "ratio to the goal"], rows)


if __name__ == "__main__":
    asyncio.run(main())
