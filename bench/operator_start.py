"""Measures the time from apply until all pods exist and until all ranks have joined, and the operator's writes.

Then many jobs are applied at once, with faked pods and agents. The benchmark measures how long it takes until all their
StatefulSets and pods exist, and the operator's CPU and writes for each job, until then and until all jobs run. The
embedded cluster uses half of the machine, so compare CPU and writes rather than the time. With
TRAINMASTER_TEST_KUBECONFIG the time is a real cluster's.
"""

from __future__ import annotations

import asyncio
import sys
import time

import psutil

from bench.clusters import NAMESPACE, Operator, World, job, operator, spread, table, until, world
from bench.clusters.failures import Failures
from trainmaster_operator.controller.apiserver.cluster import PODS

RUNS = 7
WORKERS = 4
JOBS, PODS_OF_A_JOB = 100, 2
# The last request that is needed before a job's pods exist.
LAST_WRITE = "create StatefulSet"
# The limit of each wait. The longest usually takes 10 s.
DEADLINE_SECONDS = 120


async def many() -> None:
    """Applies many jobs at once."""
    rows: list[list[object]] = []
    async with world(fake=True) as made:
        with operator(made, "--reach", "direct", "--agent-port", str(made.agent_port)) as running:
            running.serving()
            await asyncio.sleep(2.0)
            # The first job isn't counted, because some objects are created only once for a namespace.
            await made.apply(job("first", PODS_OF_A_JOB))
            await until(lambda: _running(running) >= 1, 60)
            process = psutil.Process(running.process.pid)
            cpu, writes, began = sum(process.cpu_times()[:2]), running.writes(), time.monotonic()
            await asyncio.gather(*(made.apply(job(f"many-{n}", PODS_OF_A_JOB)) for n in range(JOBS)))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while running.writes().get(LAST_WRITE, 0) - writes.get(LAST_WRITE, 0) < JOBS:
                    await asyncio.sleep(0.2)
            rows += _so_far("all StatefulSets exist, s", began, process, cpu, _since(writes, running.writes()))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while await _all_pods(made) < (JOBS + 1) * PODS_OF_A_JOB:
                    await asyncio.sleep(0.05)
            rows += _so_far("all pods exist, s", began, process, cpu, _since(writes, running.writes()))
            async with asyncio.timeout(DEADLINE_SECONDS):
                while _running(running) <= JOBS:
                    # Checks are rare, because each request costs the operator some milliseconds.
                    await asyncio.sleep(0.5)
            rows += _so_far("all run, s", began, process, cpu, _since(writes, running.writes()))
    table(f"{JOBS} jobs of {PODS_OF_A_JOB} faked pods at once", ["", "measured"], rows)


def _so_far(
    title: str, began: float, process: psutil.Process, cpu: float, writes: list[tuple[str, float]]
) -> list[list[object]]:
    """Returns the time, CPU and writes so far. Prints them at once, because a later part may fail."""
    rows: list[list[object]] = [
        [title, f"{time.monotonic() - began:.1f}"],
        ["CPU until then, ms a job", _each(1000 * (sum(process.cpu_times()[:2]) - cpu))],
        *([f"{name} until then, a job", _each(count)] for name, count in writes),
    ]
    print("; ".join(f"{name} {value}" for name, value in rows), flush=True)
    return rows


async def _all_pods(made: World) -> int:
    return sum([len(page) async for page in made.cluster.pages(PODS, NAMESPACE, metadata_only=True)])


def _running(running: Operator) -> float:
    return running.metrics().get('trainmaster_jobs{phase="Running"}', 0)


def _each(total: float) -> str:
    return f"{total / JOBS:.2f}"


def _since(before: dict[str, float], after: dict[str, float]) -> list[tuple[str, float]]:
    counts = [(name, value - before.get(name, 0)) for name, value in sorted(after.items())]
    counts = [(name, count) for name, count in counts if count]
    return [*counts, ("all writes", sum(count for _, count in counts))]


async def one() -> None:
    """Applies one job at a time."""
    created, started = [], []
    async with world() as made:
        with operator(made) as running:
            running.serving()
            await asyncio.sleep(1.0)
            for run in range(RUNS):
                name = f"start-{run}"
                applied = time.time()
                await made.apply(job(name, WORKERS))
                async with asyncio.timeout(DEADLINE_SECONDS):
                    while len(await made.pods(name)) < WORKERS:
                        await asyncio.sleep(0.005)
                created.append(time.time() - applied)
                joined = await made.joined(name, WORKERS, 1)
                started.append(max(at for _, at in joined.values()) - applied)
                print(f"{name}: created {created[-1]:.3f} s, joined {started[-1]:.3f} s", flush=True)
                await made.delete(name)
            table(
                f"Start of a job of {WORKERS} workers, s ({RUNS} runs)",
                ["", "median", "min", "max", ""],
                [
                    ["apply to all pods created", *spread(created)],
                    ["apply to all ranks joined", *spread(started)],
                ],
            )
            before = running.writes()
            finished = job("finishing", 2)
            finished["spec"]["command"] = ["python3", "-c", "import time; time.sleep(2)"]
            await made.apply(finished)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not await made.pods("finishing"):
                    await asyncio.sleep(0.01)
                until_pods = running.writes()
                while await made.pods("finishing"):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)
            after = running.writes()
    counts = {name: int(value - before.get(name, 0)) for name, value in sorted(after.items())}
    writes: list[list[object]] = [[name, count] for name, count in counts.items() if count]
    writes.append(["all", sum(counts.values())])
    writes.append(["until the pods exist (goal: 3)", int(sum(until_pods.values()) - sum(before.values()))])
    table("The operator's writes for a job of 2 workers from apply to its end", ["write", "count"], writes)


async def main() -> int:
    failures = Failures()
    for title, part in (("one job at a time", one), ("many jobs at once", many)):
        with failures.of(title):
            await part()
    return failures.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
