"""Causes faults in a job whose ranks record their steps (`bench.programs`), and measures what each fault costs."""

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
from trainmaster.client import JobClient
from trainmaster_operator.api.times import to_seconds

HANG_SECONDS = 3.0
LOST_AFTER_SECONDS = 2
# Numbers of steps before a fault: after all ranks have started, while warm processes still import modules, and if the
# others continued training; and after a lost rank has joined, which may cost the others time.
FIRST_STEPS, STEADY_STEPS, SETTLED_STEPS = 30, 10, 10


@dataclass(frozen=True)
class Meanwhile:
    """The events from the survivors' first new step until the lost rank was back.

    `share` is the median part of a complete batch that a step used. `lost` is the part that all steps together missed,
    in batches. `joined` is the seconds from that first step until the lost rank's first step. `joining` is the longest
    time between two steps of a survivor while the rank joined, and `longest` the longest such time in all.
    """

    steps: int
    share: float
    lost: float
    joined: float | None = None
    joining: float | None = None
    longest: float | None = None


@dataclass
class Cost:
    """Cost contains what one fault cost.

    `seconds` is the time from the fault's detection until the first new step, and `detected` the time until its
    detection. `redone` is the number of repeated steps, and `repeated_seconds` how long they took the first time.
    `step` is the median time of a step.
    """

    seconds: float
    redone: int
    repeated_seconds: float = 0.0
    detected: float = 0.0
    step: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    meanwhile: Meanwhile | None = None


async def meanwhile(
    steps: Steps, attempt: int, survivors: Collection[int], lost: int, since: float, returns: bool
) -> Meanwhile:
    """Waits until a lost rank has joined, if it returns. Returns the events until then.

    `since` is the time at which the survivors finished their first new step.
    """
    if not returns:
        await steps.made(attempt + 1, survivors, STEADY_STEPS + SETTLED_STEPS)
        shares = steps.shares(attempt, time.time())
        return Meanwhile(len(shares), statistics.median(shares), sum(1 - share for share in shares))
    back, joined = await steps.joined(attempt, lost)
    await steps.made(joined, {*survivors, lost}, SETTLED_STEPS)
    shares = steps.shares(attempt, back)
    return Meanwhile(
        len(shares),
        # The lost rank may be back before the others have done a step without it.
        statistics.median(shares) if shares else 1.0,
        sum(1 - share for share in shares),
        back - since,
        steps.gap_before(joined, survivors),
        steps.longest_gap(survivors, since, time.time()),
    )


class FaultyJob:
    """FaultyJob causes faults in one job."""

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
        """The job is lost without a new step `seconds` after a fault. With `continues` its survivors never stop."""
        self.made, self.name, self.steps, self._workers, self._seconds = made, name, steps, workers, seconds
        self._continues, self._faults = continues, 0
        self._client: JobClient | None = None

    async def steady(self) -> int:
        """Waits until the attempt has done new steps for a while, and the operator knows it. Returns its number."""
        enough = STEADY_STEPS if self._continues and self._faults else FIRST_STEPS
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            status = await self.made.status(self.name)
            self.steps.poll()
            attempt = int(status.get("attempt", 0))
            if status.get("phase") == "Running" and self.steps.is_steady(attempt, self._workers, enough):
                # A random time, so that faults don't always hit the same part of a step.
                await asyncio.sleep(random.uniform(0.2, 1.2))
                return attempt
            if status.get("phase") in ("Failed", "Succeeded"):
                raise RuntimeError(f"the job has ended: {status}")
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.name} doesn't train: {await self.made.status(self.name)}")

    async def measure(self, fault: str) -> Cost:
        """Causes a fault once the job trains steadily; returns the fault's cost."""
        attempt = await self.steady()
        self._faults += 1
        rank = random.randrange(self._workers)
        since, node = await self._cause(fault, attempt, rank)
        survivors = set(range(self._workers)) - ({rank} if self._continues else set())
        try:
            back, redone = await self.steps.first_new(attempt, since, survivors, self._seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {await self.made.status(self.name)}") from None
        finally:
            if node is not None:
                await self.made.order("recover", node)
        left = None
        if self._continues:
            left = await meanwhile(self.steps, attempt, survivors, rank, back, returns=True)
        failure = {} if fault == "restart" else await self._failure(attempt)
        detected = 0.0
        if fault == "hang":
            detected = HANG_SECONDS
        elif node is not None and self._continues:
            detected = (to_seconds(failure["failedAt"]) or since) - since
        return Cost(
            back - since - detected,
            redone,
            self.steps.seconds_of_last(attempt, redone),
            detected,
            self.steps.whole_step(self._workers),
            dict(failure.get("recovery") or {}),
            left,
        )

    async def _cause(self, fault: str, attempt: int, rank: int) -> tuple[float, str | None]:
        """Causes a fault; returns the time of the fault, and the node to recover (or None)."""
        pid, node = self.steps.pids[attempt, rank], None
        # The pod is read before the time of the fault is taken.
        pod = await self._pod(await self._worker(rank)) if fault in ("pod", "node") else {}
        since = time.time()
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "restart":
            # This is no fault, but a requested restart, as by `kubectl dtj restart`.
            self._client = self._client or JobClient(NAMESPACE, kubeconfig=self.made.kubeconfig)
            await asyncio.to_thread(self._client.restart, self.name)
        elif fault == "hang":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "agent":
            _agent_of(pid).kill()
        elif fault == "pod":
            await self.made.force_delete(pod)
        else:
            node = str(pod["spec"]["nodeName"])
            await self.made.order("lose", node)
        return since, node

    async def _pod(self, worker: int) -> dict[str, Any]:
        pods = await self.made.pods(self.name)
        return next(pod for pod in pods if pod["metadata"]["name"] == f"{self.name}-{worker}")

    async def _worker(self, rank: int) -> int:
        """Returns the worker that runs a rank now."""
        status = await self.made.status(self.name)
        return int((status.get("workerOrder") or list(range(self._workers)))[rank])

    async def _failure(self, attempt: int) -> dict[str, Any]:
        """Returns an attempt's failure in the status. Waits for the recovery's times, which need progress reports."""
        found: dict[str, Any] = {}
        for _ in range(50):
            failures = (await self.made.status(self.name)).get("failures", [])
            found = next((each for each in failures if each["attempt"] == attempt), {})
            if found.get("recovery"):
                break
            await asyncio.sleep(0.1)
        return found


def _agent_of(pid: int) -> psutil.Process:
    """Returns a rank's agent. There may be a launcher between them."""
    for process in psutil.Process(pid).parents():
        if "run" in process.cmdline() and any("agent" in word for word in process.cmdline()):
            return process
    raise RuntimeError(f"{pid} has no agent above it")
