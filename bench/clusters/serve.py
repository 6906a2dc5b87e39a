"""The cluster of a benchmark as a process: `python -m bench.clusters.serve FOLDER [fake]` prints its kubeconfig.

With `fake` its pods are timers without processes, and one server on every pod's address plays all their agents: it says
that the ranks run, and pings. So an operator can be measured with thousands of pods and a stream open for every job.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from aiohttp import web

from trainmaster.api.protocol import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster.local.apiserver.api import Api
from trainmaster.local.config import ClusterConfig, NodeConfig
from trainmaster.local.embedded import LocalCluster

PING_SECONDS = 5.0
# Not the real agents' port, which pods of another cluster on this machine may have.
FAKE_AGENT_PORT = 8473


class FakeAgents:
    """All agents of the cluster on one port: loopback addresses all lead here."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = asyncio.Event()

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/stream", self._stream)
        app.router.add_post("/{path:.*}", self._taken)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", FAKE_AGENT_PORT).start()
        return runner

    async def _taken(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        pods = (await self._api.list("pods")).items
        lead = next((pod for pod in pods if (pod.get("status") or {}).get("podIP") == address), None)
        if lead is None:
            return web.Response(status=404)
        name = lead["metadata"]["labels"][JOB_NAME_LABEL]
        mine = [pod for pod in pods if pod["metadata"]["labels"].get(JOB_NAME_LABEL) == name]
        members = [(int(pod["metadata"]["labels"][POD_INDEX_LABEL]), pod["metadata"]["uid"]) for pod in mine]
        response = web.StreamResponse()
        await response.prepare(request)
        known = [{"worker": worker, "uid": uid, "seen": 1, "connected": True} for worker, uid in members]
        lines = [{"type": "hello", "lead": 0, "uid": lead["metadata"]["uid"], "attempt": 1, "members": known}]
        for seq, (worker, uid) in enumerate(members, 1):
            report = {"attempt": 1, "worker": worker, "uid": uid, "state": "Running", "at": 1.0}
            lines.append({"type": "report", "seq": seq, "report": report})
        await response.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        while True:
            await asyncio.sleep(PING_SECONDS)
            await response.write(b'{"type":"ping"}\n')


async def main(folder: Path, fake: bool) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    node = NodeConfig(cpu="100000", memory="100000Gi", pods=100_000, fake=fake, resources={"nvidia.com/gpu": 100_000})
    async with LocalCluster(ClusterConfig(state_dir=folder / "cluster", nodes=(node,))) as cluster:
        agents = await FakeAgents(cluster.api).start() if fake else None
        print(cluster.kubeconfig, flush=True)
        await stop.wait()
        if agents is not None:
            await agents.cleanup()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "fake" in sys.argv[2:]))
