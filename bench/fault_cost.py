"""Measures what a fault costs a run: from the fault to the first step that nobody had done, and the steps redone.

Four ranks (DDP, gloo) of trainloop, or of a plain script with the three lines of `trainloop.recovery`, in four pods of
the embedded cluster, with the real operator and agents. Each rank writes down when it had done which step; faults come
from here. `cold`: ranks start from nothing and go on from the last checkpoint. `warm`: they are forked from a warm
process. `memory`: and the state is kept in memory. `spare`: and a pod stands by. `torchrun`: beside them the plain
script's ranks under `torchrun --max-restarts`, without operator and pods, which go on from the last checkpoint; only
killed ranks are measured there. A fault's cost is counted from the fault itself to the end of the first step beyond the
furthest one that any rank had done, on the slowest rank; of a hang `progressSeconds` is taken off. A node's loss has
all of it: two seconds until the node is NotReady, `lostAfterSeconds` (2), and without a spare the pods' grace (8),
because a pod of a lost node is only replaced when it is gone. The parts are the operator's own account
(`status.failures[].recovery`).

Each fault is printed when it is measured, each mode's table at its end; a fault that isn't recovered from within two
minutes is said, and the next one is given to a new job.

    python -m bench.fault_cost [--programs trainloop script] [--modes cold warm memory spare torchrun]
                               [--faults kill=30 pod=10 hang=10 node=5 agent=10]

All of it is an hour. Eight minutes: `--programs script --modes memory spare --faults kill=15 pod=5 hang=5 node=3
agent=5`, or `--programs script --modes torchrun cold --faults kill=15`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.clusters import RawObject, World, operator, table, world
from bench.clusters.failures import Failures
from bench.clusters.faults import HANG_SECONDS, Cost, FaultyJob
from bench.clusters.stepping_jobs import environment, stepping_job, steps_file, torchrun
from bench.clusters.steps import Steps
from bench.programs.installed import trainloop_installed
from trainmaster.api.v1alpha1 import RecoveryTimes

WORKERS = 4
PROGRAMS = ("trainloop", "script")
FAULTS = {"kill": 30, "pod": 10, "hang": 10, "node": 5, "agent": 10}
MODES: dict[str, dict[str, Any]] = {
    "cold": {"warmStart": {"enabled": False}},
    "warm": {},
    "memory": {},
    "spare": {"spares": 1},
}
# Not the operator's.
TORCHRUN = "torchrun"
CHECKPOINT_STEPS = 100
LOST_AFTER_SECONDS, GRACE_SECONDS = 2, 8
# Faults of a kind whose cost isn't known, each of which takes two minutes, before the kind is left out.
MOST_LOST = 2
# The parts of a recovery, and their names in a status.
FIELDS = {name: str(field.alias) for name, field in RecoveryTimes.model_fields.items()}
PARTS = {name: alias for name, alias in FIELDS.items() if name not in ("seconds", "repeated_steps")}


def job(name: str, program: str, mode: str, folder: Path, python_path: str) -> RawObject:
    """Returns a program's job of one mode."""
    in_memory = mode in ("memory", "spare")
    training = {
        "task": {"name": "reviews"},
        "steps": 1_000_000,
        "batch": {"size": 64},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_steps": CHECKPOINT_STEPS, "memory": {"enabled": in_memory}},
        "metrics": {"every_steps": 50, "plot": False},
        "hooks": ["bench.programs.stepping_ranks:hook"],
    }
    return stepping_job(
        name,
        WORKERS,
        environment(folder, name, python_path, in_memory=in_memory, checkpoint_steps=CHECKPOINT_STEPS),
        pod={"terminationGracePeriodSeconds": GRACE_SECONDS},
        **({"training": training} if program == "trainloop" else {}),
        # An emptyDir would keep a pod from being replaced in the kubelet's back-off.
        checkpoint={"volume": {"hostPath": str(folder)}, "path": "/checkpoints"},
        failurePolicy={
            "maxRestarts": 1000,
            "nodes": {"lostAfterSeconds": LOST_AFTER_SECONDS, "quarantineAfter": 0},
            "hang": {"progressSeconds": HANG_SECONDS, "firstStepSeconds": 60},
        },
        **MODES[mode],
    )


class Mode:
    """Mode is a program in one mode: its jobs in one cluster, one after the other, and what their faults cost."""

    def __init__(self, made: World, program: str, mode: str, python_path: str) -> None:
        self._made, self._program, self._mode, self._python_path = made, program, mode, python_path
        self._numbers = itertools.count()

    async def start(self) -> FaultyJob:
        name, folder = f"cost-{self._mode}-{next(self._numbers)}", self._made.folder
        await self._made.apply(job(name, self._program, self._mode, folder, self._python_path))
        return FaultyJob(self._made, name, Steps(steps_file(folder, name)), WORKERS)

    async def run(self, counts: dict[str, int], costs: dict[str, list[Cost]], failures: Failures) -> None:
        """Adds what each fault costs; after one whose cost is not known, the job is another one."""
        bench = await self.start()
        for fault, count in counts.items():
            title, lost = f"{self._program}, {self._mode}, {fault}", 0
            for _ in range(count):
                if lost == MOST_LOST:
                    break
                known = len(costs[fault])
                with failures.of(title):
                    costs[fault].append(await bench.measure(fault))
                    _say(title, costs[fault][-1])
                if len(costs[fault]) == known:
                    lost += 1
                    await self._made.delete(bench.name)
                    bench = await self.start()
        await self._made.delete(bench.name)


async def run_torchrun(count: int, costs: list[Cost], python_path: str) -> None:
    """Kills ranks of the plain script under torchrun, again and again, and adds what each cost."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        torchrun(Path(folder), "ranks", WORKERS, CHECKPOINT_STEPS, python_path) as steps,
    ):
        for attempt in range(1, count + 1):
            async with asyncio.timeout(120):
                while not steps.is_steady(attempt, WORKERS):
                    await asyncio.sleep(0.1)
                    steps.poll()
            await asyncio.sleep(random.uniform(0.5, 1.5))
            since = time.time()
            os.kill(steps.pids[attempt, random.randrange(WORKERS)], signal.SIGKILL)
            back, redone = await steps.first_new(attempt, since, WORKERS)
            costs.append(Cost(back - since, redone, steps.seconds_of_last(attempt, redone)))
            _say(f"script, {TORCHRUN}, kill", costs[-1])


def _say(title: str, cost: Cost) -> None:
    parts = " ".join(f"{part} {seconds:.2f}" for part, seconds in cost.parts.items())
    print(f"{title}: {cost.seconds:.2f} s, {cost.redone} steps redone; {parts}", flush=True)


def _percentile(values: list[float], share: float) -> float:
    return (
        statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
        if len(values) > 1
        else values[0]
    )


def show(measured: dict[str, dict[str, list[Cost]]]) -> None:
    """Prints what was measured."""
    rows: list[list[object]] = []
    for name, by_fault in measured.items():
        for fault, costs in ((fault, costs) for fault, costs in by_fault.items() if costs):
            seconds, redone = [cost.seconds for cost in costs], [cost.redone for cost in costs]
            middle, high = statistics.median(seconds), _percentile(seconds, 0.95)
            rows.append(
                [f"{name}, {fault} x {len(costs)}", middle, high, max(seconds), statistics.median(redone), max(redone)]
            )
    if not rows:
        return
    columns = ["", "p50, s", "p95, s", "worst, s", "redone, median", "most"]
    table("From the fault to the first new step, and steps done again", columns, rows)
    rows = []
    for name, by_fault in measured.items():
        for fault, costs in by_fault.items():
            known = [cost.parts for cost in costs if cost.parts]
            if known:
                middles = [statistics.median(parts.get(part, 0.0) for parts in known) for part in PARTS.values()]
                rows.append([f"{name}, {fault}", *middles, f"{len(known)}/{len(costs)}"])
    if rows:
        table("The same by parts, as the operator tells them (medians, s)", ["", *PARTS, "told"], rows)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fault_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=PROGRAMS)
    modes = [*MODES, TORCHRUN]
    parser.add_argument("--modes", nargs="*", choices=modes, default=modes)
    parser.add_argument("--faults", nargs="*", default=[f"{name}={count}" for name, count in FAULTS.items()])
    given = parser.parse_args()
    counts = {name: int(count) for name, _, count in (fault.partition("=") for fault in given.faults)}
    measured: dict[str, dict[str, list[Cost]]] = {}
    failures = Failures()
    with trainloop_installed() as python_path:
        for program, mode in itertools.product(given.programs, given.modes):
            if mode == TORCHRUN and program != "script":
                continue
            name = f"{program}, {mode}"
            costs = measured[name] = defaultdict(list)
            with failures.of(name):
                if mode == TORCHRUN:
                    await run_torchrun(counts.get("kill", 0), costs["kill"], python_path)
                else:
                    # A cluster and an operator for each, so that none has the others' history.
                    async with world(nodes=WORKERS + 1) as made:
                        with operator(made) as running:
                            running.serving()
                            await Mode(made, program, mode, python_path).run(counts, costs, failures)
            show({name: costs})
    if len(measured) > 1:
        show(measured)
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
