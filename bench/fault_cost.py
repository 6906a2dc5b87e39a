"""Measures what a fault costs a run: from the fault to the first step that nobody had done, and the steps redone.

Four ranks (DDP, gloo) of trainloop, or of a plain script with the three lines of `trainloop.recovery`, in four pods of
the embedded cluster, with the real operator and agents. Each rank writes down when it had done which step; faults come
from here. `cold`: ranks start from nothing and go on from the last checkpoint. `warm`: they are forked from a warm
process. `memory`: and the state is kept in memory. `spare`: and a pod stands by. A fault's cost is counted from the
fault itself to the end of the first step beyond the furthest one that any rank had done, on the slowest rank; the parts
are the operator's own account (`status.failures[].recovery`).

torchrun's own `--max-restarts` has no row: in torch 2.13 its second round of ranks ends with "connectFullMesh failed"
on gloo, with the standalone rendezvous and with the static one, so a killed rank ends the run.

    python -m bench.fault_cost [--programs trainloop script] [--modes cold warm memory spare]
                               [--faults kill=30 pod=10 hang=10 node=5 agent=10]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import World, operator, table, world
from bench.clusters.steps import Steps
from bench.programs.installed import trainloop_installed
from trainmaster.api.v1alpha1 import RecoveryTimes
from trainmaster.controller.apiserver.cluster import JOBS

WORKERS = 4
PROGRAMS = ("trainloop", "script")
SCRIPT = Path(__file__).parent / "programs" / "stepping_ranks.py"
FAULTS = {"kill": 30, "pod": 10, "hang": 10, "node": 5, "agent": 10}
MODES: dict[str, dict[str, Any]] = {
    "cold": {"warmStart": {"enabled": False}},
    "warm": {},
    "memory": {},
    "spare": {"spares": 1},
}
CHECKPOINT_STEPS = 100
HANG_SECONDS, LOST_AFTER_SECONDS, GRACE_SECONDS = 3, 2, 3
# What a node's loss takes until its pods are deleted: NotReady, the pods' grace, lostAfterSeconds.
NODE_SECONDS = 2 + GRACE_SECONDS + LOST_AFTER_SECONDS
LIMITS = {"kill": (0.4, 0.7), "agent": (None, 2.0), "pod": (2.0, None)}
PARTS = [name for name in RecoveryTimes.model_fields if name != "seconds"]


@dataclass
class Cost:
    """Cost is what one fault cost: seconds until the first new step, and how many steps were done again."""

    seconds: float
    redone: int
    parts: dict[str, float] = field(default_factory=dict)


class Bench:
    """Bench gives one job its faults."""

    def __init__(self, made: World, name: str, steps: Steps) -> None:
        self.made, self.name, self.steps = made, name, steps

    async def steady(self) -> int:
        """Returns the attempt that runs, when it has done new steps for a while and the operator knows it."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            status = await self.made.status(self.name)
            self.steps.poll()
            attempt = status.get("attempt", 0)
            newest = self.steps.done.get(attempt, {})
            if (
                status.get("phase") == "Running"
                and len(newest) == WORKERS
                and all(len(each) > 30 for each in newest.values())
            ):
                await asyncio.sleep(random.uniform(0.5, 1.5))
                return int(attempt)
            if status.get("phase") in ("Failed", "Succeeded"):
                raise RuntimeError(f"the job has ended: {status}")
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.name} doesn't train: {await self.made.status(self.name)}")

    async def pod(self, worker: int) -> dict[str, Any]:
        pods = await self.made.pods(self.name)
        return next(pod for pod in pods if pod["metadata"]["name"] == f"{self.name}-{worker}")

    async def worker(self, rank: int) -> int:
        """Returns the worker that has a rank now."""
        status = await self.made.status(self.name)
        return int((status.get("workerOrder") or list(range(WORKERS)))[rank])

    async def cause(self, fault: str, attempt: int, rank: int) -> str | None:
        """Causes a fault; returns the node that is to be recovered."""
        pid = self.steps.pids[attempt, rank]
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "hang":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "agent":
            self.agent_of(pid).kill()
        elif fault == "pod":
            await self.made.force_delete(await self.pod(await self.worker(rank)))
        else:
            node = str((await self.pod(await self.worker(rank)))["spec"]["nodeName"])
            await self.made.order("lose", node)
            return node
        return None

    def agent_of(self, pid: int) -> psutil.Process:
        """Returns the agent above a rank, of which a launcher may be in between."""
        for process in psutil.Process(pid).parents():
            if "run" in process.cmdline() and any("agent" in word for word in process.cmdline()):
                return process
        raise RuntimeError(f"{pid} has no agent above it")

    async def measure(self, fault: str) -> Cost:
        attempt = await self.steady()
        rank = random.randrange(WORKERS)
        since = time.time()
        node = await self.cause(fault, attempt, rank)
        back = None
        deadline = time.monotonic() + 120
        while back is None:
            await asyncio.sleep(0.02)
            self.steps.poll()
            reached = max(
                step
                for number, ranks in self.steps.done.items()
                if number <= attempt
                for steps in ranks.values()
                for step in steps
            )
            if max(self.steps.done) > attempt:
                back = self.steps.first_beyond(reached, since, WORKERS)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new step after {fault} of rank {rank}: {await self.made.status(self.name)}")
        first = min(min(steps) for steps in self.steps.done[max(self.steps.done)].values())
        if node is not None:
            await self.made.order("recover", node)
        waits = {"hang": HANG_SECONDS, "node": NODE_SECONDS}
        return Cost(back - since - waits.get(fault, 0), max(0, reached - first + 1), await self.parts(attempt))

    async def parts(self, attempt: int) -> dict[str, float]:
        """Returns the operator's account of the recovery, which comes with the next progress."""
        for _ in range(50):
            for failure in (await self.made.status(self.name)).get("failures", []):
                if failure["attempt"] == attempt and failure.get("recovery"):
                    return dict(failure["recovery"])
            await asyncio.sleep(0.1)
        return {}


def job(name: str, program: str, mode: str, folder: Path, python_path: str) -> dict[str, Any]:
    """Returns a program's job of one mode."""
    in_memory = mode in ("memory", "spare")
    environment = {"STEPS_FILE": str(folder / f"{name}.steps"), "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
    environment["CHECKPOINT_STEPS"] = str(CHECKPOINT_STEPS)
    if not in_memory:
        environment["WITHOUT_MEMORY"] = "1"
    variables = [{"name": key, "value": value} for key, value in environment.items()]
    training = {
        "task": {"name": "reviews"},
        "steps": 1_000_000,
        "batch": {"size": 64},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_steps": CHECKPOINT_STEPS, "memory": {"enabled": in_memory}},
        "metrics": {"every_steps": 50, "plot": False},
        "hooks": ["bench.programs.stepping_ranks:hook"],
    }
    what = {"training": training} if program == "trainloop" else {"command": ["python", str(SCRIPT)]}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {
            "image": "ghcr.io/trainmaster/trainer:0.1.0",
            "workers": WORKERS,
            **what,
            # An emptyDir would keep a pod from being replaced in the kubelet's back-off.
            "checkpoint": {"volume": {"hostPath": str(folder)}, "path": "/checkpoints"},
            "failurePolicy": {
                "maxRestarts": 1000,
                "nodes": {"lostAfterSeconds": LOST_AFTER_SECONDS, "quarantineAfter": 0},
                "hang": {"progressSeconds": HANG_SECONDS, "firstStepSeconds": 60},
            },
            "podTemplate": {
                "spec": {
                    "terminationGracePeriodSeconds": GRACE_SECONDS + 5,
                    "containers": [{"name": "worker", "env": variables}],
                }
            },
            **MODES[mode],
        },
    }


async def run_mode(
    made: World, program: str, mode: str, counts: dict[str, int], python_path: str
) -> dict[str, list[Cost]]:
    """Gives a job of this mode its faults, and returns what each cost."""
    name = f"cost-{mode}"
    bench = Bench(made, name, Steps(made.folder / f"{name}.steps"))
    await made.apply(job(name, program, mode, made.folder, python_path))
    costs: dict[str, list[Cost]] = defaultdict(list)
    for fault, count in counts.items():
        for _ in range(count):
            cost = await bench.measure(fault)
            costs[fault].append(cost)
            parts = " ".join(f"{part} {seconds:.2f}" for part, seconds in cost.parts.items())
            print(f"{program}, {mode}, {fault}: {cost.seconds:.2f} s, {cost.redone} steps redone; {parts}", flush=True)
    await made.delete(name)
    return costs


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
        for fault, costs in by_fault.items():
            seconds, redone = [cost.seconds for cost in costs], [cost.redone for cost in costs]
            middle, high = statistics.median(seconds), _percentile(seconds, 0.95)
            rows.append(
                [f"{name}, {fault} x {len(costs)}", middle, high, max(seconds), statistics.median(redone), max(redone)]
            )
    columns = ["", "p50, s", "p95, s", "worst, s", "redone, median", "most"]
    table("From the fault to the first new step, and steps done again", columns, rows)
    rows = []
    for name, by_fault in measured.items():
        for fault, costs in by_fault.items():
            known = [cost.parts for cost in costs if cost.parts]
            if known:
                middles = [statistics.median(parts.get(_wire(part), 0.0) for parts in known) for part in PARTS]
                rows.append([f"{name}, {fault}", *middles, f"{len(known)}/{len(costs)}"])
    table("The same by parts, as the operator tells them (medians, s)", ["", *PARTS, "told"], rows)


def _wire(part: str) -> str:
    return "firstStep" if part == "first_step" else part


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fault_cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--faults", nargs="*", default=[f"{name}={count}" for name, count in FAULTS.items()])
    given = parser.parse_args()
    counts = {name: int(count) for name, _, count in (fault.partition("=") for fault in given.faults)}
    measured = {}
    with trainloop_installed() as python_path:
        for program in given.programs:
            for mode in given.modes:
                # A cluster and an operator for each, so that none has the others' history.
                async with world(nodes=WORKERS + 1) as made:
                    with operator(made) as running:
                        running.serving()
                        costs = await run_mode(made, program, mode, counts, python_path)
                        measured[f"{program}, {mode}"] = costs
    show(measured)


if __name__ == "__main__":
    asyncio.run(main())
