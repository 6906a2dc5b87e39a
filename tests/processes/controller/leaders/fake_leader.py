"""Agents' ports play a job's leader, and a store watches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.leaders.recorded_events import RecordedEvents
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders.streams import LeaderStreams
from trainmaster_operator.controller.leaders.targets import AgentAddress, Reach, StreamTarget
from trainmaster_operator.wire.names import TOKEN_HEADER

KEY = JobKey(b.NAMESPACE, "bert")


@dataclass
class FakeLeader:
    """Plays an agent's port: sends `lines`, then whatever `send` gives it."""

    worker: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    pushed: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    opened: int = 0
    newer: bool = False
    silent: bool = False
    _streams: list[asyncio.Queue[bytes | None]] = field(default_factory=list)

    def send(self, line: dict[str, Any] | bytes) -> None:
        for stream in self._streams:
            stream.put_nowait(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    def hello(self) -> dict[str, Any]:
        workers = [{"worker": n, "uid": f"pod-bert-{n}", "seen": 1, "connected": True} for n in (0, 1, 99)]
        return {
            "type": "hello",
            "leader": self.worker,
            "uid": f"pod-bert-{self.worker}",
            "attempt": 1,
            "workers": workers,
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            await asyncio.sleep(3600)
        if request.path == "/healthz":
            return web.Response(text="ok")
        if request.headers.get(TOKEN_HEADER) != KEYS.job_token(b.NAMESPACE, b.JOB_UID):
            return web.Response(status=401)
        if request.path == "/v1/ack":
            self.acked.append((await request.json())["seq"])
            return web.Response(status=204)
        if request.path == "/v1/assignment":
            self.pushed.append(await request.json())
            return web.Response(status=409 if self.newer else 204)
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.append(queue)
        self.open += 1
        self.opened += 1
        try:
            for line in (self.hello(), *self.lines):
                await response.write(json.dumps(line).encode() + b"\n")
            while (sent := await queue.get()) is not None:
                await response.write(sent)
        finally:
            self.open -= 1
            self._streams.remove(queue)
        return response


@asynccontextmanager
async def serving(*leaders: FakeLeader) -> AsyncIterator[int]:
    """Serves leaders on 127.0.0.1, 127.0.0.2, ... at one port, as pods do."""
    runners, port = [], 0
    for number, leader in enumerate(leaders, 1):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", leader.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, f"127.0.0.{number}", port).start()
        port = runner.addresses[0][1]
        runners.append(runner)
    try:
        yield port
    finally:
        for leader in leaders:
            leader.end_streams()
        for runner in runners:
            await runner.cleanup()


def address(worker: int, ip: str | None = None) -> AgentAddress:
    return AgentAddress(b.NAMESPACE, f"bert-{worker}", f"pod-bert-{worker}", worker, ip or f"127.0.0.{worker + 1}")


def target(*candidates: AgentAddress, attempt: int = 1) -> StreamTarget:
    ranks = {0: range(1), 1: range(1, 2)}
    return StreamTarget(KEY, b.JOB_UID, attempt, candidates, {0: 1, 1: 1}, assigned=attempt, ranks=ranks)


class World:
    def __init__(self, port: int) -> None:
        self.changes: list[JobKey] = []
        self.events = RecordedEvents()
        self.store = Store(self.changes.append, KEYS)
        self.store.upsert(JOBS, {**b.job(), "metadata": {**b.job()["metadata"], "resourceVersion": "1"}})
        self.streams = LeaderStreams(
            Reach(port),
            self.store,
            KEYS,
            self.events,
            now=lambda: 50.0,
        )

    def snapshot(self) -> Snapshot:
        found = self.store.snapshot(KEY)
        assert found is not None
        return found

    def connected_to(self) -> int | None:
        view = self.snapshot().observed.stream
        return view.leader if view.connected else None


@asynccontextmanager
async def world(port: int) -> AsyncIterator[World]:
    made = World(port)
    try:
        yield made
    finally:
        await made.streams.close()
        await made.streams.reach.close()


def report(worker: int = 0, state: str = "Failed", attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return {"attempt": attempt, "worker": worker, "uid": f"pod-bert-{worker}", "state": state, "at": 1.0, **fields}
