"""Compares the reported goodput of jobs with a fault every few seconds with a prediction: `python -m bench.goodput`.

Four ranks of a plain torch script (DDP, gloo) with the lines of `trainloop.recovery`; a random rank is killed with
SIGKILL again and again. With `continue` the others never stop, and share out its micro-batches until it is back; with
`memory` all go on from the state in memory, with `disk` from a checkpoint every two seconds, started anew. Of each
interval between two faults the time from the kill to the end of the first new step is lost, that step apart, so with K
faults in W seconds, S of them until the first step,

    goodput = 1 - (S + K x (kill to the first new step - a step)) / W

with the median of that time, as this benchmark measures it itself ("predicted"), and with each job's own times ("by own
times"). "Trained" is the reported goodput of the time after the first step alone: what the start costs a short run says
nothing of faults. "By steps" is the share of that time in which the steps that were done would have been done without a
fault, by the median step of whole groups: it counts slower steps too. The ranks' processes are killed from here and
write down their steps in a file of this machine.

    python -m bench.goodput [--states continue memory disk] [--intervals 5 10 20] [--jobs 1] [--faults 10]

All of it takes a quarter of an hour, with `--faults 5` eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.clusters import NAMESPACE, World, operator, table, world
from bench.clusters.failures import Failures
from bench.clusters.stepping_jobs import environment, stepping_job, steps_file
from bench.clusters.steps import Steps
from bench.programs.installed import trainloop_installed
from trainmaster.api.v1alpha1 import TIME_CATEGORIES, JobStatus
from trainmaster.controller.apiserver.cluster import JOBS
from trainmaster.reconciling.times import to_seconds

WORKERS = 4
PAUSE, CHECKPOINT_STEPS = 0.05, 40
CONTINUE = "continue"
STATES: dict[str, dict[str, Any]] = {CONTINUE: {}, "memory": {}, "disk": {"warmStart": {"enabled": False}}}
INTERVALS, FAULTS = (5.0, 10.0, 20.0), 10


@dataclass(frozen=True)
class Run:
    """Run is one job's end: what the operator reports, and what is needed to predict it."""

    status: JobStatus
    until_first_step: float
    # From each kill to the end of the first new step, that step apart.
    lost: tuple[float, ...]
    by_steps: float

    @property
    def wall(self) -> float:
        return sum(self.seconds(name) for name in TIME_CATEGORIES)

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


async def train_with_faults(made: World, name: str, state: str, interval: float, faults: int, python_path: str) -> Run:
    """Runs a job that is killed `faults` times, and goes on for one interval more."""
    variables = environment(
        made.folder,
        name,
        python_path,
        in_memory=state != "disk",
        checkpoint_steps=CHECKPOINT_STEPS,
        shared=state == CONTINUE,
    )
    job = stepping_job(
        name,
        WORKERS,
        {**variables, "PAUSE": str(PAUSE), "STOPS": "1"},
        checkpoint={"volume": {"emptyDir": True}, "path": "/checkpoints"},
        failurePolicy={"maxRestarts": 100},
        **STATES[state],
    )
    path = steps_file(made.folder, name)
    steps = Steps(path)
    await made.apply(job)
    due = first = (await steps.first_new(0, 0.0, range(WORKERS)))[0]
    lost = []
    for _ in range(faults):
        # Not in step with the checkpoints.
        due += interval * random.uniform(0.8, 1.2)
        await asyncio.sleep(max(due - time.time(), 0))
        steps.poll()
        attempt, killed = max(steps.done), time.time()
        # One that was killed before may not be back yet.
        rank = random.choice(sorted(steps.done[attempt]))
        os.kill(steps.pids[attempt, rank], signal.SIGKILL)
        waiting = set(steps.done[attempt]) - {rank} if state == CONTINUE else range(WORKERS)
        back, _ = await steps.first_new(attempt, killed, waiting)
        lost.append(back - killed - PAUSE)
    await asyncio.sleep(max(due + interval - time.time(), 0))
    steps.poll()
    by_steps = steps.furthest(max(steps.done)) * steps.whole_step(WORKERS) / (time.time() - first)
    path.with_name(f"{path.name}.stop").touch()
    async with asyncio.timeout(60):
        while True:
            status = JobStatus.model_validate((await made.cluster.get(JOBS, NAMESPACE, name)).get("status") or {})
            if status.phase == "Succeeded":
                break
            await asyncio.sleep(0.2)
    return Run(status, first - (to_seconds(status.start_time) or first), tuple(lost), by_steps)


async def run_jobs(
    made: World,
    names: list[str],
    state: str,
    interval: float,
    faults: int,
    python_path: str,
    failures: Failures,
) -> list[Run]:
    """Runs jobs beside each other, and returns those that came to their end; others are deleted."""
    runs: list[Run] = []

    async def run(name: str) -> None:
        with failures.of(name):
            try:
                runs.append(await train_with_faults(made, name, state, interval, faults, python_path))
            except Exception:
                await made.delete(name)
                raise

    await asyncio.gather(*(run(name) for name in names))
    return runs


class Tables:
    """Tables are what the runs of each state and interval come to."""

    def __init__(self, faults: int, jobs: int) -> None:
        self._title = f"Goodput with a rank killed {faults} times ({jobs} jobs each)"
        self._rows: list[list[object]] = []
        self._parts: list[list[object]] = []

    def add(self, state: str, interval: float, runs: list[Run]) -> None:
        lost = statistics.median(seconds for run in runs for seconds in run.lost)
        reported = [run.reported for run in runs]
        predicted = statistics.median(run.predicted(lost) for run in runs)
        known = statistics.median(run.by_own_times for run in runs)
        trained = statistics.median(run.trained for run in runs)
        apart = 100 * statistics.median(run.reported - run.by_own_times for run in runs)
        by_steps = statistics.median(run.by_steps for run in runs)
        shares = (trained, by_steps, statistics.median(reported), min(reported), predicted, known)
        figures = [f"{value:.1%}" for value in shares]
        self._rows.append([f"{state}, {interval:g} s", f"{lost:.2f}", *figures, f"{apart:+.1f}"])
        # The whole takes minutes: what is known is printed at once.
        print(*self._rows[-1], flush=True)
        for category in TIME_CATEGORIES:
            share = statistics.median(run.seconds(category) / run.wall for run in runs)
            if share > 0.0005:
                self._parts.append([f"{state}, {interval:g} s", category, f"{share:.1%}"])

    def show(self) -> None:
        table(
            self._title,
            [
                "state, fault every",
                "lost, s",
                "trained",
                "by steps",
                "goodput",
                "min",
                "predicted",
                "by own times",
                "points apart",
            ],
            self._rows,
        )
        table("Where the time went, median share", ["state, a fault every", "category", "share"], self._parts)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.goodput", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", nargs="*", choices=list(STATES), default=list(STATES))
    parser.add_argument("--intervals", nargs="*", type=float, default=list(INTERVALS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--faults", type=int, default=FAULTS)
    given = parser.parse_args()
    tables, failures = Tables(given.faults, given.jobs), Failures()
    with trainloop_installed() as python_path:
        for state in given.states:
            with failures.of(state):
                async with world() as made:
                    with operator(made) as running:
                        running.serving()
                        for interval in given.intervals:
                            names = [f"{state}-{interval:g}-{number}" for number in range(given.jobs)]
                            runs = await run_jobs(made, names, state, interval, given.faults, python_path, failures)
                            if runs:
                                tables.add(state, interval, runs)
    tables.show()
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
