"""Provides the cluster, the operator (each in its own process) and the jobs that the operator's benchmarks share.

`serve` is the cluster's process, with faked pods if a benchmark needs thousands. `hostile_agents` plays agents that
answer as no real agent does. `watched_operator` and `probed_operator` are operators that measure themselves. `ticking`
runs any command and measures its event loop. `strangers` attacks a port. `steps` reads the steps that ranks of
`bench.programs` have recorded, and `stepping_jobs` defines their jobs. `faults` causes faults in such a job. `failures`
reports measurements that failed.

With TRAINMASTER_TEST_KUBECONFIG the benchmarks run on that cluster instead. No operator may be running there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trainmaster_operator.api.crd import crd
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, RawObject, Resource
from trainmaster_operator.controller.apiserver.connection import connect
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, Invalid, NotFound

NAMESPACE = "bench"
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
ESTABLISHED_SECONDS = 20.0
# Many times what a job's end takes on a busy machine. Waiting without a limit could block the whole benchmark.
DELETE_SECONDS = 120.0

# The program of the peers' figures. Ranks join rank 0 over TCP, and exit when a peer's connection breaks. When all have
# joined, rank 0 lets them continue, and each prints the time and its process id.
RING = """
import os, socket, sys, time
rank, world, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["TRAINMASTER_ATTEMPT"]
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(world - 1)]
    [peer.sendall(b"g") for peer in peers]
else:
    while True:
        try:
            peers = [socket.create_connection(address, 1)]; break
        except OSError:
            time.sleep(0.005)
    peers[0].settimeout(None)
    if peers[0].recv(1) != b"g": sys.exit(1)
print("joined", attempt, rank, os.getpid(), time.time(), flush=True)
import json, select
step, pause = 0, float(os.environ.get("PROGRESS_SECONDS", "inf"))
while True:
    ready, _, _ = select.select(peers, [], [], None if pause == float("inf") else pause)
    if not ready:
        step += 1
        with open(os.environ["TRAINMASTER_PROGRESS_FILE"], "w") as file: file.write(json.dumps({"step": step}))
    for peer in ready:
        if not peer.recv(1): sys.exit(1)
"""


def job(name: str, workers: int, **spec: Any) -> RawObject:
    """Returns a job whose ranks join and wait."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"workers": workers, "launcher": "exec", "command": ["python3", "-c", RING], **spec},
    }


class World:
    """World is a cluster with the custom resource, and a client of the cluster."""

    def __init__(
        self,
        kubeconfig: Path,
        cluster: KubernetesCluster,
        folder: Path,
        process: subprocess.Popen[str] | None,
        agent_port: int = 0,
    ) -> None:
        self.kubeconfig = kubeconfig
        self.cluster = cluster
        self.folder = folder
        # The embedded cluster's process.
        self.process = process
        # The faked agents' port, if there are any.
        self.agent_port = agent_port

    async def order(self, *words: str) -> None:
        """Sends a command to the embedded cluster: to lose or recover a node."""
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(" ".join(words) + "\n")
        process.stdin.flush()
        await asyncio.to_thread(process.stdout.readline)

    async def status(self, name: str) -> RawObject:
        return dict((await self.cluster.get(JOBS, NAMESPACE, name)).get("status") or {})

    async def apply(self, body: RawObject) -> None:
        await self.cluster.apply(JOBS, NAMESPACE, body["metadata"]["name"], body)

    async def delete(self, name: str) -> None:
        found = await self.cluster.get(JOBS, NAMESPACE, name)
        await self.cluster.delete(JOBS, NAMESPACE, name, uid=found["metadata"]["uid"])
        async with asyncio.timeout(DELETE_SECONDS):
            while await self.pods(name):
                await asyncio.sleep(0.05)

    async def force_delete(self, pod: RawObject) -> None:
        metadata = pod["metadata"]
        await self.cluster.delete(PODS, NAMESPACE, metadata["name"], uid=metadata["uid"], force=True)

    async def pods(self, name: str) -> list[RawObject]:
        selector = f"trainmaster.dev/job-name={name}"
        return [pod async for page in self.cluster.pages(PODS, NAMESPACE, label_selector=selector) for pod in page]

    async def joined(
        self, name: str, workers: int, attempt: int, seconds: float = 60.0
    ) -> dict[int, tuple[int, float]]:
        """Returns each rank's process id and time of joining, once all ranks of an attempt have joined."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found: dict[int, tuple[int, float]] = {}
            # If a job has spares, its status lists the workers that train.
            for worker in (await self.status(name)).get("workerOrder") or range(workers):
                try:
                    text = await self.cluster.pod_log(NAMESPACE, f"{name}-{worker}", tail_lines=50, limit_bytes=65_536)
                except (NotFound, Invalid):
                    # The pod doesn't exist yet, or its container hasn't started.
                    break
                match = re.search(rf"joined {attempt} (\d+) (\d+) ([0-9.]+)", text)
                if match is None:
                    break
                found[int(match[1])] = (int(match[2]), float(match[3]))
            if len(found) == workers:
                return found
            await asyncio.sleep(0.05)
        status = await self.status(name)
        raise TimeoutError(f"{name}: attempt {attempt} hasn't joined in {seconds:g} s; {json.dumps(status)}")


@asynccontextmanager
async def world(
    *, fake: bool = False, mixed: bool = False, nodes: int = 1, step_seconds: float = 0.0
) -> AsyncIterator[World]:
    """Starts a cluster for the benchmark.

    With `fake` its pods and agents are faked, so that there can be thousands. Their ranks do a step each
    `step_seconds` if that isn't 0. With `mixed` the last node's pods are faked, and the benchmark plays their agents.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        given = os.environ.get("TRAINMASTER_TEST_KUBECONFIG")
        process, agent_port = None, 0
        if given:
            kubeconfig = Path(given)
        else:
            pods = ["fake", str(step_seconds)] if fake else ["mixed"] if mixed else []
            command = [sys.executable, "-m", "bench.clusters.serve", folder, str(nodes), *pods]
            # It has its own session (`bench.peers.busy`), because a real cluster's processes share none with ranks.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            assert process.stdout is not None
            answer = (await asyncio.to_thread(process.stdout.readline)).split()
            kubeconfig, agent_port = Path(answer[0]), int(answer[1])
        cluster = KubernetesCluster(await connect(str(kubeconfig), None))
        try:
            await _prepare(cluster)
            yield World(kubeconfig, cluster, Path(folder), process, agent_port)
        finally:
            await cluster.close()
            if process is not None:
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(_wait, process, 30)


async def _prepare(cluster: KubernetesCluster) -> None:
    definition = crd()
    name = definition["metadata"]["name"]
    await cluster.apply(DEFINITIONS, "", name, definition)
    async with asyncio.timeout(ESTABLISHED_SECONDS):
        while not _is_established(await cluster.get(DEFINITIONS, "", name)):
            await asyncio.sleep(0.02)
    try:
        await cluster.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}, "apiVersion": "v1", "kind": "Namespace"})
    except AlreadyExists:
        return


def _is_established(definition: RawObject) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


class Operator:
    """Operator is the operator's process. `metrics` reads its counters."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, started: float) -> None:
        self.process = process
        self.log = log
        self.started = started
        self.port = int(self._wait(r"Metrics on port (\d+)"))

    def _wait(self, pattern: str, seconds: float = 120.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            match = re.search(pattern, self.log.read_text())
            if match is not None:
                return match[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"the operator never logged {pattern!r}:\n{self.log.read_text()[-2000:]}")

    def serving(self) -> float:
        """Returns the seconds from the operator's start until it had read all jobs."""
        self._wait(r"Serving [^:]*: (\d+) jobs")
        return time.monotonic() - self.started

    def metrics(self) -> dict[str, float]:
        """Returns every sample by its name and labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def writes(self) -> dict[str, float]:
        """Returns the number of successful writes by verb and kind."""
        found = {}
        for name, value in self.metrics().items():
            match = re.match(r'trainmaster_api_writes_total\{kind="([^"]+)",verb="([^"]+)"\}', name)
            if match is not None:
                found[f"{match[2]} {match[1]}"] = value
        return found


@contextmanager
def operator(world: World, *arguments: str) -> Iterator[Operator]:
    """Starts an operator for the benchmark's namespace."""
    log = world.folder / f"operator-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "trainmaster.cli.main", "operator", "run", "--namespace", NAMESPACE]
    command += ["--kubeconfig", str(world.kubeconfig), "--no-leader-elect", *arguments]
    started = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        yield Operator(process, log, started)
    finally:
        process.terminate()
        _wait(process, 20)


def _wait(process: subprocess.Popen[Any], seconds: float) -> None:
    """Waits for a process that was asked to end. If it doesn't end, kills it and prints a message."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} didn't end within {seconds:g} s: {process.args}", flush=True)
        process.kill()
        process.wait()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], width: int = 110) -> None:
    """Prints a table."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    Console(width=width).print(made)


def spread(values: Sequence[float], limit: float | None = None) -> list[object]:
    """Returns the median, minimum, maximum, and the median's ratio to a limit."""
    middle = statistics.median(values)
    return [middle, min(values), max(values), "" if limit is None else f"{middle / limit:.2f} of {limit:g} s"]


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Waits for a condition, and returns how long that took (seconds)."""
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
    return time.monotonic() - started
