"""A job whose ranks write down their steps (`bench.programs`) is given faults here, and each one's cost is measured."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import psutil

from bench.clusters import NAMESPACE, World
from bench.clusters.steps import NEW_STEP_SECONDS, Steps
from bench.programs.parts import PARTS
from trainmaster.client import JobClient
from trainmaster.controller.apiserver.cluster import NODES

HANG_SECONDS = 3
LOST_AFTER_SECONDS = 2
# After a lost rank is back, and with it what that costs the others.
SETTLED_SECONDS = 2.0


@dataclass(frozen=True)
class Meanwhile:
    """Meanwhile is what happened from the survivors' first new step until the lost rank was back: the steps that had a
    smaller batch, and the mean share that those had of a whole one; after how many seconds it was back, and for how
    long the survivors made no step.
    """

    short_steps: int
    share: float
    back: float | None = None
    gap: float | None = None


@dataclass
class Cost:
    """Cost is what one fault cost: seconds until the first new step, how many steps were repeated, and the seconds that
    those had taken before.
    """

    seconds: float
    redone: int
    repeated_seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    meanwhile: Meanwhile | None = None


async def meanwhile(
    steps: Steps, attempt: int, survivors: Collection[int], lost: int, since: float, returns: bool
) -> Meanwhile:
    """Waits until a lost rank is back, where it returns, and tells what happened meanwhile.

    `since` is when the survivors had done their first new step.
    """
    back = await steps.joined(attempt, lost) if returns else None
    await asyncio.sleep(SETTLED_SECONDS)
    steps.poll()
    until = back or time.time() - SETTLED_SECONDS
    short = [share for share in steps.shares(attempt, PARTS, until) if share < 1]
    gap = steps.longest_gap(survivors, since, back + SETTLED_SECONDS) if back else None
    share = statistics.mean(short) if short else 1.0
    return Meanwhile(len(short), share, back and back - since, gap)


class FaultyJob:
    """FaultyJob gives one job its faults."""

    def __init__(
        self,
        made: World,
        name: str,
        steps: Steps,
        workers: int,
        seconds: float = NEW_STEP_SECONDS,
        *,
        continues: bool = False,
    ) -> None:
        """The job is lost if `seconds` after a fault it has made no new step; with `continues` its survivors never
        stop.
        """
        self.made, self.name, self.steps, self._workers, self._seconds = made, name, steps, workers, seconds
        self._continues = continues
        self._client: JobClient | None = None

    async def steady(self) -> int:
        """Returns the attempt that runs, when it has done new steps for a while and the operator knows it."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            status = await self.made.status(self.name)
            self.steps.poll()
            attempt = int(status.get("attempt", 0))
            if status.get("phase") == "Running" and self.steps.is_steady(attempt, self._workers):
                await asyncio.sleep(random.uniform(0.5, 1.5))
                return attempt
            if status.get("phase") in ("Failed", "Succeeded"):
                raise RuntimeError(f"the job has ended: {status}")
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.name} doesn't train: {await self.made.status(self.name)}")

    async def measure(self, fault: str) -> Cost:
        """Causes a fault once the job trains steadily; returns what it cost."""
        attempt = await self.steady()
        rank, since = random.randrange(self._workers), time.time()
        node = await self._cause(fault, attempt, rank)
        survivors = set(range(self._workers)) - ({rank} if self._continues else set())
        try:
            if node is not None and self._continues:
                since = await self._known_lost(node)
            back, redone = await self.steps.first_new(attempt, since, survivors, self._seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {await self.made.status(self.name)}") from None
        finally:
            if node is not None:
                await self.made.order("recover", node)
        waited = HANG_SECONDS if fault == "hang" else 0
        parts = {} if fault == "restart" else await self._parts(attempt)
        cost = Cost(back - since - waited, redone, self.steps.seconds_of_last(attempt, redone), parts)
        if self._continues:
            cost.meanwhile = await meanwhile(self.steps, attempt, survivors, rank, back, returns=True)
        return cost

    async def _known_lost(self, node: str) -> float:
        """Returns since when the operator takes a node as lost."""
        async with asyncio.timeout(60):
            while True:
                found = await self.made.cluster.get(NODES, "", node)
                conditions = (found.get("status") or {}).get("conditions") or []
                if any(each["type"] == "Ready" and each["status"] != "True" for each in conditions):
                    return time.time() + LOST_AFTER_SECONDS
                await asyncio.sleep(0.05)

    async def _cause(self, fault: str, attempt: int, rank: int) -> str | None:
        """Causes a fault; returns the node that is to be recovered."""
        pid = self.steps.pids[attempt, rank]
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "restart":
            # No fault, but what `kubectl dtj restart` asks for.
            self._client = self._client or JobClient(NAMESPACE, kubeconfig=self.made.kubeconfig)
            await asyncio.to_thread(self._client.restart, self.name)
        elif fault == "hang":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "agent":
            _agent_of(pid).kill()
        elif fault == "pod":
            await self.made.force_delete(await self._pod(await self._worker(rank)))
        else:
            node = str((await self._pod(await self._worker(rank)))["spec"]["nodeName"])
            await self.made.order("lose", node)
            return node
        return None

    async def _pod(self, worker: int) -> dict[str, Any]:
        pods = await self.made.pods(self.name)
        return next(pod for pod in pods if pod["metadata"]["name"] == f"{self.name}-{worker}")

    async def _worker(self, rank: int) -> int:
        """Returns the worker that has a rank now."""
        status = await self.made.status(self.name)
        return int((status.get("workerOrder") or list(range(self._workers)))[rank])

    async def _parts(self, attempt: int) -> dict[str, float]:
        """Returns the operator's account of the recovery, which comes with the next progress."""
        for _ in range(50):
            for failure in (await self.made.status(self.name)).get("failures", []):
                if failure["attempt"] == attempt and failure.get("recovery"):
                    return dict(failure["recovery"])
            await asyncio.sleep(0.1)
        return {}


def _agent_of(pid: int) -> psutil.Process:
    """Returns the agent above a rank, of which a launcher may be in between."""
    for process in psutil.Process(pid).parents():
        if "run" in process.cmdline() and any("agent" in word for word in process.cmdline()):
            return process
    raise RuntimeError(f"{pid} has no agent above it")
