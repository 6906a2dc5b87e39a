"""Measure goodput with a fault every few seconds, against the same run without faults: `python -m bench.goodput`.

Four ranks of a plain torch script (DDP, gloo) that uses `trainloop.recovery` train in one job. A random rank is
repeatedly killed with SIGKILL. Before and after that the job trains undisturbed for a while. With `continue` the
survivors never stop, and share the lost rank's micro-batches until it is back. With `memory` all ranks resume from the
state in memory. With `disk` they start cold, and resume from a checkpoint that is written every two seconds.

| column | what it is |
|---|---|
| by steps | steps per second while ranks are killed / undisturbed steps per second; slower steps count too |
| by time lost | 1 - time lost / time; a fault loses the time until the first new step, without that step |
| by the operator | the same with the time that the operator books as lost |
| reported | the operator's goodput (`status.progress.goodput`) of the whole job, with its start and undisturbed time |
| predicted | what `reported` should be: 1 - (start + time lost) / time of the whole job |

    python -m bench.goodput [--states continue memory disk] [--intervals 5 10 20] [--jobs 1] [--faults 10]
                            [--seconds 50] [--undisturbed 10]

With `--seconds`, instead of `--faults`, each interval has as many faults as fit in that time, but at least two. The
whole benchmark takes a quarter of an hour; `--states continue --seconds 50` takes four minutes.
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
from bench.clusters.steps import NEW_STEP_SECONDS, Steps
from bench.programs.installed import trainloop_installed
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, JobStatus
from trainmaster_operator.controller.apiserver.cluster import JOBS

WORKERS = 4
CHECKPOINT_STEPS = 40
CONTINUE = "continue"
STATES: dict[str, dict[str, Any]] = {CONTINUE: {}, "memory": {}, "disk": {"warmStart": {"enabled": False}}}
INTERVALS, FAULTS, FEWEST = (5.0, 10.0, 20.0), 10, 2
UNDISTURBED_SECONDS = 10.0
# Steps to wait for after the first step, and after the last lost rank is back.
SETTLED_STEPS = 20


@dataclass(frozen=True)
class Run:
    """Run contains one job's results: the operator's report, and measurements from outside."""

    status: JobStatus
    until_first_step: float
    # Seconds of an undisturbed step, seconds during which ranks were killed, and steps made in that time.
    step: float
    faulty_seconds: float
    faulty_steps: int
    # Seconds that each kill cost.
    lost: tuple[float, ...]

    @property
    def wall(self) -> float:
        return sum(self.seconds(name) for name in TIME_CATEGORIES)

    def seconds(self, category: str) -> float:
        return float(getattr(self.status.time_spent, category) or 0.0)

    @property
    def by_steps(self) -> float:
        return self.faulty_steps * self.step / self.faulty_seconds

    @property
    def by_time_lost(self) -> float:
        return 1 - sum(self.lost) / self.faulty_seconds

    @property
    def by_operator(self) -> float:
        return 1 - ((1 - self.reported) * self.wall - self.until_first_step) / self.faulty_seconds

    @property
    def reported(self) -> float:
        return (self.status.progress.goodput if self.status.progress is not None else None) or 0.0

    @property
    def predicted(self) -> float:
        return 1 - (self.until_first_step + sum(self.lost)) / self.wall


@dataclass(frozen=True)
class Plan:
    """Plan is one job's plan: a kill about every `interval` seconds, and undisturbed seconds before and after."""

    interval: float
    faults: int
    undisturbed: float


async def train_with_faults(made: World, name: str, state: str, plan: Plan, python_path: str) -> Run:
    """Runs a job, and kills its ranks as planned."""
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
        {**variables, "STOPS": "1"},
        checkpoint={"volume": {"emptyDir": True}, "path": "/checkpoints"},
        failurePolicy={"maxRestarts": 100},
        **STATES[state],
    )
    path = steps_file(made.folder, name)
    steps = Steps(path)
    await made.apply(job)
    first = (await steps.first_new(0, 0.0, range(WORKERS)))[0]
    before = await _undisturbed(steps, plan.undisturbed)
    began, waits = time.time(), list[tuple[float, float]]()
    for number in range(plan.faults):
        # A random time, so that kills don't coincide with checkpoints.
        due = began + plan.interval * (number + random.uniform(0.3, 0.7))
        await asyncio.sleep(max(due - time.time(), 0))
        steps.poll()
        attempt, killed = max(steps.done), time.time()
        # A rank that was killed earlier may not be back yet.
        rank = random.choice(sorted(steps.done[attempt]))
        os.kill(steps.pids[attempt, rank], signal.SIGKILL)
        waiting = set(steps.done[attempt]) - {rank} if state == CONTINUE else range(WORKERS)
        back, _ = await steps.first_new(attempt, killed, waiting)
        waits.append((killed, back))
    await asyncio.sleep(max(began + plan.faults * plan.interval - time.time(), 0))
    ended = time.time()
    after = await _undisturbed(steps, plan.undisturbed)
    path.with_name(f"{path.name}.stop").touch()
    async with asyncio.timeout(60):
        while True:
            status = JobStatus.model_validate((await made.cluster.get(JOBS, NAMESPACE, name)).get("status") or {})
            if status.phase == "Succeeded":
                break
            await asyncio.sleep(0.2)
    step = (before + after) / 2
    return Run(
        status,
        first - (to_seconds(status.start_time) or first),
        step,
        ended - began,
        steps.made_until(ended) - steps.made_until(began),
        tuple(back - killed - step for killed, back in waits),
    )


async def _undisturbed(steps: Steps, seconds: float) -> float:
    """Returns the seconds that a step takes with all ranks."""
    deadline = time.monotonic() + NEW_STEP_SECONDS
    while not steps.is_steady(max(steps.done), WORKERS, SETTLED_STEPS):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all ranks train within {NEW_STEP_SECONDS:g} s")
        await asyncio.sleep(0.05)
        steps.poll()
    since = time.time()
    await asyncio.sleep(seconds)
    until = time.time()
    steps.poll()
    return (until - since) / (steps.made_until(until) - steps.made_until(since))


async def run_jobs(
    made: World,
    names: list[str],
    state: str,
    plan: Plan,
    python_path: str,
    failures: Failures,
) -> list[Run]:
    """Runs jobs at the same time. Returns the results of those that succeed; the others are deleted."""
    runs: list[Run] = []

    async def run(name: str) -> None:
        with failures.of(name):
            try:
                runs.append(await train_with_faults(made, name, state, plan, python_path))
            except Exception:
                await made.delete(name)
                raise

    await asyncio.gather(*(run(name) for name in names))
    return runs


class Tables:
    """Tables summarize the runs of each state and interval."""

    def __init__(self) -> None:
        self._rows: list[list[object]] = []
        self._parts: list[list[object]] = []

    def add(self, state: str, interval: float, runs: list[Run]) -> None:
        title = f"{state}, {interval:g} s"
        lost = [seconds for run in runs for seconds in run.lost]
        figures = [
            f"{statistics.median(getattr(run, name) for run in runs):.1%}"
            for name in ("by_steps", "by_time_lost", "by_operator", "reported", "predicted")
        ]
        step = statistics.median(run.step for run in runs) * 1e3
        self._rows.append([title, len(lost), f"{statistics.median(lost):.2f}", f"{step:.0f}", *figures])
        # Each row is printed at once, because the benchmark takes minutes.
        print(*self._rows[-1], flush=True)
        for category in TIME_CATEGORIES:
            share = statistics.median(run.seconds(category) / run.wall for run in runs)
            if share > 0.0005:
                self._parts.append([title, category, f"{share:.1%}"])

    def show(self) -> None:
        table(
            "Goodput with a rank killed again and again, and the operator's of the whole job",
            [
                "state, a fault every",
                "faults",
                "lost each, s",
                "step, ms",
                "by steps",
                "by time lost",
                "by the operator",
                "reported",
                "predicted",
            ],
            self._rows,
        )
        table(
            "Where the time of the whole job went, median share",
            ["state, a fault every", "category", "share"],
            self._parts,
        )


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.goodput", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", nargs="*", choices=list(STATES), default=list(STATES))
    parser.add_argument("--intervals", nargs="*", type=float, default=list(INTERVALS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--seconds", type=float, help="Cause faults for this many seconds, in place of --faults")
    parser.add_argument("--undisturbed", type=float, default=UNDISTURBED_SECONDS, metavar="SECONDS")
    given = parser.parse_args()
    tables, failures = Tables(), Failures()
    with trainloop_installed() as python_path:
        for state in given.states:
            with failures.of(state):
                async with world() as made:
                    with operator(made) as running:
                        running.serving()
                        for interval in given.intervals:
                            faults = max(FEWEST, round(given.seconds / interval)) if given.seconds else given.faults
                            plan = Plan(interval, faults, given.undisturbed)
                            names = [f"{state}-{interval:g}-{number}" for number in range(given.jobs)]
                            runs = await run_jobs(made, names, state, plan, python_path, failures)
                            if runs:
                                tables.add(state, interval, runs)
    tables.show()
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
