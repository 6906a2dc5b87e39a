"""Compares the reported goodput of jobs with a fault every few seconds with a prediction: `python -m bench.goodput`.

Two ranks of a plain torch script (DDP, gloo) with the three lines of `trainloop.recovery`; a random rank is killed with
SIGKILL again and again. With `memory` they go on from the state in memory, with `disk` from a checkpoint every two
seconds, started anew. Of each interval between two faults the time from the kill to the end of the first new step is
lost, that step apart, so with K faults in W seconds, S of them until the first step,

    goodput = 1 - (S + K x (kill to the first new step - a step)) / W

with the median of that time, as this benchmark measures it itself ("predicted"), and with each job's own times ("by own
times"). "Trained" is the reported goodput of the time after the first step alone: what the start costs a short run says
nothing of faults. The ranks' processes are killed from here and write down their steps in a file of this machine.

    python -m bench.goodput [--states memory disk] [--intervals 5 10 20] [--jobs 2]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clusters import World, operator, table, world
from bench.clusters.steps import Steps
from bench.programs.installed import trainloop_installed
from trainmaster.api.v1alpha1 import JobStatus
from trainmaster.controller.apiserver.cluster import JOBS
from trainmaster.reconciling.status.time_spent import CATEGORIES
from trainmaster.reconciling.times import to_seconds

WORKERS = 2
PAUSE, CHECKPOINT_STEPS = 0.05, 40
STATES: dict[str, dict[str, Any]] = {"memory": {}, "disk": {"warmStart": {"enabled": False}}}
INTERVALS, FAULTS = (5.0, 10.0, 20.0), 10
SCRIPT = Path(__file__).parent / "programs" / "stepping_ranks.py"


@dataclass(frozen=True)
class Run:
    """Run is one job's end: what the operator reports, and what is needed to predict it."""

    status: JobStatus
    until_first_step: float
    # From each kill to the end of the first new step, that step apart.
    lost: tuple[float, ...]

    @property
    def wall(self) -> float:
        return sum(self.seconds(name) for name in CATEGORIES)

    def seconds(self, category: str) -> float:
        return float(getattr(self.status.time_spent, category) or 0.0)

    def predicted(self, lost: float) -> float:
        return 1 - (self.until_first_step + len(self.lost) * lost) / self.wall

    @property
    def reported(self) -> float:
        return (self.status.progress.goodput if self.status.progress is not None else None) or 0.0

    @property
    def trained(self) -> float:
        return self.reported * self.wall / (self.wall - self.until_first_step)

    @property
    def by_own_times(self) -> float:
        return 1 - (self.until_first_step + sum(self.lost)) / self.wall


def job(name: str, state: str, folder: Path, python_path: str) -> dict[str, Any]:
    """Returns a job whose ranks keep their state in memory, or on a disk alone."""
    environment = {
        "STEPS_FILE": str(folder / f"{name}.steps"),
        "PAUSE": str(PAUSE),
        "CHECKPOINT_STEPS": str(CHECKPOINT_STEPS),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": python_path,
        **({} if state == "memory" else {"WITHOUT_MEMORY": "1"}),
    }
    variables = [{"name": key, "value": value} for key, value in environment.items()]
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {
            "image": "ghcr.io/trainmaster/trainer:0.1.0",
            "command": ["python", str(SCRIPT)],
            "workers": WORKERS,
            "checkpoint": {"volume": {"emptyDir": True}, "path": "/checkpoints"},
            "failurePolicy": {"maxRestarts": 100},
            "podTemplate": {"spec": {"containers": [{"name": "worker", "env": variables}]}},
            **STATES[state],
        },
    }


async def train_with_faults(made: World, name: str, state: str, interval: float, python_path: str) -> Run:
    """Runs a job that is killed `FAULTS` times, and goes on for one interval more."""
    steps = Steps(made.folder / f"{name}.steps")
    await made.apply(job(name, state, made.folder, python_path))
    due = first = await _first_beyond(steps, 0, 0.0)
    lost = []
    for _ in range(FAULTS):
        # Not in step with the checkpoints.
        due += interval * random.uniform(0.8, 1.2)
        await asyncio.sleep(max(due - time.time(), 0))
        steps.poll()
        killed = time.time()
        os.kill(steps.pids[max(steps.done), random.randrange(WORKERS)], signal.SIGKILL)
        # What the ranks did before they noticed counts as done.
        await asyncio.sleep(0.15)
        steps.poll()
        reached = steps.furthest()
        back = await _first_beyond(steps, reached, killed)
        lost.append(back - killed - PAUSE)
    await asyncio.sleep(max(due + interval - time.time(), 0))
    (made.folder / f"{name}.steps.stop").touch()
    async with asyncio.timeout(60):
        while True:
            status = JobStatus.model_validate((await made.cluster.get(JOBS, "bench", name)).get("status") or {})
            if status.phase == "Succeeded":
                break
            await asyncio.sleep(0.2)
    return Run(status, first - (to_seconds(status.start_time) or first), tuple(lost))


async def _first_beyond(steps: Steps, step: int, after: float) -> float:
    async with asyncio.timeout(120):
        while True:
            steps.poll()
            found = steps.first_beyond(step, after, WORKERS) if steps.done else None
            if found is not None:
                return found
            await asyncio.sleep(0.02)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.goodput", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", nargs="*", choices=list(STATES), default=list(STATES))
    parser.add_argument("--intervals", nargs="*", type=float, default=list(INTERVALS))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    rows: list[list[object]] = []
    parts: list[list[object]] = []
    with trainloop_installed() as python_path:
        async with world() as made:
            with operator(made) as running:
                running.serving()
                for state in given.states:
                    for interval in given.intervals:
                        names = [f"{state}-{interval:g}-{number}" for number in range(given.jobs)]
                        runs = await asyncio.gather(
                            *(train_with_faults(made, name, state, interval, python_path) for name in names)
                        )
                        lost = statistics.median(seconds for run in runs for seconds in run.lost)
                        reported = [run.reported for run in runs]
                        predicted = statistics.median(run.predicted(lost) for run in runs)
                        known = statistics.median(run.by_own_times for run in runs)
                        trained = statistics.median(run.trained for run in runs)
                        apart = 100 * statistics.median(run.reported - run.by_own_times for run in runs)
                        shares = (trained, statistics.median(reported), min(reported), predicted, known)
                        figures = [f"{value:.1%}" for value in shares]
                        rows.append([f"{state}, {interval:g} s", f"{lost:.2f}", *figures, f"{apart:+.1f}"])
                        for category in CATEGORIES:
                            share = statistics.median(run.seconds(category) / run.wall for run in runs)
                            if share > 0.0005:
                                parts.append([f"{state}, {interval:g} s", category, f"{share:.1%}"])
    table(
        f"Goodput with a rank killed {FAULTS} times ({given.jobs} jobs each)",
        ["state, fault every", "lost, s", "trained", "goodput", "min", "predicted", "by own times", "points apart"],
        rows,
    )
    table("Where the time went, median share", ["state, a fault every", "category", "share"], parts)


if __name__ == "__main__":
    asyncio.run(main())
