"""The operator follows a job's lead: hears all it says, whoever leads, and believes nothing that isn't the job's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.leaders.recorded_events import RecordedEvents
from tests.unit.controller.polling import until
from trainmaster.api.v1alpha1 import JobStatus
from trainmaster.controller.apiserver import pod_http
from trainmaster.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster.controller.apiserver.errors import Unreachable
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.controller.leaders.reach import AgentAddress, DirectReach
from trainmaster.controller.leaders.streams import LeaderStreams
from trainmaster.controller.leaders.targets import StreamTarget, stream_target
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.lines import LineBuffer
from trainmaster.wire.names import TOKEN_HEADER
from trainmaster.wire.stream import parse_line

KEY = JobKey(b.NAMESPACE, "bert")


@dataclass
class Lead:
    """An agent's port: sends `lines`, then whatever `say` gives it."""

    worker: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    pushed: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    opened: int = 0
    newer: bool = False
    silent: bool = False
    _streams: list[asyncio.Queue[bytes | None]] = field(default_factory=list)

    def say(self, line: dict[str, Any] | bytes) -> None:
        for stream in self._streams:
            stream.put_nowait(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def hang_up(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    def hello(self) -> dict[str, Any]:
        members = [{"worker": n, "uid": f"pod-bert-{n}", "seen": 1, "connected": True} for n in (0, 1, 99)]
        return {
            "type": "hello",
            "leader": self.worker,
            "uid": f"pod-bert-{self.worker}",
            "attempt": 1,
            "workers": members,
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
            while (said := await queue.get()) is not None:
                await response.write(said)
        finally:
            self.open -= 1
            self._streams.remove(queue)
        return response


@asynccontextmanager
async def listening(*leads: Lead) -> AsyncIterator[int]:
    """Leads on 127.0.0.1, 127.0.0.2, ... at one port, as pods have it."""
    runners, port = [], 0
    for number, lead in enumerate(leads, 1):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", lead.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, f"127.0.0.{number}", port).start()
        port = runner.addresses[0][1]
        runners.append(runner)
    try:
        yield port
    finally:
        for lead in leads:
            lead.hang_up()
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
            DirectReach(port),
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
        await made.streams._reach.close()


def report(worker: int = 0, state: str = "Failed", attempt: int = 1, **fields: Any) -> dict[str, Any]:
    return {"attempt": attempt, "worker": worker, "uid": f"pod-bert-{worker}", "state": state, "at": 1.0, **fields}


async def test_everything_a_lead_says_reaches_the_store_and_is_acknowledged() -> None:
    lead = Lead(lines=[{"type": "report", "seq": 3, "report": report(1, exitCode=9)}])
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: bool(lead.acked))
        observed = w.snapshot().observed
        assert [(r.worker, r.exit_code) for r in observed.reports] == [(1, 9)]
        assert [member.worker for member in observed.stream.workers] == [0, 1], (
            "a worker that isn't the job's is no member"
        )
        assert lead.acked == [3]
        assert w.streams.open == 1
        lead.say({"type": "worker", "worker": 1, "uid": "pod-bert-1", "seen": 2, "connected": False})
        lead.say({"type": "progress", "attempt": 1, "worker": 0, "ranks": {"0": {"step": 7, "loss": 0.5}}})
        await until(lambda: bool(w.events.progress))
        observed = w.snapshot().observed
        assert {m.worker: (m.seen, m.connected) for m in observed.stream.workers} == {0: (1, True), 1: (2, False)}
        assert observed.progress[0][0].step == 7
        assert w.events.progress == [True]


async def test_a_broken_stream_is_opened_again_at_once_and_says_everything_again() -> None:
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        lead.lines.append({"type": "report", "seq": 1, "report": report()})
        lead.hang_up()
        await until(lambda: bool(w.snapshot().observed.reports))
        assert w.connected_to() == 0


async def test_when_the_lead_is_lost_the_next_worker_is_followed_and_the_lead_again_when_it_is_back() -> None:
    first, second = Lead(0), Lead(1)
    async with listening(second) as port:
        # Nobody listens at 127.0.0.3; the second worker's agent is at 127.0.0.1.
        async with world(port) as w:
            gone = address(0, "127.0.0.3")
            w.streams.watch(KEY, target(gone, address(1, "127.0.0.1")))
            await until(lambda: w.connected_to() == 1)
        assert first.open == 0
        async with listening_at("127.0.0.3", port, first), world(port) as w:
            w.streams.watch(KEY, target(address(1, "127.0.0.1")))
            await until(lambda: w.connected_to() == 1)
            w.streams.watch(KEY, target(gone, address(1, "127.0.0.1")))
            await until(lambda: w.connected_to() == 0)


async def test_a_lead_that_takes_the_connection_and_says_nothing_is_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a stopped process does: it isn't tried again and again, for fifteen seconds each, before the next one is."""
    monkeypatch.setattr(pod_http, "HEAD_SECONDS", 1.0)
    tried: list[str] = []
    first, second = Lead(0, silent=True), Lead(1)
    async with listening(first, second) as port, world(port) as w:
        opening = w.streams._reach.open

        def noted(method: Any, agent: AgentAddress, path: str, *rest: Any) -> Any:
            tried.append(f"{path} {agent.worker}")
            return opening(method, agent, path, *rest)

        monkeypatch.setattr(w.streams._reach, "open", noted)
        w.streams.watch(KEY, target(address(0), address(1)))
        await until(lambda: w.connected_to() == 1)
        assert tried == ["/v1/stream 0", "/v1/stream 1"]


@asynccontextmanager
async def listening_at(ip: str, port: int, lead: Lead) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lead.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, ip, port).start()
    try:
        yield
    finally:
        lead.hang_up()
        await runner.cleanup()


async def test_a_replaced_lead_is_left_and_the_new_pod_is_followed() -> None:
    old, new = Lead(0), Lead(0)
    async with listening(old, new) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0, "127.0.0.1")))
        await until(lambda: old.open == 1)
        replaced = AgentAddress(b.NAMESPACE, "bert-0", "another", 0, "127.0.0.2")
        w.streams.watch(KEY, target(replaced))
        await until(lambda: new.open == 1 and old.open == 0)


async def test_an_assignment_is_pushed_to_the_lead_and_a_lead_that_knows_better_refuses_it() -> None:
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        w.streams.push(KEY, b.assignment(1))
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        w.streams.push(KEY, b.assignment(2))
        await until(lambda: bool(lead.pushed))
        lead.newer = True
        w.streams.push(KEY, b.assignment(2))
        await until(lambda: len(lead.pushed) == 2)
        assert [pushed["attempt"] for pushed in lead.pushed] == [2, 2], "without a stream there is nobody to push to"
        await until(lambda: lead.open == 1)


async def test_reports_of_strangers_and_of_attempts_that_were_never_made_are_not_believed() -> None:
    lead = Lead(
        lines=[
            {"type": "report", "seq": 1, "report": report(7)},
            {"type": "report", "seq": 2, "report": report(0, attempt=40)},
            {"type": "report", "seq": 3, "report": report(1)},
        ]
    )
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: bool(w.snapshot().observed.reports))
        assert [r.worker for r in w.snapshot().observed.reports] == [1]


class Failing:
    """A reach whose streams are open until `fail`, and say nothing."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.over = asyncio.Event()

    @asynccontextmanager
    async def open(self, method: str, agent: AgentAddress, path: str, token: str, body: bytes | None = None) -> Any:
        self.opened.append(agent.worker)
        await self.over.wait()
        raise Unreachable("GET", "no route")
        yield

    async def close(self) -> None:
        self.over.set()


@pytest.mark.parametrize("ticks", range(-6, 7))
async def test_news_at_the_moment_when_a_stream_breaks_dont_keep_the_next_one_from_being_opened(ticks: int) -> None:
    reach = Failing()
    streams = LeaderStreams(reach, Store(lambda key: None, KEYS), KEYS, RecordedEvents())
    streams.watch(KEY, target(address(1)))
    await until(lambda: reach.opened == [1])
    # Worker 0 is there now, and would be preferred once it answers.
    streams.watch(KEY, target(address(0), address(1)))
    await asyncio.sleep(0.01)
    for tick in range(-6, 7):
        if tick == 0:
            reach.over.set()
        if tick == ticks:
            streams.watch(KEY, target(address(0, "127.0.0.9"), address(1)))
        await asyncio.sleep(0)
    await until(lambda: len(reach.opened) > 1)
    await streams.close()


async def test_agents_of_an_earlier_job_of_the_same_name_tell_nothing_of_this_one() -> None:
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        # Deleted, and created anew, before any pass: the stream is still that of the old one's pods, which now stop.
        again = b.job(uid="22222222-2222-2222-2222-222222222222")
        w.store.upsert(JOBS, {**again, "metadata": {**again["metadata"], "resourceVersion": "9"}})
        lead.say({"type": "report", "seq": 1, "report": report(1, "Stopped")})
        await until(lambda: bool(lead.acked))
        assert w.snapshot().observed.reports == ()


async def test_an_attempt_that_ends_before_the_pass_that_opens_it_is_not_missed() -> None:
    """Its reports are acknowledged, so they would never be told again."""
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: lead.open == 1)
        w.streams.expect(KEY, 2)
        lead.say({"type": "report", "seq": 1, "report": report(1, attempt=2)})
        await until(lambda: lead.acked == [1])
        assert [r.attempt for r in w.snapshot().observed.reports] == [2]


async def test_a_report_from_before_its_attempt_is_known_is_heard_again() -> None:
    """Another operator may have opened it; the lead has been told that all is well with what it said."""
    early = {"type": "report", "seq": 1, "report": report(1, attempt=2)}
    lead = Lead(lines=[early])
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: lead.acked == [1])
        assert w.snapshot().observed.reports == ()
        w.streams.watch(KEY, target(address(0), attempt=2))
        await until(lambda: bool(w.snapshot().observed.reports))


@pytest.mark.parametrize("nonsense", [b"not json\n", b'{"type":"report","seq":"x"}\n', b"x" * 70_000, b'["hello"]\n'])
async def test_what_does_not_fit_the_protocol_ends_the_connection_and_nothing_else(nonsense: bytes) -> None:
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        lead.say(nonsense)
        await until(lambda: lead.opened == 2)
        await until(lambda: w.connected_to() == 0)


async def test_a_job_that_needs_no_stream_any_more_leaves_no_task_behind() -> None:
    lead = Lead()
    async with listening(lead) as port, world(port) as w:
        before = len(asyncio.all_tasks())
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: lead.open == 1)
        w.streams.watch(KEY, None)
        await until(lambda: lead.open == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert w.connected_to() is None


def planned(status: JobStatus, *pods: dict[str, Any]) -> StreamTarget | None:
    store = Store(lambda _: None, KEYS)
    raws = [(JOBS, b.job()), (STATEFUL_SETS, b.child("StatefulSet")), *((PODS, pod) for pod in pods)]
    for number, (resource, raw) in enumerate(raws):
        store.upsert(resource, {**raw, "metadata": {"uid": f"u{number}", **raw["metadata"], "resourceVersion": "1"}})
    snapshot = store.snapshot(KEY)
    assert snapshot is not None
    return stream_target(snapshot, status)


def test_only_agents_that_run_are_followed_in_rank_order() -> None:
    assigned = b.assignment(2, workers=(1, 0, 2))
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    found = planned(
        JobStatus(phase="Running", attempt=2),
        b.pod(0, assigned=b.assignment(1)),
        b.pod(1, assigned=assigned),
        b.pod(2, containerStatuses=[waiting]),
    )
    assert found is not None
    assert [agent.worker for agent in found.candidates] == [1, 0]
    assert found.attempt == 2


def test_a_worker_without_a_pod_is_heard() -> None:
    """Its next pod may have joined, and finished, before the pass that opened the attempt has planned anew."""
    found = planned(JobStatus(phase="Restarting", attempt=1), b.pod(0, assigned=b.assignment(1, workers=(0,))))
    assert found is not None
    assert found.workers == {0, 1}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Suspended"])
def test_a_job_that_does_not_train_is_not_followed(phase: Any) -> None:
    assert planned(JobStatus(phase=phase, attempt=1), b.pod(0, assigned=b.assignment(1))) is None


def test_lines_are_cut_where_they_end_however_the_bytes_come() -> None:
    buffer = LineBuffer()
    text = b'{"type":"ping"}\n{"type":"ping"}\n'
    lines = [line for byte in text for line in buffer.feed(bytes([byte]))]
    assert lines == [b'{"type":"ping"}'] * 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"[" * 20_000, "not JSON: b'[["),
        (
            b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":%s}' % (b"[" * 900 + b"]" * 900),
            "hello.workers: ",
        ),
        (b'{"type":"worker","worker":%s}' % (b'{"a":' * 980 + b"0" + b"}" * 980), ""),
        (
            b'{"type":"worker","worker":%s,"uid":"u","seen":1}' % (b"9" * 4_000),
            "worker: a number of more than 20 digits",
        ),
        (b'{"type":"ping","at":%s}' % (b"9" * 60_000), "not JSON: "),
        (b'{"type":["ping"]}', "type: a list of 1 items is not a text"),
        (b"{}", "type: null is not a text"),
        (b"\xff\xfe\x00", "not JSON: "),
        (b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":7}', "hello.workers: 7 is not a list"),
        (
            b'{"type":"hello","leader":0,"uid":"u","attempt":1,"workers":[%s0]}' % (b"0," * 10_000),
            "hello.workers: a list of 10001 items is not a list of at most 1024 workers",
        ),
        (b'{"type":"progress","attempt":1,"worker":0,"ranks":{"-1":{}}}', "progress.ranks: '-1' is not a rank"),
        (
            b'{"type":"progress","attempt":1,"worker":0,"ranks":{"0":{"loss":"NaN"}}}',
            "loss: 'NaN' is not a finite number",
        ),
        (
            b'{"type":"progress","attempt":1,"worker":0,"ranks":{"0":{"loss":1e999}}}',
            "loss: inf is not a finite number",
        ),
        (b'{"type":"evidence","attempt":1,"worker":0,"ranks":"all"}', "evidence.ranks: 'all' is not an object"),
        (b'{"type":"evidence","attempt":1,"worker":0,"ranks":{"3":7}}', "evidence.ranks: 7 is not an object"),
        (b'{"type":"worker","worker":true,"uid":"u","seen":1}', "worker: True is not a whole number"),
        (
            b'{"type":"report","seq":1,"report":{"attempt":1,"worker":0,"state":"Winning"}}',
            "report.state: 'Winning' is none of",
        ),
    ],
)
def test_hostile_lines_are_refused_with_what_is_wrong_in_them(line: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=f"^{re.escape(sentence)}"):
        parse_line(line)
