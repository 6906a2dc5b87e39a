"""Measure what a fault costs a run: the time until its first new step, the steps repeated, and the samples lost.

Four ranks (DDP, gloo) train in four pods of the embedded cluster, with the real operator and agents. They run
trainloop, or a plain script that uses `trainloop.recovery`. Each rank records the time and its number of samples for
each step. This benchmark causes the faults.

| mode | what it is |
|---|---|
| cold | ranks start from nothing, and resume from the last checkpoint |
| warm | ranks are forked from a warm process |
| memory | as warm, and the state is kept in memory |
| spare | as memory, and a pod stands by |
| continue | the survivors share out a lost rank's samples, and never stop |
| torchft, nvrx, torchrun | the same work without operator and pods; only ranks are killed (`bench.peers.drivers`) |

| fault | what happens | counted from |
|---|---|---|
| kill | SIGKILL to a rank | the signal |
| pod | its pod is deleted by force | the deletion |
| hang | SIGSTOP to a rank | its limit, `progressSeconds` (3 s) later |
| node | its node is cut off | the cut; with `continue`, the time when the operator knows it |
| agent | SIGKILL to its agent | the signal |

A lost node is detected after the two seconds until it becomes NotReady, plus `lostAfterSeconds` (2). Without a spare,
modes other than `continue` then wait for the pods' grace period (8 s), because a lost node's pod isn't replaced until
it is gone.

A fault's cost ends when the slowest rank has finished the first step that no rank had done before. With `continue`,
`torchft` and `nvrx` only survivors count, and a second table shows the time until the lost rank had joined again. The
third table is the operator's account (`status.failures[].recovery`) and the time that it doesn't contain, which is
mostly the time until the operator could detect the fault.

With `--loads` busy processes run at the same time. `--seconds` limits the time for each kind of fault, but at least two
are caused. `--healthy 60` measures instead what a step costs without faults, alternating with plain DDP for 60 s
(`bench.peers.healthy`). Each fault is printed when it is measured, and each mode's table at the mode's end. If a job
doesn't recover within two minutes, this is reported, and the next fault is caused in a new job.

    python -m bench.fault_cost [--programs trainloop script] [--faults kill=30 pod=10 hang=10 node=5 agent=10]
                               [--modes cold warm memory spare continue torchft nvrx torchrun] [--loads 0 2 16]
                               [--seconds 60] [--healthy 60 --ranks 2 4]

All of it takes an hour for each load. Issue 32's table takes 25 minutes, with these three commands:

    python -m bench.fault_cost --modes continue --healthy 75 --ranks 4 2
    python -m bench.goodput --states continue --seconds 50
    python -m bench.fault_cost --modes continue torchft nvrx torchrun --loads 2 16 --seconds 40 \
                               --faults kill=15 pod=6 node=5 hang=6
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.clusters import RawObject, World, operator, table, world
from bench.clusters.failures import Failures
from bench.clusters.faults import HANG_SECONDS, LOST_AFTER_SECONDS, Cost, FaultyJob, Meanwhile
from bench.clusters.stepping_jobs import environment, stepping_job, steps_file
from bench.clusters.steps import Steps
from bench.peers.busy import busy, load
from bench.peers.drivers import CHECKPOINT_STEPS, DRIVERS, plain
from bench.peers.healthy import COLUMNS, Program, Turns, rows
from bench.peers.kills import kills
from bench.programs.installed import trainloop_installed
from trainmaster_operator.api.v1alpha1 import RecoveryTimes

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
IN_MEMORY = ("memory", "spare", CONTINUE)
GRACE_SECONDS = 8
TURN_SECONDS = 0.8
WIDTH = 150  # the tables' width in characters
# After this many faults without recovery (two minutes each), a kind of fault is skipped. `--seconds` doesn't end a kind
# before this many faults.
MOST_LOST, FEWEST = 2, 2
# The parts of a recovery, and their names in a status.
FIELDS = {name: str(field.alias) for name, field in RecoveryTimes.model_fields.items()}
PARTS = {name: alias for name, alias in FIELDS.items() if name not in ("seconds", "repeated_steps")}


def job(name: str, program: str, mode: str, folder: Path, python_path: str) -> RawObject:
    """Returns a program's job for one mode, in which faults are caused."""
    training = {
        "task": {"name": "reviews"},
        "steps": 1_000_000,
        "batch": {"size": 64},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_steps": CHECKPOINT_STEPS, "memory": {"enabled": mode in IN_MEMORY}},
        "metrics": {"every_steps": 50, "plot": False},
        "hooks": ["bench.programs.stepping_ranks:hook"],
    }
    return stepping_job(
        name,
        WORKERS,
        _environment(folder, name, mode, python_path, CHECKPOINT_STEPS),
        pod={"terminationGracePeriodSeconds": GRACE_SECONDS},
        **({"training": training} if program == "trainloop" else {}),
        # With an emptyDir, a pod in the kubelet's back-off wouldn't be replaced.
        checkpoint={"volume": {"hostPath": str(folder)}, "path": "/checkpoints"},
        failurePolicy={
            "maxRestarts": 1000,
            "nodes": {"lostAfterSeconds": LOST_AFTER_SECONDS, "quarantineAfter": 0},
            "hang": {"progressSeconds": HANG_SECONDS, "firstStepSeconds": 60},
        },
        **MODES[mode],
    )


def healthy_job(name: str, mode: str, ranks: int, turn: Mapping[str, str], folder: Path, python_path: str) -> RawObject:
    """Returns the script's job for one mode, which alternates with other programs."""
    # So many steps between checkpoints, because writing them isn't compared.
    variables = _environment(folder, name, mode, python_path, 1_000_000)
    # No rank makes a step while another program runs.
    return stepping_job(
        name, ranks, {**variables, **turn}, failurePolicy={"hang": {"progressSeconds": 600}}, **MODES[mode]
    )


def _environment(folder: Path, name: str, mode: str, python_path: str, checkpoint_steps: int) -> dict[str, str]:
    in_memory, shared = mode in IN_MEMORY, mode == CONTINUE
    return environment(folder, name, python_path, in_memory=in_memory, checkpoint_steps=checkpoint_steps, shared=shared)


class Mode:
    """Mode runs a program's jobs in one mode, one after the other in one cluster, and measures their faults."""

    def __init__(self, made: World, program: str, mode: str, python_path: str) -> None:
        self._made, self._program, self._mode, self._python_path = made, program, mode, python_path
        self._numbers = itertools.count()

    async def start(self) -> FaultyJob:
        name, folder = f"cost-{self._mode}-{next(self._numbers)}", self._made.folder
        await self._made.apply(job(name, self._program, self._mode, folder, self._python_path))
        steps = Steps(steps_file(folder, name))
        return FaultyJob(self._made, name, steps, WORKERS, continues=self._mode == CONTINUE)

    async def run(
        self, counts: dict[str, int], seconds: float, costs: dict[str, list[Cost]], failures: Failures
    ) -> None:
        """Adds each fault's cost. After a fault without recovery, starts a new job."""
        bench = await self.start()
        for fault, count in counts.items():
            title, lost, until = f"{self._program}, {self._mode}, {fault}", 0, time.monotonic() + seconds
            for _ in range(count):
                known = len(costs[fault])
                if lost == MOST_LOST or (known >= FEWEST and time.monotonic() > until):
                    break
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
    """Runs a cluster and an operator for one mode, so that earlier modes have no effect on it."""
    async with world(nodes=WORKERS + 1) as made:
        with operator(made) as running:
            running.serving()
            yield Mode(made, program, mode, python_path)


def _say(title: str, cost: Cost) -> None:
    parts = " ".join(f"{part} {seconds:.2f}" for part, seconds in cost.parts.items())
    left = cost.meanwhile
    joined = "" if left is None or left.joined is None else f", joined after {left.joined:.2f}, gap {left.joining:.2f}"
    print(f"{title}: {cost.seconds:.2f} s, {cost.redone} steps repeated{joined}; {load()}; {parts}", flush=True)


def _percentile(values: list[float], share: float) -> float:
    return (
        statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
        if len(values) > 1
        else values[0]
    )


def show(measured: dict[str, dict[str, list[Cost]]]) -> None:
    """Prints the tables of the measured costs."""
    found = {
        f"{name}, {fault} x {len(costs)}": costs
        for name, by_fault in measured.items()
        for fault, costs in by_fault.items()
        if costs
    }
    if not found:
        return
    table(
        "Seconds from the fault to the first new step",
        ["", "p50", "p95", "worst", "p50 with detection", "a healthy step, ms", "steps repeated, p50", "most"],
        [
            [
                name,
                *_spread([cost.seconds for cost in costs]),
                f"{statistics.median(cost.seconds + cost.detected for cost in costs):.2f}",
                f"{statistics.median(cost.step for cost in costs) * 1e3:.0f}",
                f"{statistics.median(cost.redone for cost in costs):g}",
                max(cost.redone for cost in costs),
            ]
            for name, costs in found.items()
        ],
        WIDTH,
    )
    left = {name: [cost.meanwhile for cost in costs if cost.meanwhile] for name, costs in found.items()}
    rows = [[name, *_until_joined(each)] for name, each in left.items() if each]
    if rows:
        table(
            "Until the lost rank has joined (medians; a gap is a survivor's longest time without a step)",
            [
                "",
                "steps",
                "their batch",
                "batches lost",
                "joined after, s",
                "gap as it joins, s",
                "p95",
                "worst",
                "gap meanwhile, s",
                "p95",
            ],
            rows,
            WIDTH,
        )
    accounts = {name: [cost for cost in costs if cost.parts] for name, costs in found.items()}
    rows = [
        [
            name,
            f"{statistics.median(cost.seconds - cost.parts['seconds'] for cost in known):.2f}",
            *(f"{statistics.median(cost.parts.get(part, 0.0) for cost in known):.2f}" for part in PARTS.values()),
        ]
        for name, known in accounts.items()
        if known
    ]
    if rows:
        table("The same by parts of the operator's account (medians, s)", ["", "not in it", *PARTS], rows, WIDTH)


def _until_joined(found: list[Meanwhile]) -> list[object]:
    joined = [each for each in found if each.joined is not None]
    gaps: list[object] = ["never", "", "", "", "", ""]
    if joined:
        after = statistics.median(each.joined or 0.0 for each in joined)
        longest = _spread([each.longest or 0.0 for each in joined])
        gaps = [f"{after:.2f}", *_spread([each.joining or 0.0 for each in joined]), *longest[:2]]
    share = statistics.median(each.share for each in found)
    lost = statistics.median(each.lost for each in found)
    return [f"{statistics.median(each.steps for each in found):g}", f"{share:.0%}", f"{lost:.1f}", *gaps]


def _spread(seconds: list[float]) -> list[str]:
    """Returns the median, the 95th percentile and the maximum."""
    return [f"{value:.2f}" for value in (statistics.median(seconds), _percentile(seconds, 0.95), max(seconds))]


async def measure_faults(
    program: str,
    mode: str,
    counts: dict[str, int],
    seconds: float,
    costs: dict[str, list[Cost]],
    failures: Failures,
    python_path: str,
) -> None:
    """Adds each fault's cost in a mode."""
    if mode in DRIVERS:
        until = time.monotonic() + seconds
        async for cost in kills(DRIVERS[mode], WORKERS, counts.get("kill", 0), python_path):
            costs["kill"].append(cost)
            _say(f"{mode}, kill", cost)
            if len(costs["kill"]) >= FEWEST and time.monotonic() > until:
                break
        return
    async with served(program, mode, python_path) as jobs:
        await jobs.run(counts, seconds, costs, failures)


async def healthy(modes: Sequence[str], ranks: int, seconds: float, python_path: str) -> list[list[object]]:
    """Measures steps without faults in each mode and with plain DDP; returns the table's rows."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        turns = Turns(folder / "turn")
        for mode in ("plain", *modes):
            turn = turns.variables(mode)
            if mode in MODES:
                made = await stack.enter_async_context(world())
                stack.enter_context(operator(made)).serving()
                await made.apply(healthy_job(mode, mode, ranks, turn, made.folder, python_path))
                steps = Steps(steps_file(made.folder, mode))
            else:
                (folder / mode).mkdir()
                driver = DRIVERS.get(mode, plain)
                steps = stack.enter_context(driver(folder / mode, ranks, python_path, turn)).steps
            await turns.start(Program(mode, steps, ranks))
        await turns.warm_up(TURN_SECONDS)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await turns.round(TURN_SECONDS)
        bare, *others = turns.programs
        return [row for program in others for row in rows(program, bare, f"{program.name}, {ranks} ranks")]


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fault_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=PROGRAMS)
    modes = [*MODES, *DRIVERS]
    parser.add_argument("--modes", nargs="*", choices=modes, default=modes)
    parser.add_argument("--faults", nargs="*", default=[f"{name}={count}" for name, count in FAULTS.items()])
    parser.add_argument("--loads", nargs="*", type=int, default=[0], metavar="PROCESSES")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="Stop each kind of fault after this many seconds"
    )
    parser.add_argument("--healthy", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument(
        "--ranks", nargs="*", type=int, default=[WORKERS], help="Use these numbers of ranks with --healthy"
    )
    given = parser.parse_args()
    counts = {name: int(count) for name, _, count in (fault.partition("=") for fault in given.faults)}
    measured: dict[str, dict[str, list[Cost]]] = {}
    failures = Failures()
    with trainloop_installed() as python_path:
        for processes in given.loads:
            beside = f", {processes} busy" if processes else ""
            with busy(processes):
                for ranks in given.ranks if given.healthy else ():
                    with failures.of(f"healthy steps of {ranks} ranks{beside}"):
                        found = await healthy(given.modes, ranks, given.healthy, python_path)
                        table(f"A step without faults, and plain DDP's in turn{beside}; {load()}", COLUMNS, found)
                for program, mode in () if given.healthy else itertools.product(given.programs, given.modes):
                    # Peers run their own programs, so they are measured only once.
                    if mode in DRIVERS and program != given.programs[0]:
                        continue
                    name = f"{mode if mode in DRIVERS else f'{program}, {mode}'}{beside}"
                    costs = measured[name] = defaultdict(list)
                    with failures.of(name):
                        await measure_faults(program, mode, counts, given.seconds, costs, failures, python_path)
                    show({name: costs})
    if len(measured) > 1:
        show(measured)
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
