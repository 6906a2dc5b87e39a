"""Measures what strangers who attack the ports of operator, history and dashboard cost all others.

    python -m bench.hostile_ports [SECONDS [ROUNDS [LOAD [SERVERS AND ATTACKS ...]]]]

The table has a row for each attack (bench/clusters/strangers.py) on each server. A server's first row is without an
attack. Servers run in separate processes, as in a cluster, and each attack lasts SECONDS, ROUNDS times. LOAD busy
processes run at the same time. Meanwhile another client requests a probe (operator) or a list of jobs. The lag is the
delay of the server's event loop by the clock. Its own part excludes the time that other processes used the processor.
The memory is the resident peak, compared with three quarters of the chart's limit.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.clusters import NAMESPACE, World, job, table, world
from bench.clusters.strangers import ATTACKS
from tests.processes.controller.fake_http import kubeconfig
from tests.processes.history.history_process import job as recorded
from tests.processes.history.history_process import key, line

JOBS, PAUSE_SECONDS, PATIENCE_SECONDS = 20, 0.05, 20.0
LAG_LIMIT, CLIENT_LIMIT = 100.0, 500.0
# The chart's limits, in MiB.
MEMORY = {"operator": 512, "history": 512, "dashboard": 256}
# Attacks on pages that only some of the servers have.
ONLY = {"the page, not read": "dashboard", "metrics, not read": "operator", "invented tokens": "history dashboard"}


Ask = Callable[[], Awaitable[None]]


@dataclass
class Server:
    """Server is one process, which is attacked at `ports`."""

    name: str
    process: subprocess.Popen[bytes]
    ticks: Path
    log: Path
    ports: dict[str, int] = field(default_factory=dict)

    async def port(self, pattern: str) -> int:
        """Returns the port that the log names."""
        async with asyncio.timeout(60):
            while not (found := re.search(pattern, self.log.read_text())):
                await asyncio.sleep(0.05)
        return int(found[1])

    def forget_peak(self) -> None:
        """Resets the peak of memory."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak(self) -> float:
        """Returns the peak of the resident memory, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(text.split()[1]) / 1_024 for text in status.splitlines() if text.startswith("VmHWM"))

    def lags(self, since: float, which: str) -> list[float]:
        """Returns the loop's lags since a time, in ms. If the loop is blocked, it has missed all ticks until now."""
        lines = [json.loads(text) for text in self.ticks.read_text().splitlines()]
        standing = time.time() - (lines[-1]["at"] if lines else since)
        missed = [standing] * int(standing / 0.005) if standing > 1.0 else []
        found = [lag for text in lines if text["at"] >= since for lag in text[which]]
        return [1_000 * lag for lag in (*found, *missed)]


@asynccontextmanager
async def started(name: str, folder: Path, *arguments: str) -> AsyncIterator[Server]:
    """Starts a command that measures its loop."""
    ticks, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    ticks.touch()
    with log.open("wb") as output:
        command = [sys.executable, "-m", "bench.clusters.ticking", str(ticks), *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield Server(name, process, ticks, log)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def operator(made: World) -> AsyncIterator[tuple[Server, Ask]]:
    """Starts the operator, which leads by a lease and has a few jobs."""
    options = ["--namespace", NAMESPACE, "--lease-namespace", NAMESPACE, "--kubeconfig", str(made.kubeconfig)]
    options += ["--health-port", "0", "--agent-port", str(made.agent_port)]
    async with started("operator", made.folder, "operator", "run", *options) as server, session() as client:
        server.ports["probes"] = await server.port(r"Probes on port (\d+)")
        server.ports["metrics"] = await server.port(r"Metrics on port (\d+)")
        await server.port(r"Serving [^:]*: (\d+) jobs")

        async def probe() -> None:
            await (await client.get(f"http://127.0.0.1:{server.ports['probes']}/healthz")).read()

        # The operator's start isn't measured.
        await asyncio.sleep(5.0)
        yield server, probe


@asynccontextmanager
async def history(folder: Path, url: str) -> AsyncIterator[tuple[Server, Ask]]:
    """Starts a history with recorded jobs, whose list another viewer reads."""
    token = folder / "token"
    token.write_text("the-writers")
    options = ["--file", str(folder / "history.sqlite"), "--port", "0", "--address", "127.0.0.1"]
    options += ["--writer-token-file", str(token), "--kubeconfig", kubeconfig(folder, url)]
    async with started("history", folder, "history", "serve", *options) as server, session() as client:
        server.ports["all"] = port = await server.port(r"is served on port (\d+)")
        body = b"".join(line(recorded(time.time(), key(f"job-{n}", f"uid-{n}", "team-0"))) for n in range(JOBS))
        writer = {"Authorization": "Bearer the-writers"}
        await client.post(f"http://127.0.0.1:{port}/v1/records", data=body, headers=writer)

        async def read() -> None:
            viewer = {"Authorization": "Bearer viewer-0"}
            answer = await client.get(f"http://127.0.0.1:{port}/v1/jobs?namespace=team-0", headers=viewer)
            assert len((await answer.json())["items"]) == JOBS

        yield server, read


@asynccontextmanager
async def dashboard(folder: Path, url: str) -> AsyncIterator[tuple[Server, Ask]]:
    """Starts the dashboard, whose list another viewer opens."""
    options = ["--mode", "cluster", "--port", "0", "--address", "127.0.0.1", "--kubeconfig", kubeconfig(folder, url)]
    async with started("dashboard", folder, "dashboard", *options) as server, session() as client:
        server.ports["all"] = port = await server.port(r"on port (\d+)")

        async def read() -> None:
            viewer = {"Authorization": "Bearer viewer-0"}
            async with client.get(f"http://127.0.0.1:{port}/api/jobs?namespace=team-0", headers=viewer) as answer:
                assert answer.status == 200
                await answer.content.readline()

        yield server, read


def session() -> aiohttp.ClientSession:
    """Returns a client that opens a connection for each request, as the kubelet does."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(PATIENCE_SECONDS)
    )


async def asked(ask: Ask, until: float) -> list[float]:
    """Returns how long another client waited for each answer, in ms."""
    waited = []
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            await ask()
            waited.append(1_000 * (time.monotonic() - began))
        except (aiohttp.ClientError, TimeoutError, AssertionError):
            waited.append(1_000 * PATIENCE_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS)
    return waited


def p99(values: Sequence[float]) -> float:
    """Returns the 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


async def measured(server: Server, ask: Ask, attack: str, seconds: float) -> list[float]:
    """Returns the loop's p99 lag, the lag's own part and another client's p99 (in ms), and the peak memory (MiB)."""
    server.forget_peak()
    since, until = time.time(), time.monotonic() + seconds
    commands = [
        [sys.executable, "-m", "bench.clusters.strangers", attack, str(port), str(seconds)]
        for port in server.ports.values()
    ]
    strangers = [subprocess.Popen(command) for command in commands if ATTACKS[attack].connections]
    waited = await asked(ask, until)
    for each in strangers:
        await asyncio.to_thread(each.wait)
    return [p99(server.lags(since, "lags")), p99(server.lags(since, "own")), p99(waited), server.peak()]


async def rows_of(server: Server, ask: Ask, attacks: Sequence[str], seconds: float, rounds: int) -> list[list[object]]:
    """Returns the rows of one server."""
    rows: list[list[object]] = []
    memory_limit = 0.75 * MEMORY[server.name]
    for attack in attacks:
        if server.name not in ONLY.get(attack, server.name):
            continue
        found = []
        for _ in range(rounds):
            if server.process.poll() is None:
                found.append(await measured(server, ask, attack, seconds))
                await asyncio.sleep(1.0)
        if server.process.poll() is not None or not found:
            rows.append([server.name, attack, "ended", "", "", ""])
            break
        lag, own, waited, memory = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append(
            [
                server.name,
                attack,
                f"{lag:.0f} ms ({lag / LAG_LIMIT:.2f})",
                f"{own:.0f} ms",
                f"{waited:.0f} ms ({waited / CLIENT_LIMIT:.2f})",
                f"{memory:.0f} MiB ({memory / memory_limit:.2f})",
            ]
        )
        print(rows[-1], flush=True)
    return rows


async def main(seconds: float, rounds: int, load: int, names: Sequence[str]) -> None:
    """Prints the table."""
    servers = [name for name in MEMORY if name in names] or list(MEMORY)
    attacks = [name for name in ATTACKS if name in names] or list(ATTACKS)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    rows: list[list[object]] = []
    try:
        async with AsyncExitStack() as stack:
            made = await stack.enter_async_context(world(fake=True))
            api = subprocess.Popen(
                [sys.executable, "-m", "bench.dashboard", "serve", str(JOBS), "1"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(api.wait)
            stack.callback(api.kill)
            assert api.stdout is not None
            url = (await asyncio.to_thread(api.stdout.readline)).split()[0]
            if "operator" in servers:
                for number in range(JOBS):
                    await made.apply(job(f"job-{number}", 2))
                async with operator(made) as (server, ask):
                    rows += await rows_of(server, ask, attacks, seconds, rounds)
            for name, start in (("history", history), ("dashboard", dashboard)):
                if name in servers:
                    async with start(made.folder, url) as (server, ask):
                        rows += await rows_of(server, ask, attacks, seconds, rounds)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    columns = [
        "server",
        "attack",
        "p99 lag (of 100 ms)",
        "its own part",
        "another client (of 500 ms)",
        "memory (of 3/4 limit)",
    ]
    table(f"strangers at the ports, {load} busy processes beside them, median of {rounds}", columns, rows)


if __name__ == "__main__":
    given = sys.argv[1:]
    numbers = [float(text) for text in given[:3]]
    seconds, rounds, load = (*numbers, *(5.0, 3.0, 2.0)[len(numbers) :])
    asyncio.run(main(seconds, int(rounds), int(load), given[3:]))
