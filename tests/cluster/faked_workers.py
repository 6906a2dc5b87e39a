"""Agents and ranks are faked without processes, for hundreds of workers in one test: a small version of
docs/protocol.md.

    workers = FakedWorkers(cluster)          # a LocalCluster whose nodes fake their pods
    await workers.start()                    # its `port` is the operator's agent port, reached directly
    workers.script["namespace/job"] = Script(seconds=0.2, faults=[Fail(attempt=1, worker=1)])

Each faked container that starts is an agent, and lives as long as the container. It reads the pod's annotation a moment
late, accepts pushed assignments, keeps its saved report for as long as its pod lives, never runs an attempt twice,
reports to the leader (the first living worker of the assignment), and makes an unacknowledged report by exiting. All
agents of the cluster share one server on every loopback address. The connections between agents are function calls, so
it differs from the real agent only in its speed. `record` contains what ranks do, and `overlaps` what must never
happen: two attempts of a job that train at the same time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from tests.cluster.faked_agents import ENDED, Agent, Fail, Run, Script, Timings
from trainmaster_local.embedded import LocalCluster
from trainmaster_local.inside import Change, Container, ContainerConfig, FakeRuntime
from trainmaster_operator.agent.authority import Authority
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, JOB_NAME_LABEL, TOKEN_HEADER

# Seconds until an annotation is seen, and until peers notice a broken connection.
ANNOTATION_SECONDS, BROKEN_SECONDS = 0.05, 0.03
PING_SECONDS = 5.0


@dataclass
class FakedWorkers:
    """Fakes workers as the module describes; it lives in the cluster's event loop."""

    cluster: LocalCluster
    script: dict[str, Script] = field(default_factory=dict)
    default: Script = field(default_factory=Script)
    timings: Timings = field(default_factory=Timings)
    # Whether the operator can open streams.
    reachable: bool = True
    # Called with (job, attempt) when all of an attempt's ranks have joined.
    on_joined: Callable[[str, int], None] | None = None
    record: list[Run] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    authorities: dict[AgentSettings, Authority] = field(default_factory=dict)
    # Reasons for refused assignments: only the operator may sign them.
    refused: list[str] = field(default_factory=list)
    agents: dict[str, Agent] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    saved: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _spawned: set[asyncio.Task[Any]] = field(default_factory=set)
    port: int = 0

    async def start(self) -> None:
        api = self.cluster.api
        self._watched: dict[str, float] = defaultdict(lambda: float("-inf"))
        self._end = api.storage.subscribe("pods", self._pod_changed)
        for kubelet in self.cluster.kubelets.values():
            self.play_on(kubelet.fakes)
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/v1/stream", self._stream)
        app.router.add_post("/v1/assignment", self._assign)
        app.router.add_post("/v1/ack", self._acknowledge)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        # All of 127.0.0.0/8 is this machine; a free port avoids the real agents' port.
        await web.TCPSite(self._runner, "0.0.0.0", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._end()
        for agent in list(self.agents.values()):
            agent.alive = False
            for queue in agent.streams:
                queue.put_nowait(b"")
        await self._runner.cleanup()

    def play_on(self, runtime: FakeRuntime) -> None:
        """Act as the program of a node's faked containers."""

        def started(config: ContainerConfig, container: Container) -> None:
            pod = self.pods.get(config.pod_uid)
            if pod is None or config.name != "worker" or JOB_NAME_LABEL not in (pod["metadata"].get("labels") or {}):
                return
            agent = self.agents[config.pod_uid] = Agent(self, pod, runtime, container)
            container.exited.add_done_callback(lambda _: agent.die())
            self._print(pod)
            self.later(ANNOTATION_SECONDS, self._read_annotation, config.pod_uid)

        runtime.on_start = started

    def _print(self, pod: dict[str, Any]) -> None:
        """Write a line to the container's log, because the operator waits a while for an empty one."""
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        life = self._lives[metadata["uid"]] = self._lives.get(metadata["uid"], -1) + 1
        path = self.cluster.kubelets[node].log_path(pod, "worker", life)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"2026-11-21T22:00:00.000000000Z stdout F {metadata['name']} trains\n")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something in the cluster's loop, when called from that loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def later(self, seconds: float, work: Callable[..., None], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, work, *arguments)

    def _pod_changed(self, change: Change) -> None:
        uid = change.last.object["metadata"]["uid"]
        if change.new is None:
            self.pods.pop(uid, None)
            self.saved.pop(uid, None)
            self._lives.pop(uid, None)
            return
        self.pods[uid] = dict(change.new.object)
        if uid in self.agents:
            self.later(ANNOTATION_SECONDS, self._read_annotation, uid)

    def _read_annotation(self, uid: str) -> None:
        pod, agent = self.pods.get(uid), self.agents.get(uid)
        text = ((pod or {}).get("metadata", {}).get("annotations") or {}).get(ASSIGNMENT_ANNOTATION)
        if agent is not None and text:
            agent.take_text(text)

    # Common actions of agents

    def leader(self, agent: Agent) -> Agent | None:
        """Returns the first living worker of the newest assignment that any of the job's agents knows."""
        peers = {peer.worker: peer for peer in agent.peers()}
        known = [peer.assignment for peer in peers.values() if peer.assignment is not None]
        newest = max(known, key=lambda a: a.attempt, default=None)
        return next((peers[worker] for worker in (newest.workers if newest else ()) if worker in peers), None)

    def deliver(self, agent: Agent, report: dict[str, Any]) -> None:
        leader = self.leader(agent)
        if leader is not None:
            leader.keep(report)

    def publish_worker(self, agent: Agent) -> None:
        leader = self.leader(agent)
        if leader is not None:
            leader.say({"type": "worker", **agent.worker_line()})
            for peer in agent.peers():
                # Reports that an earlier leader received are sent too.
                if peer.report is not None:
                    leader.keep(peer.report)

    def is_watched(self, agent: Agent, within: float = 0.0) -> bool:
        leader = self.leader(agent)
        if leader is not None and leader.streams:
            return True
        return time.monotonic() - self._watched[agent.job_uid] < within

    def rendezvous(self, agent: Agent, assignment: Assignment) -> None:
        """Joins all ranks of an attempt when the last of them is up."""
        present = {worker for place, worker in enumerate(assignment.workers) if place not in assignment.absent}
        runs = ((peer, peer.run) for peer in agent.peers() if peer.run is not None)
        peers = [peer for peer, run in runs if run.attempt == assignment.attempt and not run.preparing]
        if {peer.worker for peer in peers} != present:
            return
        if any(peer.run is not None and peer.run.joined is not None for peer in peers):
            # A new pod of attempt 1, which names no uids, finds a closed group.
            return
        for other in self.record:
            if other.worker not in present:
                # An absent rank may still be ending; without the others it doesn't train.
                continue
            if other.job == agent.job and other.stopped is None and other.attempt != assignment.attempt:
                self.overlaps.append(f"{agent.job}: attempt {assignment.attempt} joined while {other} ran")
            if other.job == agent.job and other.attempt == assignment.attempt and other.joined is not None:
                # Attempt 1 names no uids, so that jobs start without the operator: if all of its pods were replaced
                # while the operator was away, the new ones start it again. Later attempts name their pods.
                begun_again = assignment.attempt == 1 and other.stopped is not None
                if not begun_again or other.pod in {peer.uid for peer in peers}:
                    self.overlaps.append(f"{agent.job}: attempt {assignment.attempt} joined twice: {other}")
        script = self.script.get(agent.job, self.default)
        for peer in peers:
            assert peer.run is not None
            peer.join(peer.run)
            for fault in script.faults:
                if (fault.attempt, fault.worker) == (assignment.attempt, peer.worker):
                    self.later(fault.after, self._fail, peer, peer.run, fault)
            first = script.first_seconds if assignment.attempt == 1 else None
            self.later(script.seconds if first is None else first, self._finish, peer, peer.run)
        if self.on_joined is not None:
            self.on_joined(agent.job, assignment.attempt)

    def _finish(self, agent: Agent, run: Run) -> None:
        if agent.run is run:
            agent.end("Finished")

    def _fail(self, agent: Agent, run: Run, fault: Fail) -> None:
        if agent.run is run:
            agent.end("Failed", reason=fault.reason, exitCode=fault.code, error="RuntimeError: on purpose")

    def gone(self, agent: Agent, run: Run | None) -> None:
        """Handles a container's end: its ranks end too, and its peers notice."""
        if self.agents.get(agent.uid) is agent:
            del self.agents[agent.uid]
        if run is not None:
            run.stopped, run.state = time.monotonic(), "Killed"
            for peer in agent.peers():
                if peer.run is not None and peer.run.attempt == run.attempt:
                    able = self.script.get(agent.job, self.default).able
                    self.later(self.timings.continued if able else BROKEN_SECONDS, peer.lose_peer, peer.run)
        self.publish_worker(agent)

    # The operator's view

    def _agent(self, request: web.Request) -> Agent:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        agent = next((agent for agent in self.agents.values() if agent.ip == address and agent.alive), None)
        if agent is None or not self.reachable:
            raise web.HTTPServiceUnavailable()
        if request.headers.get(TOKEN_HEADER) != agent.token:
            raise web.HTTPUnauthorized()
        return agent

    async def _healthz(self, request: web.Request) -> web.Response:
        self._agent(request)
        return web.Response(text="ok")

    async def _assign(self, request: web.Request) -> web.Response:
        agent = self._agent(request)
        assignment = agent.read(await request.text())
        if assignment is None:
            return web.Response(status=400, text=self.refused[-1])
        if agent.assignment is not None and agent.assignment.attempt > assignment.attempt:
            return web.Response(status=409, text=json.dumps(agent.assignment.to_wire()))
        for peer in agent.peers():
            peer.take(assignment)
        return web.Response(status=204)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        agent = self._agent(request)
        upto = (await request.json())["seq"]
        for sequence, report in agent.kept.values():
            known = self.agents.get(report["uid"])
            if sequence <= upto and known is not None and report["state"] in ENDED:
                known.acknowledged = max(known.acknowledged, report["attempt"])
        return web.Response(status=204)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        agent = self._agent(request)
        response = web.StreamResponse()
        await response.prepare(request)
        is_leader = self.leader(agent) is agent
        workers = [peer.worker_line() for peer in (agent.peers() if is_leader else [agent])]
        attempt = agent.assignment.attempt if agent.assignment is not None else 0
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        hello = {"type": "hello", "leader": agent.worker, "uid": agent.uid, "attempt": attempt, "workers": workers}
        lines = [hello]
        if is_leader:
            for peer in agent.peers():
                if peer.report is not None:
                    agent.keep(peer.report)
            newest = max((key[0] for key in agent.kept), default=0)
            agent.kept = {key: value for key, value in agent.kept.items() if key[0] >= newest - 1}
            kept = sorted(agent.kept.values(), key=lambda entry: entry[0])
            lines += [{"type": "report", "seq": sequence, "report": report} for sequence, report in kept]
        agent.streams.add(queue)
        try:
            await response.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            while agent.alive and self.reachable:
                try:
                    line = await asyncio.wait_for(queue.get(), PING_SECONDS)
                except TimeoutError:
                    line = b'{"type":"ping"}\n'
                if line:
                    await response.write(line)
        except ConnectionError:
            pass
        finally:
            agent.streams.discard(queue)
            self._watched[agent.job_uid] = time.monotonic()
        return response

    def hang_up(self) -> None:
        """End all streams."""
        for agent in self.agents.values():
            for queue in agent.streams:
                queue.put_nowait(b"")

    def forget(self, job: str) -> None:
        """Forget a job's records."""
        self.record[:] = [run for run in self.record if run.job != job]
        self.script.pop(job, None)

    def runs(self, job: str) -> list[Run]:
        """Returns a job's runs, without the workers that never met."""
        return [replace(run) for run in self.record if run.job == job]
