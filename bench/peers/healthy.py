"""What a healthy step costs: the time and the processor time of a rank's steps, beside plain DDP's.

On a busy machine the time of a step says little, its processor time more. So plain DDP takes turns with the others, and
each is compared with the plain run before it.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.clusters.steps import Steps


@dataclass(frozen=True)
class Healthy:
    """Healthy has the median time of a rank's step and its processor time, in seconds."""

    step: float
    processor: float


async def sample(steps: Steps, group: int, ranks: int, seconds: float) -> Healthy:
    """Measures the steps that a group makes from now on."""
    steps.poll()
    processes = [psutil.Process(steps.pids[group, rank]) for rank in range(ranks)]
    first, used = steps.furthest(group), _processor(processes)
    await asyncio.sleep(seconds)
    used = _processor(processes) - used
    steps.poll()
    last = steps.furthest(group)
    times = [at for step, at in sorted(steps.done[group][0].items()) if step >= first]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Healthy(statistics.median(gaps), used / ranks / (last - first))


def _processor(processes: Sequence[psutil.Process]) -> float:
    """Returns the processor time of processes and of what they have started, which may watch them."""
    all_of_them = [each for process in processes for each in (process, *process.children(recursive=True))]
    return sum(float(each.cpu_times().user + each.cpu_times().system) for each in all_of_them)


def row(name: str, found: Sequence[Healthy], plain: Sequence[Healthy]) -> list[object]:
    """Returns a row of the table: the medians, and by how much they are above plain DDP's of the same turn."""
    pairs = list(zip(found, plain, strict=True))
    step = statistics.median(each.step / bare.step - 1 for each, bare in pairs)
    processor = statistics.median(each.processor / bare.processor - 1 for each, bare in pairs)
    return [
        name,
        f"{statistics.median(each.step for each in found) * 1e3:.2f}",
        f"{step:+.1%}",
        f"{statistics.median(each.processor for each in found) * 1e3:.2f}",
        f"{processor:+.1%}",
    ]


COLUMNS = ["", "step, ms", "to plain", "processor, ms", "to plain"]
