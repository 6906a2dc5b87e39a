"""`python -m bench.clusters.serve FOLDER NODES [fake|mixed] [SECONDS]` runs a cluster, and prints its kubeconfig.

With `fake` pods are timers without processes, and one server plays the agents at all pods' addresses: it reports that
the ranks run, and pings. With SECONDS each rank also reports a step once in that time. So an operator can be measured
with thousands of pods and one open stream for every job. With `mixed` only the last node's pods are timers, and nothing
plays their agents.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from trainmaster.local import configure
from trainmaster_local.config import ClusterConfig, NodeConfig, NodeTimings, machine_nodes
from trainmaster_local.embedded import LocalCluster
from trainmaster_local.inside import Api, Change
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import ProgressLine

PING_SECONDS = 5.0
# A node with real pods offers this many GPUs. On a machine without GPUs they are only numbers.
MACHINE_GPUS = 64
# A lost node is detected within two seconds instead of fifty.
NODE_TIMINGS = NodeTimings(lease_seconds=0.5, monitor_grace_seconds=2.0, monitor_seconds=0.25, orphan_seconds=1.0)


class FakeAgents:
    """FakeAgents plays all agents of the cluster on one port, because all loopback addresses lead to this process."""

    def __init__(self, api: Api, step_seconds: float) -> None:
        self._api = api
        # If this is 0, ranks do no steps.
        self._step_seconds = step_seconds
        self._by_address: dict[str, Mapping[str, Any]] = {}
        self._by_job: dict[tuple[str, str], dict[int, str]] = {}
        self._changed: dict[tuple[str, str], asyncio.Event] = {}
        self.port = 0

    async def start(self) -> web.AppRunner:
        self._api.storage.subscribe("pods", self._pod_changed)
        app = web.Application()
        app.router.add_get("/v1/stream", self._stream)
        app.router.add_post("/{path:.*}", self._taken)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        # A free port is used, because real agents of another cluster on this machine may use the usual one.
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        self.port = runner.addresses[0][1]
        return runner

    def _pod_changed(self, change: Change) -> None:
        pod = change.last.object
        metadata, address = pod["metadata"], (pod.get("status") or {}).get("podIP")
        key = (metadata["namespace"], metadata["labels"].get(JOB_NAME_LABEL, ""))
        workers = self._by_job.setdefault(key, {})
        worker = int(metadata["labels"].get(POD_INDEX_LABEL, 0))
        if change.new is None:
            self._by_address.pop(address or "", None)
            workers.pop(worker, None)
        elif address:
            self._by_address[address] = pod
            if workers.get(worker) != metadata["uid"]:
                workers[worker] = metadata["uid"]
                self._changed.pop(key, asyncio.Event()).set()

    async def _taken(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        leader = self._by_address.get(address)
        if leader is None:
            return web.Response(status=404)
        metadata = leader["metadata"]
        key = (metadata["namespace"], metadata["labels"][JOB_NAME_LABEL])
        response = web.StreamResponse()
        await response.prepare(request)
        lines: list[dict[str, Any]] = [
            {"type": "hello", "leader": 0, "uid": metadata["uid"], "attempt": 1, "workers": []},
        ]
        reported: set[str] = set()
        step = 0
        while True:
            # Workers join as their pods start.
            changed = self._changed.setdefault(key, asyncio.Event())
            for worker, uid in self._by_job[key].items():
                if uid not in reported:
                    reported.add(uid)
                    lines.append({"type": "worker", "worker": worker, "uid": uid, "seen": 1, "connected": True})
                    report = {"attempt": 1, "worker": worker, "uid": uid, "state": "Running", "at": 1.0}
                    lines.append({"type": "report", "seq": len(reported), "report": report})
            try:
                await response.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            except ConnectionResetError:
                # The operator has ended.
                return response
            try:
                await asyncio.wait_for(changed.wait(), self._step_seconds or PING_SECONDS)
                lines = []
            except TimeoutError:
                step += 1
                lines = [self._progress(worker, step) for worker in self._by_job[key]] if self._step_seconds else []
                lines = lines or [{"type": "ping"}]

    def _progress(self, worker: int, step: int) -> dict[str, Any]:
        rank = RankProgress(
            step=step,
            total_steps=1_000_000,
            loss=10 / (step + math.pi),
            samples_per_second=100 * math.pi,
            step_seconds=self._step_seconds * (1 + 0.01 * math.sin(step + worker)),
        )
        return ProgressLine(1, worker, {worker: rank}, at=time.time()).to_wire()


async def obey(cluster: LocalCluster, stop: asyncio.Event) -> None:
    """Executes the commands on standard input, one a line: `lose NODE` or `recover NODE`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while not stop.is_set():
        words = (await reader.readline()).decode().split()
        match words:
            case ["lose", node]:
                await cluster.lose_node(node)
            case ["recover", node]:
                await cluster.recover_node(node)
            case _:
                return
        print("done", flush=True)


async def main(folder: Path, pods: str, nodes: int, step_seconds: float) -> None:
    """Runs the cluster until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    size: Any = {"cpu": "100000", "memory": "100000Gi", "pods": 100_000, "resources": {"nvidia.com/gpu": 100_000}}
    if pods != "fake":
        # Real programs share the machine's devices.
        size["resources"] = machine_nodes(gpus=MACHINE_GPUS)[0].resources
    config = ClusterConfig(
        state_dir=folder / "cluster",
        nodes=[
            NodeConfig(f"node-{number}", fake=pods == "fake" or (pods == "mixed" and number == nodes - 1), **size)
            for number in range(nodes)
        ],
        node_timings=NODE_TIMINGS if nodes > 1 else NodeTimings(),
    )
    async with LocalCluster(configure(config)) as cluster:
        agents = FakeAgents(cluster.api, step_seconds)
        runner = await agents.start() if pods == "fake" else None
        print(cluster.kubeconfig, agents.port, flush=True)
        orders = asyncio.create_task(obey(cluster, stop))
        await stop.wait()
        orders.cancel()
        if runner is not None:
            await runner.cleanup()


if __name__ == "__main__":
    more = sys.argv[3:]
    asyncio.run(
        main(Path(sys.argv[1]), more[0] if more else "", int(sys.argv[2]), float(more[1]) if len(more) > 1 else 0.0)
    )
