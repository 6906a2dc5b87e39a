"""Measures what viewers who request large answers cost the dashboard and all others.

    python -m bench.dashboard_hostile [ATTACK ...]

One tenant has forty jobs of 1.4 MB, fifty pods of 1.4 MB and a job of 1,000 pods, and one viewer requests them in every
way. The table has a row for each attack, and one for all at once. Each attack lasts ten seconds on 127.0.0.1, with a
separate dashboard. Meanwhile another viewer opens the list of their namespace and the list of all, and new viewers
sign in.
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
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from bench.clusters import table
from tests.processes.controller.fake_http import kubeconfig
from tests.processes.dashboard.fake_api import VIEW, FakeApi, job, running_pod, serving_api
from tests.processes.dashboard.page_client import PageClient, page_client

SECONDS, PAGES, PODS = 10.0, 32, 1_000
JOBS, LARGE_PODS, LARGE = 40, 50, 1_400_000
# The limits: memory in MB (three quarters of the chart's 256 Mi), lag in ms, and time for a list in s.
MEMORY_LIMIT, LAG_LIMIT, LIST_LIMIT = 192 * 1.048576, 100.0, 0.5
RIGHTS = VIEW | {("list", "nodes", "")}
FRESH = 400
# The resource version of all objects, so that no watch begins with earlier changes.
VERSION = "1000"


class HostileApi(FakeApi):
    """HostileApi is an API server that encodes its large answers in advance, so that its work isn't measured."""

    def __init__(self) -> None:
        tokens = ["attacker", "victim", *(f"fresh-{number}" for number in range(FRESH))]
        super().__init__(dict.fromkeys(tokens, RIGHTS))
        self.bodies: dict[str, bytes] = {}
        calm, wide = [job(f"calm-{number}", "calm") for number in range(20)], job("wide", "hostile")
        wide["status"]["workers"] = {"running": PODS, "desired": PODS, "created": PODS}
        self.put(*calm, wide)
        plain, large = json.dumps(self.large_job(plain=True)), json.dumps(self.large_job(plain=False))
        jobs = [plain.replace("large-N", "large-0")]
        jobs += [large.replace("large-N", f"large-{number}") for number in range(1, JOBS)]
        quiet = [json.dumps(one) for one in (*calm, wide)]
        pod = json.dumps(self.large_pod())
        pods = encoded([pod.replace("large-N", f"large-{number}") for number in range(LARGE_PODS)])
        base = "/apis/trainmaster.dev/v1alpha1"
        hostile = f"{base}/namespaces/hostile/distributedtrainingjobs"
        self.bodies = {
            f"{base}/distributedtrainingjobs": encoded([*quiet, *jobs]),
            f"{base}/namespaces/calm/distributedtrainingjobs": encoded(quiet[:-1]),
            hostile: encoded([*jobs, quiet[-1]]),
            "/api/v1/namespaces/hostile/pods": pods,
            "/api/v1/pods": pods,
            "/api/v1/nodes": encoded([json.dumps({"metadata": {"name": "node-0"}, "status": {}})]),
            "wide": encoded([json.dumps(running_pod(number, "wide")) for number in range(PODS)]),
            **{f"{hostile}/large-{number}": one.encode() for number, one in enumerate(jobs)},
        }
        for number in range(PODS):
            self.logs[f"wide-{number}"] = ["2026-11-26T02:00:00Z [rank 0]: a line"]

    @staticmethod
    def large_job(*, plain: bool) -> dict[str, Any]:
        made = {"kind": "DistributedTrainingJob", **job("large-N", "hostile")}
        made["metadata"]["resourceVersion"] = VERSION
        # A plain job's manifest can be shown: it contains 512 KiB of ordinary values.
        ordinary = {f"key-{key}": {"value": f"text {key}"} for key in range(11_000)}
        values = {"numbers": [0] * (LARGE // 12), "texts": [{"a": "b"}] * (LARGE // 24), "text": "x" * (LARGE // 4)}
        made["spec"]["training"] = ordinary if plain else values
        return made

    @staticmethod
    def large_pod() -> dict[str, Any]:
        made = running_pod(0, "large-1")
        made["metadata"]["name"] = "large-N"
        made["spec"]["containers"] = [{"name": "worker", "env": [{"name": "A", "value": "b"}] * (LARGE // 32)}]
        return made

    async def _object(self, request: web.Request, token: str) -> web.StreamResponse:
        if request.path == "/bench":
            return web.json_response({"kind": "Bench", "mostLogs": self.most_logs})
        name = "wide" if "job-name=wide" in request.query.get("labelSelector", "") else request.path
        if "watch" not in request.query and name in self.bodies:
            return await sent(request, self.bodies[name])
        return await super()._object(request, token)


async def sent(request: web.Request, body: bytes) -> web.StreamResponse:
    """Sends a large answer in pieces, as an API server does, so that other answers aren't delayed."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for start in range(0, len(body), 262_144):
        await response.write(body[start : start + 262_144])
        await asyncio.sleep(0)
    return response


def encoded(items: list[str]) -> bytes:
    metadata = json.dumps({"resourceVersion": VERSION})
    return f'{{"kind":"List","metadata":{metadata},"items":[{",".join(items)}]}}'.encode()


async def serve() -> None:
    """Runs the fake API server."""
    async with serving_api(HostileApi()) as api:
        print(api.url, flush=True)
        await asyncio.Event().wait()


async def live(client: PageClient, path: str, token: str) -> None:
    """Opens a live answer and reads it until cancelled. If it is refused or ends, opens it again."""
    while True:
        with suppress(AssertionError, EOFError, OSError, TimeoutError):
            async with client.live(path, token) as answer:
                while await answer.response.content.readany():
                    pass
        await asyncio.sleep(0.5)


async def ask(client: PageClient, path: str, token: Callable[[], str]) -> None:
    """Repeats a request until cancelled."""
    while True:
        with suppress(OSError, TimeoutError):
            async with client.session.get(
                f"{client.base}{path}", headers={"Authorization": f"Bearer {token()}"}
            ) as answer:
                while await answer.content.readany():
                    pass
                if answer.status >= 400:
                    await asyncio.sleep(0.05)


def attacker() -> str:
    return "attacker"


def invented() -> str:
    return f"invented-{time.monotonic_ns()}"


def pages(client: PageClient) -> list[Awaitable[None]]:
    return [live(client, f"/api/jobs/hostile/large-{1 + page % 30}", "attacker") for page in range(PAGES)]


def same_page(client: PageClient) -> list[Awaitable[None]]:
    return [live(client, "/api/jobs/hostile/large-0", "attacker") for _ in range(PAGES)]


def lists(client: PageClient) -> list[Awaitable[None]]:
    return [live(client, f"/api/jobs{where}", "attacker") for where in ("", "?namespace=hostile")]


def nodes(client: PageClient) -> list[Awaitable[None]]:
    return [ask(client, "/api/nodes", attacker) for _ in range(8)]


def logs(client: PageClient) -> list[Awaitable[None]]:
    return [live(client, "/api/jobs/hostile/wide/logs?follow=1", "attacker") for _ in range(PAGES)]


def manifests(client: PageClient) -> list[Awaitable[None]]:
    return [ask(client, f"/api/jobs/hostile/large-{number % 4}/manifest", attacker) for number in range(8)]


def diagnoses(client: PageClient) -> list[Awaitable[None]]:
    return [ask(client, f"/api/jobs/hostile/large-{number}/why", attacker) for number in range(8)]


def tokens(client: PageClient) -> list[Awaitable[None]]:
    return [ask(client, "/api/viewer", invented) for _ in range(64)]


ATTACKS = {
    "none": lambda _: [],
    "32 pages of one job": same_page,
    "32 pages of 30 jobs": pages,
    "lists": lists,
    "nodes": nodes,
    "logs": logs,
    "manifests": manifests,
    "why": diagnoses,
    "invented tokens": tokens,
}
ALL = "all at once"


async def first_jobs(client: PageClient, path: str, token: str) -> float:
    began = time.monotonic()
    async with client.live(path, token) as answer:
        await answer.next("jobs")
    return time.monotonic() - began


async def row(name: str, api: str, folder: Path, number: int) -> list[object]:
    lags = folder / f"lags-{number}"
    command = [sys.executable, "-m", "bench.clusters.ticking", str(lags), "dashboard", "--mode", "cluster"]
    command += ["--port", "0"]
    command += ["--address", "127.0.0.1", "--kubeconfig", kubeconfig(folder, api)]
    dashboard = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)
    assert dashboard.stderr is not None
    port = re.search(r"on port (\d+)", dashboard.stderr.readline())
    assert port is not None
    # The dashboard's output isn't needed, but a full pipe would block the dashboard.
    draining = asyncio.create_task(asyncio.to_thread(dashboard.stderr.read))
    try:
        return await measure(name, f"http://127.0.0.1:{port[1]}", dashboard, number, lags)
    finally:
        dashboard.kill()
        dashboard.wait()
        await draining


async def measure(name: str, base: str, dashboard: subprocess.Popen[str], number: int, lags: Path) -> list[object]:
    chosen = [attack for each, attack in ATTACKS.items() if name in (each, ALL)]
    own: list[float] = []
    all_: list[float] = []
    new: list[float] = []
    kept_out = 0
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(page_client(base))
        hostile = await stack.enter_async_context(page_client(base))
        await first_jobs(victim, "/api/jobs?namespace=calm", "victim")
        begins = time.time()
        tasks = [asyncio.ensure_future(work) for attack in chosen for work in attack(hostile)]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        fresh = number * 40
        while time.monotonic() - began < SECONDS:
            for path, into in (("/api/jobs?namespace=calm", own), ("/api/jobs", all_)):
                try:
                    into.append(await first_jobs(victim, path, "victim"))
                except (AssertionError, OSError, EOFError, TimeoutError):
                    into.append(20.0)
            if fresh < number * 40 + 40:
                asked = time.monotonic()
                with suppress(OSError, TimeoutError):
                    status, _ = await victim.get("/api/viewer", f"fresh-{fresh}")
                    kept_out += status != 200
                    new.append(time.monotonic() - asked)
                fresh += 1
            await asyncio.sleep(0.3)
        await asyncio.sleep(0.5)
        late, own_late = lags_since(lags, begins)
        peak = peak_of(dashboard)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    middle = statistics.median(own)
    p99, own_p99 = (1_000 * each[int(len(each) * 0.99)] for each in (late, own_late))
    found = [name, f"{peak:.0f}", f"{peak / MEMORY_LIMIT:.2f}", f"{p99:.0f}", f"{p99 / LAG_LIMIT:.2f}"]
    found += [f"{own_p99:.0f}", f"{1_000 * late[-1]:.0f}"]
    found += [f"{middle:.2f}", f"{middle / LIST_LIMIT:.2f}", f"{max(own):.2f}"]
    found += [f"{statistics.median(all_):.2f}, {max(all_):.2f}"]
    found += [f"{max(new, default=0):.2f}" + (f", {kept_out} kept out" if kept_out else "")]
    print(*found, sep=" | ", flush=True)
    return list(found)


def lags_since(file: Path, began: float) -> tuple[list[float], list[float]]:
    """Returns the event loop's delays since `began`, sorted: by the clock, and by the process's processor time."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    late, own = ([lag for line in lines if line["at"] > began for lag in line[name]] for name in ("lags", "own"))
    return sorted(late) or [9.9], sorted(own) or [9.9]


def peak_of(process: subprocess.Popen[str]) -> float:
    """Returns the peak of a process's resident memory, in MB."""
    if not psutil.pid_exists(process.pid):
        return 3072.0
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 3072.0)


async def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        served = subprocess.Popen(
            [sys.executable, "-m", "bench.dashboard_hostile", "serve"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert served.stdout is not None
            api = served.stdout.readline().strip()
            names = [*ATTACKS, ALL]
            rows = [await row(name, api, Path(folder), names.index(name)) for name in chosen or names]
            async with page_client(api) as client:
                _, said = await client.get("/bench", "victim")
        finally:
            served.kill()
            served.wait()
    titles = ["", "peak, MB", f"of {MEMORY_LIMIT:.0f}", "lag p99, ms", f"of {LAG_LIMIT:g}", "own p99", "max"]
    titles += ["own list, s", f"of {LIST_LIMIT:g}", "max", "all jobs, s, max", "new viewer, s, the last"]
    table(f"hostile viewers; at most {said['mostLogs']} logs were read at once", titles, rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        asyncio.run(main(sys.argv[1:]))
