"""Measures what a fault costs a run: from the fault to the first step that nobody had done, and the steps redone.

Four ranks (DDP, gloo) of trainloop, or of a plain script with the lines of `trainloop.recovery`, in four pods of the
embedded cluster, with the real operator and agents. Each rank writes down when it had done which step; faults come
from here. `cold`: ranks start from nothing and go on from the last checkpoint. `warm`: they are forked from a warm
process. `memory`: and the state is kept in memory. `spare`: and a pod stands by. `continue`: the script shares out a
lost rank's micro-batches, and the ranks that are left never stop. Beside them the same work without operator and pods,
where only ranks are killed: `torchft`, `nvrx` and `torchrun` (`bench.peers.drivers` has their settings).

A fault's cost is counted from the fault itself to the end of the first step beyond the furthest one that any rank had
done, on the slowest rank; with `continue`, `torchft` and `nvrx` on the slowest of those that are left. Of a hang
`progressSeconds` is taken off. A node's loss has all of it: two seconds until the node is NotReady, `lostAfterSeconds`
(2), and without a spare the pods' grace (8), because a pod of a lost node is only replaced when it is gone; with
`continue` it is counted from when the operator takes the node as lost. The parts are the operator's own account
(`status.failures[].recovery`). Where ranks are left, a second table has what happened until the lost one was back: the
steps with a smaller batch, and the longest time in which a rank made no step.

With `--loads` processes that calculate without end run beside everything. `--healthy 20` measures instead what a step
costs without faults, in three turns of 20 s each, beside plain DDP.

Each fault is printed when it is measured, each mode's table at its end; a fault that isn't recovered from within two
minutes is said, and the next one is given to a new job.

    python -m bench.fault_cost [--programs trainloop script] [--faults kill=30 pod=10 hang=10 node=5 agent=10]
                               [--modes cold warm memory spare continue torchft nvrx torchrun] [--loads 0 2 16]

All of it is an hour for each load. Eight minutes: `--programs script --modes memory spare --faults kill=15 pod=5 hang=5
node=3 agent=5`, or `--modes torchft nvrx --faults kill=10`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.clusters import RawObject, World, operator, table, world
from bench.clusters.failures import Failures
from bench.clusters.faults import HANG_SECONDS, LOST_AFTER_SECONDS, Cost, FaultyJob
from bench.clusters.stepping_jobs import environment, stepping_job, steps_file
from bench.clusters.steps import Steps
from bench.peers.busy import busy, load
from bench.peers.drivers import CHECKPOINT_STEPS, DRIVERS, plain
from bench.peers.healthy import COLUMNS, Healthy, row, sample
from bench.peers.kills import kills, steady
from bench.programs.installed import trainloop_installed
from trainmaster.api.v1alpha1 import RecoveryTimes

WORKERS = 4
PROGRAMS = ("trainloop", "script")
FAULTS = {"kill": 30, "pod": 10, "hang": 10, "node": 5, "agent": 10}
CONTINUE = "continue"
MODES: dict[str, dict[str, Any]] = {
    "cold": {"warmStart": {"enabled": False}},
    "warm": {},
    "memory": {},
    "spare": {"spares": 1},
    CONTINUE: {},
}
GRACE_SECONDS = 8
TURNS = 3
# Faults of a kind whose cost isn't known, each of which takes two minutes, before the kind is left out.
MOST_LOST = 2
# The parts of a recovery, and their names in a status.
FIELDS = {name: str(field.alias) for name, field in RecoveryTimes.model_fields.items()}
PARTS = {name: alias for name, alias in FIELDS.items() if name not in ("seconds", "repeated_steps")}


def job(name: str, program: str, mode: str, folder: Path, python_path: str) -> RawObject:
    """Returns a program's job of one mode."""
    in_memory, shared = mode in ("memory", "spare", CONTINUE), mode == CONTINUE
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
        environment(folder, name, python_path, in_memory=in_memory, checkpoint_steps=CHECKPOINT_STEPS, shared=shared),
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
        steps = Steps(steps_file(folder, name))
        return FaultyJob(self._made, name, steps, WORKERS, continues=self._mode == CONTINUE)

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


@asynccontextmanager
async def served(program: str, mode: str, python_path: str) -> AsyncIterator[Mode]:
    """Runs a cluster and an operator for a mode, so that none has the others' history."""
    async with world(nodes=WORKERS + 1) as made:
        with operator(made) as running:
            running.serving()
            yield Mode(made, program, mode, python_path)


def _say(title: str, cost: Cost) -> None:
    parts = " ".join(f"{part} {seconds:.2f}" for part, seconds in cost.parts.items())
    print(f"{title}: {cost.seconds:.2f} s, {cost.redone} steps redone; {load()}; {parts}", flush=True)


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
            left = [cost.meanwhile for cost in costs if cost.meanwhile is not None]
            if left:
                gaps = [each.gap for each in left if each.gap is not None]
                back = [each.back for each in left if each.back is not None]
                shares = f"{statistics.mean(each.share for each in left):.0%}"
                steps = statistics.median(each.short_steps for each in left)
                times = (
                    [statistics.median(back), statistics.median(gaps), _percentile(gaps, 0.95)] if back else ["-"] * 3
                )
                rows.append([f"{name}, {fault}", steps, shares, *times])
    if rows:
        columns = ["", "short steps", "their batch", "back after, s", "longest gap, p50", "p95"]
        table("Until the lost rank was back (medians)", columns, rows)
    rows = []
    for name, by_fault in measured.items():
        for fault, costs in by_fault.items():
            known = [cost.parts for cost in costs if cost.parts]
            if known:
                middles = [statistics.median(parts.get(part, 0.0) for parts in known) for part in PARTS.values()]
                rows.append([f"{name}, {fault}", *middles, f"{len(known)}/{len(costs)}"])
    if rows:
        table("The same by parts, as the operator tells them (medians, s)", ["", *PARTS, "told"], rows)


async def measure_faults(
    program: str, mode: str, counts: dict[str, int], costs: dict[str, list[Cost]], failures: Failures, python_path: str
) -> None:
    """Adds what each fault costs in a mode."""
    if mode in DRIVERS:
        async for cost in kills(DRIVERS[mode], WORKERS, counts.get("kill", 0), python_path):
            costs["kill"].append(cost)
            _say(f"{mode}, kill", cost)
        return
    async with served(program, mode, python_path) as jobs:
        await jobs.run(counts, costs, failures)


async def measure_healthy(mode: str, seconds: float, python_path: str) -> Healthy:
    """Measures steps without faults."""
    if mode in MODES:
        async with served("script", mode, python_path) as jobs:
            job = await jobs.start()
            return await sample(job.steps, await job.steady(), WORKERS, seconds)
    driver = DRIVERS.get(mode, plain)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, driver(Path(folder), WORKERS, python_path) as run:
        return await sample(run.steps, await steady(run), WORKERS, seconds)


async def healthy(modes: list[str], seconds: float, failures: Failures, title: str, python_path: str) -> None:
    """Prints what a step costs in each mode beside plain DDP, which takes turns with them."""
    found: dict[str, list[tuple[Healthy, Healthy]]] = defaultdict(list)
    for _, mode in itertools.product(range(TURNS), modes):
        with failures.of(f"{title}, {mode}"):
            bare = await measure_healthy("plain", seconds, python_path)
            found[mode].append((await measure_healthy(mode, seconds, python_path), bare))
            print(f"{mode}: {found[mode][-1]}; {load()}", flush=True)
    rows = [row(mode, [each for each, _ in pairs], [bare for _, bare in pairs]) for mode, pairs in found.items()]
    if rows:
        table(f"A step without faults{title}", COLUMNS, rows)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fault_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=PROGRAMS)
    modes = [*MODES, *DRIVERS]
    parser.add_argument("--modes", nargs="*", choices=modes, default=modes)
    parser.add_argument("--faults", nargs="*", default=[f"{name}={count}" for name, count in FAULTS.items()])
    parser.add_argument("--loads", nargs="*", type=int, default=[0], metavar="PROCESSES")
    parser.add_argument("--healthy", type=float, default=0.0, metavar="SECONDS")
    given = parser.parse_args()
    counts = {name: int(count) for name, _, count in (fault.partition("=") for fault in given.faults)}
    measured: dict[str, dict[str, list[Cost]]] = {}
    failures = Failures()
    with trainloop_installed() as python_path:
        for processes in given.loads:
            beside = f", {processes} busy" if processes else ""
            with busy(processes):
                if given.healthy:
                    await healthy(given.modes, given.healthy, failures, beside, python_path)
                    continue
                for program, mode in itertools.product(given.programs, given.modes):
                    # trainloop's hook doesn't say how its micro-batches were shared out.
                    if program != "script" and (mode in DRIVERS or mode == CONTINUE):
                        continue
                    name = f"{mode if mode in DRIVERS else f'{program}, {mode}'}{beside}"
                    costs = measured[name] = defaultdict(list)
                    with failures.of(name):
                        await measure_faults(program, mode, counts, costs, failures, python_path)
                    show({name: costs})
    if len(measured) > 1:
        show(measured)
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
