"""Kills a driver's ranks one after the other, and measures the cost of each kill."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.clusters.faults import FIRST_STEPS, STEADY_STEPS, Cost, meanwhile
from bench.peers.drivers import Driver, Ranks

# At a load of 40, four ranks of torchrun take two minutes to import torch.
START_SECONDS = 300


async def kills(driver: Driver, ranks: int, count: int, python_path: str) -> AsyncIterator[Cost]:
    """Yields each kill's cost. If a lost rank doesn't come back, each kill has a new run."""
    done = 0
    while done < count:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            driver(Path(folder), ranks, python_path, {}) as run,
        ):
            while done < count:
                yield await _kill(run)
                done += 1
                if not run.returns:
                    break


async def _kill(run: Ranks) -> Cost:
    group = await steady(run)
    since = time.time()
    lost = run.kill(group)
    everyone = set(range(run.count))
    survivors = everyone - {lost} if run.survives else everyone
    back, redone = await run.steps.first_new(group, since, survivors)
    step = run.steps.whole_step(run.count)
    cost = Cost(back - since, redone, run.steps.seconds_of_last(group, redone), step=step)
    if run.survives:
        cost.meanwhile = await meanwhile(run.steps, group, survivors, lost, back, run.returns)
    return cost


async def steady(run: Ranks) -> int:
    """Returns the number of the group that trains, once all ranks have been in the group for a while."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        run.steps.poll()
        group = max(run.steps.done, default=0)
        first = len(run.steps.done) == 1 or not run.survives
        if run.steps.is_steady(group, run.count, FIRST_STEPS if first else STEADY_STEPS):
            await asyncio.sleep(random.uniform(0.2, 1.2))
            run.steps.poll()
            # A late rank may have been excluded meanwhile, which makes a new group.
            if group == max(run.steps.done):
                return group
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the ranks don't train: {run.printed()}")
