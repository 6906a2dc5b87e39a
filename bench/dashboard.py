"""Measures the dashboard with many jobs and many viewers of the list: `python -m bench.dashboard [JOBS VIEWERS]`.

The dashboard runs in its own process, as in a cluster. A fake API server runs in another one. Each viewer has a
separate token. The limits apply to 1,000 jobs with progress every 5 s, and 100 viewers.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import table
from tests.processes.controller.fake_http import kubeconfig
from tests.processes.dashboard.fake_api import VIEW, FakeApi, job, serving_api
from tests.processes.dashboard.page_client import Live, PageClient, page_client

PROGRESS_SECONDS, SECONDS = 5.0, 30.0
# The limits: per cent of a core, MB, and seconds until the first message.
CPU_LIMIT, MEMORY_LIMIT, FIRST_LIMIT = 50.0, 150.0, 2.0


def large_job(number: int, step: int) -> dict[str, Any]:
    """Returns a job as large as real jobs: with a pod template, conditions, a failure and managed fields."""
    made = job(
        f"job-{number:04}",
        f"team-{number % 20}",
        progress={"step": step, "totalSteps": 100_000, "loss": 1 / (step + 1), "samplesPerSecond": 1000.0 + step % 7},
        conditions=[
            {"type": kind, "status": "True", "reason": "AllRanksUp", "message": "all ranks are up", "at": "x" * 100}
            for kind in ("Accepted", "Running", "Suspended")
        ],
        failures=[{"attempt": 1, "reason": "Error", "message": "rank 3 raised RuntimeError\n" + "line\n" * 50}],
        podUIDs=["0a8cbd9e-9f51-4c56-b5a1-7d5d4b7c5d10"] * 16,
    )
    made["metadata"]["managedFields"] = [{"manager": "trainmaster", "fieldsV1": {f"f:{n}": {} for n in range(150)}}]
    made["spec"]["podTemplate"] = {
        "spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}] * 20}]}
    }
    return made


async def serve(jobs: int, viewers: int) -> None:
    """Runs the fake API server, in which every job makes progress."""
    api = FakeApi({f"viewer-{number}": VIEW for number in range(viewers)})
    api.put(*(large_job(number, 0) for number in range(jobs)))
    async with serving_api(api):
        print(api.url, len(json.dumps(large_job(0, 0))), flush=True)
        began, put = time.monotonic(), 0
        while True:
            # If this is late, it makes all changes that are due by now.
            while put < (time.monotonic() - began) * jobs / PROGRESS_SECONDS:
                put += 1
                api.put(large_job(put % jobs, put // jobs))
            await asyncio.sleep(PROGRESS_SECONDS / jobs)


async def first_message(client: PageClient, token: str, open_: list[Any]) -> tuple[Live, float]:
    """Opens a viewer's list; returns it, and the seconds until it contained all jobs."""
    started = time.monotonic()
    live = client.live("/api/jobs", token)
    open_.append(live)
    reader = await live.__aenter__()
    await reader.next("jobs")
    return reader, time.monotonic() - started


async def read(live: Live, delays: list[float], changes: list[int]) -> None:
    """Reads as a page does, and records each batch's age and its number of changed jobs."""
    while True:
        found = await live.next("changed")
        delays.append(time.time() - found["at"])
        changes.append(len(found["rows"]))
        live.events.clear()


async def main(jobs: int, viewers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        served = subprocess.Popen(
            [sys.executable, "-m", "bench.dashboard", "serve", str(jobs), str(viewers)],
            stdout=subprocess.PIPE,
            # The server logs an error for each viewer that disconnects.
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert served.stdout is not None
        url, size = served.stdout.readline().split()
        command = [sys.executable, "-m", "trainmaster.cli.main", "dashboard", "--mode", "cluster", "--port", "0"]
        command += ["--address", "127.0.0.1", "--kubeconfig", kubeconfig(Path(folder), url)]
        dashboard = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert dashboard.stderr is not None
            port = re.search(r"on port (\d+)", dashboard.stderr.readline())
            assert port is not None
            await measure(psutil.Process(dashboard.pid), port[1], jobs, viewers, int(size))
        finally:
            for process in (dashboard, served):
                process.terminate()
                process.wait(20)


async def measure(process: psutil.Process, port: str, jobs: int, viewers: int, size: int) -> None:
    rows: list[list[object]] = []
    rows.append(["resident memory without viewers", f"{process.memory_info().rss / 1e6:.0f} MB", ""])
    open_: list[Any] = []
    delays: list[float] = []
    changes: list[int] = []
    async with page_client(f"http://127.0.0.1:{port}") as client:
        _, alone = await first_message(client, "viewer-0", open_)
        rows.append(["first viewer: all jobs", f"{alone:.2f} s", f"{alone / FIRST_LIMIT:.2f} of {FIRST_LIMIT:g} s"])
        found = await asyncio.gather(*(first_message(client, f"viewer-{n}", open_) for n in range(1, viewers)))
        worst = max(seconds for _, seconds in found)
        rows.append([f"{viewers - 1} more at once: all jobs, the last", f"{worst:.2f} s", ""])
        reading = [asyncio.create_task(read(live, delays, changes)) for live, _ in found]
        await asyncio.sleep(5)
        before = sum(process.cpu_times()[:2])
        changes.clear()
        await asyncio.sleep(SECONDS)
        share = 100 * (sum(process.cpu_times()[:2]) - before) / SECONDS
        rows.append(["CPU", f"{share:.1f} % of a core", f"{share / CPU_LIMIT:.2f} of {CPU_LIMIT:g} %"])
        rows.append(
            ["jobs that change, as a viewer sees it", f"{sum(changes) / len(found) / SECONDS:.0f} a second", ""]
        )
        memory = process.memory_info().rss / 1e6
        rows.append(["resident memory", f"{memory:.0f} MB", f"{memory / MEMORY_LIMIT:.2f} of {MEMORY_LIMIT:g} MB"])
        rows.append(["a batch at its viewer, median", f"{1000 * statistics.median(delays):.0f} ms", ""])
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for live in open_:
            await live.__aexit__(None, None, None)
    table(f"{jobs} jobs of {size} bytes, {viewers} viewers", ["", "measured", "ratio to the limit"], rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", given, tokens]:
            asyncio.run(serve(int(given), int(tokens)))
        case given:
            asyncio.run(main(*([int(number) for number in given] or [1_000, 100])))
