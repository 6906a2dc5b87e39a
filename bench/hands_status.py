"""Measures `kubectl dtj status` of one of 1,000 jobs: `python -m bench.hands_status [JOBS]`.

The requested job has pods, with an operator and faked agents. The other jobs have a copy of its status. A run lasts
from the process's start to its end. The time that Python and the libraries of any command line need is measured too.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.clusters import NAMESPACE, World, job, operator, spread, table, world
from trainmaster_operator.controller.apiserver.cluster import JOBS

JOBS_AT_ONCE = 50
RUNS = 15
WORKERS = 4
LIMIT = 0.4
ASKED = "job-0"
SECONDS = 120.0


async def running(made: World) -> Mapping[str, object]:
    """Returns the requested job's status once it runs."""
    async with asyncio.timeout(SECONDS):
        while (status := await made.status(ASKED)).get("phase") != "Running":
            await asyncio.sleep(0.1)
    return status


async def fill(made: World, status: Mapping[str, object], first: int, last: int) -> None:
    """Creates the other jobs, with a running job's status."""
    for at in range(first, last, JOBS_AT_ONCE):
        await asyncio.gather(*(one(made, f"job-{n}", status) for n in range(at, min(at + JOBS_AT_ONCE, last))))


async def one(made: World, name: str, status: Mapping[str, object]) -> None:
    await made.apply(job(name, WORKERS))
    await made.cluster.patch(JOBS, NAMESPACE, name, {"status": status}, status=True)


def runs(command: Sequence[str], environ: Mapping[str, str]) -> list[float]:
    """Returns the seconds that each run of a command took."""
    found = []
    for _ in range(RUNS):
        started = time.monotonic()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        found.append(time.monotonic() - started)
    return found


def user_environment(kubeconfig: Path, programs: Path) -> dict[str, str]:
    """Returns a user's environment. Bytecode is enabled in it, which some developers' machines disable."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}


async def main(jobs: int) -> None:
    programs = Path(sys.executable).parent
    python = [sys.executable, "-c"]
    async with world(fake=True) as made:
        environ = user_environment(made.kubeconfig, programs)
        with operator(made, "--reach", "direct", "--agent-port", str(made.agent_port)):
            await made.apply(job(ASKED, WORKERS))
            status = await running(made)
        await fill(made, status, 1, jobs)
        where = ["-n", NAMESPACE]
        measured = [
            ("Python's start", [*python, "pass"], None),
            ("and import of typer and rich", [*python, "import typer, rich.console, rich.table"], None),
            ("kubectl get dtj JOB", ["kubectl", "get", "dtj", ASKED, *where], None),
            ("kubectl-dtj status JOB", ["kubectl-dtj", "status", ASKED, *where], LIMIT),
            ("kubectl dtj status JOB", ["kubectl", "dtj", "status", ASKED, *where], LIMIT),
            ("kubectl dtj status, all jobs", ["kubectl", "dtj", "status", *where], None),
        ]
        rows: list[list[object]] = [
            [name, *spread(await asyncio.to_thread(runs, command, environ), limit)] for name, command, limit in measured
        ]
    table(f"{jobs} jobs, {RUNS} runs (s)", ["", "median", "min", "max", "ratio to the limit"], rows)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
