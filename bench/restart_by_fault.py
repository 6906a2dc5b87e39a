"""Measures how long recovery takes with the whole operator: `python -m bench.restart_by_fault`.

A recovery lasts from a fault until all ranks have joined again. Agents and ranks are real. The benchmark kills the
ranks' processes and makes nodes fail, so it needs the embedded cluster. The second table shows only the sure way: an
operator that can't reach agents learns of failures from the kubelet, which would restart a container after 10, 20,
40 … seconds, so pods that would wait are replaced.

Parts can be chosen: `fast_way`, `spares`, `sure_way`, or rows of the latter: `fresh`, `row`, `pod`. Each row of spares
is measured twice: with pods that start at once, as only this cluster's pods do, and with pods whose init container
takes SLOW_POD_SECONDS, about what a node that has the image needs (scheduling, volumes, the sandbox).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import psutil

from bench.clusters import World, job, operator, spread, table, world
from trainmaster_operator.controller.apiserver.cluster import RawObject

WORKERS = 4
RUNS = 5
ROW = 10
HANG_SECONDS = 3
LOST_AFTER_SECONDS = 2
GRACE_SECONDS = 3
SLOW_POD_SECONDS = 2
# Goals for the medians in seconds on a real kubelet, without the program's start. JobSet needs 1.34 for a killed rank.
KILLED_GOAL, POD_GOAL, AGENT_GOAL, HANG_GOAL, SURE_GOAL = 0.25, 1.0, 1.0, 1.0, 1.5
# Rows of the second table.
SURE_ROWS = ("fresh", "row", "pod")
# Nothing listens on this port.
NO_STREAMS = ("--reach", "direct", "--agent-port", "9")

POLICY: dict[str, Any] = {
    "failurePolicy": {
        "maxRestarts": 100,
        "nodes": {"lostAfterSeconds": LOST_AFTER_SECONDS, "quarantineAfter": 0},
        "hang": {"progressSeconds": HANG_SECONDS, "firstStepSeconds": 60},
    }
}


class Bench:
    """Bench causes faults in one cluster, and measures how long recovery takes."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.rows: list[list[object]] = []
        # The number of spares of each job.
        self.spares: dict[str, int] = {}

    async def start(self, name: str, **spec: Any) -> None:
        self.spares[name] = spec.get("spares", 0)
        await self.made.apply(job(name, WORKERS, **POLICY, **spec))
        await self.made.joined(name, WORKERS, 1)

    async def steady(self, name: str) -> tuple[int, dict[int, tuple[int, float]]]:
        """Returns the running attempt and its ranks' processes, once the operator has seen it run for a moment."""
        spares = self.spares.get(name, 0)
        while (status := await self.made.status(name)).get("phase") != "Running" or (
            status["workers"].get("spares", 0) < spares
        ):
            await asyncio.sleep(0.05)
        ranks = await self.made.joined(name, WORKERS, status["attempt"])
        await asyncio.sleep(0.5)
        return status["attempt"], ranks

    async def recovered(self, name: str, attempt: int, since: float) -> float:
        """Returns the seconds until the ranks of one of the next two attempts have joined."""
        while True:
            status = await self.made.status(name)
            newest = status.get("attempt", 0)
            if newest > attempt:
                try:
                    again = await self.made.joined(name, WORKERS, newest, 2.0)
                except TimeoutError:
                    continue
                return max(at for _, at in again.values()) - since
            await asyncio.sleep(0.01)

    async def kill_rank(self, name: str, rank: int) -> float:
        attempt, ranks = await self.steady(name)
        since = time.time()
        os.kill(ranks[rank][0], signal.SIGKILL)
        return await self.recovered(name, attempt, since)

    async def kill_agent(self, name: str, rank: int) -> float:
        attempt, ranks = await self.steady(name)
        agent = psutil.Process(ranks[rank][0]).parent()
        assert agent is not None
        since = time.time()
        agent.kill()
        return await self.recovered(name, attempt, since)

    async def stop_rank(self, name: str, rank: int) -> float:
        """Stops a rank (SIGSTOP); returns the seconds from the hang's limit until recovery."""
        attempt, ranks = await self.steady(name)
        since = time.time()
        os.kill(ranks[rank][0], signal.SIGSTOP)
        return await self.recovered(name, attempt, since) - HANG_SECONDS

    async def pod_of(self, name: str, position: int) -> RawObject:
        """Returns the pod at a position in the attempt's order of workers."""
        worker = ((await self.made.status(name)).get("workerOrder") or range(WORKERS))[position]
        return next(pod for pod in await self.made.pods(name) if pod["metadata"]["name"] == f"{name}-{worker}")

    async def delete_pod(self, name: str, position: int) -> float:
        attempt, _ = await self.steady(name)
        pod = await self.pod_of(name, position)
        since = time.time()
        await self.made.force_delete(pod)
        return await self.recovered(name, attempt, since)

    async def lose_node(self, name: str, position: int) -> float:
        attempt, _ = await self.steady(name)
        pod = await self.pod_of(name, position)
        since = time.time()
        await self.made.order("lose", pod["spec"]["nodeName"])
        took = await self.recovered(name, attempt, since)
        await self.made.order("recover", pod["spec"]["nodeName"])
        await asyncio.sleep(1.0)
        return took

    async def fresh(self, name: str, fault: Any, *arguments: int, **spec: Any) -> list[float]:
        """Causes each fault in a new job, whose containers have never ended."""
        taken = []
        for run in range(RUNS):
            await self.start(f"{name}-{run}", **spec)
            taken.append(await fault(f"{name}-{run}", *arguments))
            await self.made.delete(f"{name}-{run}")
        return taken

    def add(self, title: str, taken: list[float], goal: float | None = None) -> None:
        self.rows.append([title, *spread(taken, goal)])
        # Each result is printed at once, because the benchmark takes minutes.
        print(f"{title}: {', '.join(f'{value:.2f}' for value in taken)}", flush=True)

    def add_in_order(self, taken: list[float]) -> None:
        self.rows.append(["  in the order they came", ", ".join(f"{value:.2f}" for value in taken), "", "", ""])


async def fast_way(made: World) -> None:
    bench = Bench(made)
    with operator(made) as running:
        running.serving()
        bench.add("rank killed, fresh", await bench.fresh("fresh", bench.kill_rank, 2), KILLED_GOAL)
        await bench.start("row")
        row = [await bench.kill_rank("row", 2) for _ in range(ROW)]
        bench.add(f"the same rank killed, {ROW} times in a row", row, KILLED_GOAL)
        bench.add_in_order(row)
        progress = {"spec": {"containers": [{"name": "worker", "env": [{"name": "PROGRESS_SECONDS", "value": "0.1"}]}]}}
        await bench.start("hang", podTemplate=progress)
        hung = [await bench.stop_rank("hang", 1) for _ in range(RUNS)]
        bench.add(f"rank stopped (SIGSTOP), over its limit of {HANG_SECONDS} s", hung, HANG_GOAL)
        await made.delete("hang")
        bench.add("agent killed", await bench.fresh("agent", bench.kill_agent, 2), AGENT_GOAL)
        bench.add("the leader's agent killed", await bench.fresh("leader", bench.kill_agent, 0), AGENT_GOAL)
        bench.add("pod deleted by force", [await bench.delete_pod("row", 2) for _ in range(RUNS)], POD_GOAL)
        bench.add(
            "the leader's pod deleted by force", [await bench.delete_pod("row", 0) for _ in range(RUNS)], POD_GOAL
        )
        # A lost node's pods are overdue after their grace period, and are deleted LOST_AFTER_SECONDS later.
        await bench.start("node", podTemplate={"spec": {"terminationGracePeriodSeconds": GRACE_SECONDS}})
        lost = [await bench.lose_node("node", 1) for _ in range(RUNS)]
        limits = f"2 s until it is NotReady, {GRACE_SECONDS} s of grace, lostAfterSeconds {LOST_AFTER_SECONDS}"
        bench.add(f"node lost: {limits}", lost)
        await made.delete("node")
    bench.add("rank killed while the operator is started again", await without_operator(bench, made))
    table(
        f"From the fault to all {WORKERS} ranks joined, s",
        ["", "median", "min", "max", "ratio to the goal"],
        bench.rows,
    )


async def with_spares(made: World) -> None:
    """Measures faults of pods and nodes without and with a spare, alternately."""
    bench = Bench(made)
    init = {"name": "slow", "image": "busybox:1.36", "command": ["sleep", str(SLOW_POD_SECONDS)]}
    slow = {"podTemplate": {"spec": {"initContainers": [init]}}}
    with operator(made) as running:
        running.serving()
        for kind, pods in (("", {}), (f" that takes {SLOW_POD_SECONDS} s to start", slow)):
            for spares in (0, 1):
                name = f"spares-{spares}-{len(pods)}"
                await bench.start(name, spares=spares, **pods)
                title = f"pod{kind} deleted by force" + (", with a spare" if spares else "")
                goal = POD_GOAL if spares else None
                bench.add(title, [await bench.delete_pod(name, 2) for _ in range(RUNS)], goal)
                bench.add(f"the leader's {title}", [await bench.delete_pod(name, 0) for _ in range(RUNS)], goal)
                await made.delete(name)
        for spares in (0, 1):
            name = f"spares-node-{spares}"
            grace = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": GRACE_SECONDS}}}
            await bench.start(name, spares=spares, **grace)
            title = "node lost" + (", with a spare" if spares else "")
            bench.add(title, [await bench.lose_node(name, 1) for _ in range(RUNS)])
            await made.delete(name)
    columns = ["", "median", "min", "max", "ratio to the goal"]
    table(f"From the fault to all {WORKERS} ranks joined, without and with a spare, s", columns, bench.rows)


async def without_operator(bench: Bench, made: World) -> list[float]:
    """Kills the operator, which doesn't affect training, and a rank, and starts the next operator."""
    taken = []
    for run in range(RUNS):
        # Each run has a new job, because unwatched agents report by exiting, which makes the kubelet's back-off grow.
        name = f"away-{run}"
        with operator(made) as running:
            running.serving()
            await bench.start(name)
            attempt, ranks = await bench.steady(name)
            running.process.kill()
            running.process.wait()
        await asyncio.sleep(1.0)
        assert all(psutil.pid_exists(pid) for pid, _ in ranks.values()), "training noticed that the operator is gone"
        since = time.time()
        os.kill(ranks[1][0], signal.SIGKILL)
        with operator(made) as running:
            taken.append(await bench.recovered(name, attempt, since))
            await made.delete(name)
    return taken


async def sure_way(made: World, rows: tuple[str, ...]) -> None:
    bench = Bench(made)
    with operator(made, *NO_STREAMS) as running:
        running.serving()
        if "fresh" in rows:
            bench.add("rank killed, fresh", await bench.fresh("sure", bench.kill_rank, 2), SURE_GOAL)
        await bench.start("sure-row")
        if "row" in rows:
            row = [await bench.kill_rank("sure-row", 2) for _ in range(RUNS)]
            bench.add(f"the same rank killed, {RUNS} times in a row", row, SURE_GOAL)
            bench.add_in_order(row)
        if "pod" in rows:
            bench.add("pod deleted by force", [await bench.delete_pod("sure-row", 1) for _ in range(RUNS)], SURE_GOAL)
    columns = ["", "median", "min", "max", "ratio to the goal"]
    table("The same with the fast way cut off (no stream to any agent), s", columns, bench.rows)


async def main(parts: list[str]) -> None:
    if not parts or "fast_way" in parts:
        async with world(nodes=3) as made:
            await fast_way(made)
    if not parts or "spares" in parts:
        # Each pod has its own node, because a spare on a worker's node would be lost with it.
        async with world(nodes=5) as made:
            await with_spares(made)
    rows = SURE_ROWS if not parts or "sure_way" in parts else tuple(row for row in SURE_ROWS if row in parts)
    if rows:
        async with world(nodes=3) as made:
            await sure_way(made, rows)


if __name__ == "__main__":
    known = ("fast_way", "spares", "sure_way", *SURE_ROWS)
    unknown = set(sys.argv[1:]) - {*known}
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(known)}")
    asyncio.run(main(sys.argv[1:]))
