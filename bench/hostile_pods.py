"""Measures what twenty pods that answer as no real agent does cost all others.

    python -m bench.hostile_pods [ATTACK ...]

The table has a row for each attack by all twenty pods, and one for all attacks at once, each with a new operator. In
the first row the twenty pods behave. Meanwhile ranks of a job with real agents are killed, and the time of their
restart shows the effect on others. The operator's process measures its event loop every 5 ms and its memory every
20 ms.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.clusters import World, job, table, world
from bench.clusters.hostile_agents import ATTACKS
from bench.restart_by_fault import POLICY, WORKERS, Bench
from trainmaster_operator.wire.names import AGENT_PORT

PODS, KILLS = 20, 5
# Minimum seconds for which a row is measured.
ROW_SECONDS = 10.0
# A restart, or an operator's start, counts as failed after this time.
PATIENCE_SECONDS = 20.0
LAG_LIMIT, MEMORY_LIMIT = 100.0, 50.0
# Attacks through the API server's proxy, whose answers were once read to their end.
PROXIED = {"error_body"}
# Names of the rows.
BEHAVING, ALL = "well", "all at once"


def on_node(node: str) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}


class Child:
    """Child is a process that answers each line with a line."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def answer(self, words: str = "") -> str:
        """Sends a line, unless it is empty, and returns the next line; empty if the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is not None:
            return ""
        if words:
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()
        return await asyncio.to_thread(self.process.stdout.readline)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Attacked:
    """Attacked is one cluster, in which each attack is measured."""

    def __init__(self, made: World, agents: Child) -> None:
        self.made = made
        self.agents = agents
        self.bench = Bench(made)
        self.rows: list[list[object]] = []
        self.usual: float | None = None

    async def prepare(self) -> None:
        """Applies twenty jobs with one faked worker, and one job with real workers."""
        for number in range(PODS):
            # To the operator these jobs never start.
            policy = {"failurePolicy": {"startupSeconds": 86_400}}
            await self.made.apply(job(f"hostile-{number}", 1, **policy, **on_node("node-1")))
        good = {"failurePolicy": {**POLICY["failurePolicy"], "maxRestarts": 10_000}}
        await self.made.apply(job("good", WORKERS, **good, **on_node("node-0")))
        operator = self.operator("direct")
        try:
            await self.made.joined("good", WORKERS, 1)
            for number in range(PODS):
                while not (address := await self.address(f"hostile-{number}")):
                    await asyncio.sleep(0.1)
                await self.agents.answer(f"listen {address}")
        finally:
            operator.kill()

    async def address(self, name: str) -> str:
        return "".join((pod.get("status") or {}).get("podIP") or "" for pod in await self.made.pods(name))

    def operator(self, reach: str) -> Child:
        log = self.made.folder / f"operator-{time.monotonic_ns()}.log"
        return Child("bench.clusters.probed_operator", str(self.made.kubeconfig), reach, str(log))

    async def row(self, title: str, behaviours: list[str]) -> None:
        await self.agents.answer("be well")
        operator = self.operator("proxy" if title in PROXIED else "direct")
        try:
            await self.settled()
            await operator.answer("begin")
            began = time.monotonic()
            await self.agents.answer("be " + " ".join(behaviours))
            restarts = [await self.restart(operator, kill) for kill in range(KILLS)]
            await asyncio.sleep(max(0.0, began + ROW_SECONDS - time.monotonic()))
            said = await operator.answer("end")
        finally:
            operator.kill()
        self.add(title, json.loads(said) if said else None, restarts)

    async def settled(self) -> None:
        """Waits until the job runs again after the previous row, and all streams are open."""
        async with asyncio.timeout(6 * PATIENCE_SECONDS):
            while True:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS / 2):
                        await self.bench.steady("good")
                        break
                except TimeoutError:
                    continue
        await asyncio.sleep(4.0)

    async def restart(self, operator: Child, kill: int) -> float | None:
        if operator.process.poll() is not None:
            return None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if kill == 0 else PATIENCE_SECONDS / 4):
                return await self.bench.kill_rank("good", 2)
        except (TimeoutError, ProcessLookupError):
            # The previous restart may still be in progress, without the operator.
            return None

    def add(self, title: str, measured: dict[str, float] | None, restarts: list[float | None]) -> None:
        known = [taken for taken in restarts if taken is not None]
        middle = statistics.median(known) if len(known) == KILLS else None
        if title == BEHAVING:
            self.usual = middle
        times = "" if middle is None or self.usual is None else f"{middle / self.usual:.1f}"
        restart = f"{middle:.2f}" if middle is not None else f"{KILLS - len(known)} of {KILLS} never"
        name = title.replace("_", " ")
        if measured is None:
            self.rows.append([name, "ended", "", "", "", f"over {3 * 1024} MB", "", restart, times, ""])
        else:
            p99, memory = measured["p99"], measured["memory"]
            self.rows.append(
                [
                    name,
                    f"{measured['p50']:.1f}",
                    f"{p99:.1f}",
                    f"{measured['max']:.0f}",
                    f"{p99 / LAG_LIMIT:.2f}",
                    f"{memory:.0f}",
                    f"{memory / MEMORY_LIMIT:.2f}",
                    restart,
                    times,
                    f"{measured['changes']:.1f}",
                ]
            )
        print(*self.rows[-1], sep=" | ", flush=True)


async def main(chosen: list[str]) -> None:
    agents = Child("bench.clusters.hostile_agents", str(AGENT_PORT))
    try:
        await agents.answer()
        async with world(mixed=True, nodes=2) as made:
            attacked = Attacked(made, agents)
            await attacked.prepare()
            await attacked.row(BEHAVING, ["well"])
            for attack in chosen or ATTACKS:
                if attack != ALL:
                    await attacked.row(attack, [attack])
            if not chosen or ALL in chosen:
                await attacked.row(ALL, list(ATTACKS))
    finally:
        agents.kill()
    table(
        f"{PODS} hostile pods: the loop is late by, ms; memory grows by, MB; a rank killed elsewhere to all joined, s",
        [
            "",
            "p50",
            "p99",
            "max",
            f"of {LAG_LIMIT:g}",
            "memory",
            f"of {MEMORY_LIMIT:g}",
            "restart",
            "ratio",
            "changes/s",
        ],
        attacked.rows,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
