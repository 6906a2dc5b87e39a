"""`leaders.stream` and `leaders.streams`: the operator watches a job's leader, whichever agent leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.processes.controller.leaders.fake_leader import (
    KEY,
    FakeLeader,
    address,
    report,
    serving,
    target,
    world,
)
from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.leaders.recorded_events import RecordedEvents
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver import pod_http
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.apiserver.errors import Unreachable
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.leaders import streams
from trainmaster_operator.controller.leaders.streams import LeaderStreams
from trainmaster_operator.controller.leaders.targets import AgentAddress


async def test_everything_that_a_leader_sends_reaches_the_store_and_is_acknowledged() -> None:
    leader = FakeLeader(lines=[{"type": "report", "seq": 3, "report": report(1, exitCode=9)}])
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: bool(leader.acked))
        observed = w.snapshot().observed
        assert [(r.worker, r.exit_code) for r in observed.reports] == [(1, 9)]
        assert [worker.worker for worker in observed.stream.workers] == [0, 1], (
            "a worker that isn't the job's is left out"
        )
        assert leader.acked == [3]
        assert w.streams.open == 1
        leader.send({"type": "worker", "worker": 1, "uid": "pod-bert-1", "seen": 2, "connected": False})
        leader.send({"type": "progress", "attempt": 1, "worker": 0, "ranks": {"0": {"step": 7, "loss": 0.5}}})
        await until(lambda: bool(w.events.progress))
        observed = w.snapshot().observed
        assert {m.worker: (m.seen, m.connected) for m in observed.stream.workers} == {0: (1, True), 1: (2, False)}
        assert observed.progress[0][0].step == 7
        assert w.events.progress == [True]
        assert observed.stream.left.keys() == {1}, "since then"
        leader.send({"type": "worker", "worker": 1, "uid": "pod-bert-1", "seen": 2, "connected": True})
        await until(lambda: not w.snapshot().observed.stream.left)


async def test_a_broken_stream_is_opened_again_at_once_and_everything_is_sent_again() -> None:
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        leader.lines.append({"type": "report", "seq": 1, "report": report()})
        leader.end_streams()
        await until(lambda: bool(w.snapshot().observed.reports))
        assert w.connected_to() == 0


async def test_when_the_leader_is_lost_the_next_worker_is_watched_and_the_leader_again_when_it_is_back() -> None:
    first, second = FakeLeader(0), FakeLeader(1)
    async with serving(second) as port:
        # No agent listens at 127.0.0.3; the second worker's agent is at 127.0.0.1.
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


async def test_a_leader_that_accepts_the_connection_and_sends_nothing_is_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped process does that; it must not be tried repeatedly, for fifteen seconds each, before the next
    agent is.
    """
    monkeypatch.setattr(pod_http, "HEAD_SECONDS", 1.0)
    tried: list[str] = []
    first, second = FakeLeader(0, silent=True), FakeLeader(1)
    async with serving(first, second) as port, world(port) as w:
        opening = w.streams.reach.open

        def recorded(method: Any, agent: AgentAddress, path: str, *rest: Any) -> Any:
            tried.append(f"{path} {agent.worker}")
            return opening(method, agent, path, *rest)

        monkeypatch.setattr(w.streams.reach, "open", recorded)
        w.streams.watch(KEY, target(address(0), address(1)))
        await until(lambda: w.connected_to() == 1)
        assert tried == ["/v1/stream 0", "/v1/stream 1"]


@asynccontextmanager
async def listening_at(ip: str, port: int, leader: FakeLeader) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", leader.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, ip, port).start()
    try:
        yield
    finally:
        leader.end_streams()
        await runner.cleanup()


async def test_a_replaced_leader_is_left_and_the_new_pod_is_watched() -> None:
    old, new = FakeLeader(0), FakeLeader(0)
    async with serving(old, new) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0, "127.0.0.1")))
        await until(lambda: old.open == 1)
        replaced = AgentAddress(b.NAMESPACE, "bert-0", "another", 0, "127.0.0.2")
        w.streams.watch(KEY, target(replaced))
        await until(lambda: new.open == 1 and old.open == 0)


async def test_an_assignment_is_pushed_to_the_leader_and_a_leader_with_a_newer_one_refuses_it() -> None:
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        await w.streams.push(KEY, b.assignment(1))
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        await w.streams.push(KEY, b.assignment(2))
        await until(lambda: bool(leader.pushed))
        leader.newer = True
        await w.streams.push(KEY, b.assignment(2))
        await until(lambda: len(leader.pushed) == 2)
        assert [pushed["attempt"] for pushed in leader.pushed] == [2, 2], "without a stream there is nobody to push to"
        await until(lambda: leader.open == 1)


async def test_where_the_leader_has_just_been_lost_all_others_are_pushed_to_before_one_of_them_leads() -> None:
    lost, others = FakeLeader(0), [FakeLeader(1), FakeLeader(2)]
    async with serving(lost, *others) as port, world(port) as w:
        left = [
            AgentAddress(b.NAMESPACE, f"bert-{each}", f"uid-{each}", each, f"127.0.0.{each + 1}") for each in (1, 2)
        ]
        w.streams.watch(KEY, target(address(0, "127.0.0.1"), *left))
        await until(lambda: w.connected_to() == 0)
        w.streams.watch(KEY, target(*left, attempt=2))
        await w.streams.push(KEY, b.assignment(2))
        assert [[pushed["attempt"] for pushed in other.pushed] for other in others] == [[2], [2]] and not lost.pushed


async def test_a_leader_that_keeps_a_push_waiting_is_named_with_the_seconds_that_it_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "REQUEST_SECONDS", 0.2)
    caplog.set_level(logging.INFO, streams.__name__)
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        leader.silent = True
        await w.streams.push(KEY, b.assignment(2))
        message = f"{KEY}: attempt 2 wasn't pushed: POST bert-0/v1/assignment: no answer within 0.2 s"
        await until(lambda: message in caplog.messages)


async def test_reports_of_foreign_workers_and_of_attempts_that_were_never_made_are_ignored() -> None:
    leader = FakeLeader(
        lines=[
            {"type": "report", "seq": 1, "report": report(7)},
            {"type": "report", "seq": 2, "report": report(0, attempt=40)},
            {"type": "report", "seq": 3, "report": report(1)},
        ]
    )
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: bool(w.snapshot().observed.reports))
        assert [r.worker for r in w.snapshot().observed.reports] == [1]


class Failing:
    """Opens streams that stay open and silent until `fail`."""

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


async def test_agents_of_an_earlier_job_of_the_same_name_report_nothing_on_this_one() -> None:
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        # The job was deleted and recreated before any pass: the stream is still to the old job's pods, which now stop.
        again = b.job(uid="22222222-2222-2222-2222-222222222222")
        w.store.upsert(JOBS, {**again, "metadata": {**again["metadata"], "resourceVersion": "9"}})
        leader.send({"type": "report", "seq": 1, "report": report(1, "Stopped")})
        await until(lambda: bool(leader.acked))
        assert w.snapshot().observed.reports == ()


async def test_an_attempt_that_ends_before_the_pass_that_opens_it_is_not_missed() -> None:
    """Its reports are acknowledged, so they would never be sent again."""
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: leader.open == 1)
        w.streams.watch(KEY, target(address(0), attempt=2))
        leader.send({"type": "report", "seq": 1, "report": report(1, attempt=2)})
        await until(lambda: leader.acked == [1])
        assert [r.attempt for r in w.snapshot().observed.reports] == [2]


async def test_a_report_from_before_its_attempt_is_known_is_received_again() -> None:
    """Another operator may have started it; the leader's reports have been acknowledged."""
    early = {"type": "report", "seq": 1, "report": report(1, attempt=2)}
    leader = FakeLeader(lines=[early])
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: leader.acked == [1])
        assert w.snapshot().observed.reports == ()
        w.streams.watch(KEY, target(address(0), attempt=2))
        await until(lambda: bool(w.snapshot().observed.reports))


@pytest.mark.parametrize("nonsense", [b"not json\n", b'{"type":"report","seq":"x"}\n', b"x" * 70_000, b'["hello"]\n'])
async def test_what_does_not_fit_the_protocol_ends_the_connection_and_nothing_else(nonsense: bytes) -> None:
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: w.connected_to() == 0)
        leader.send(nonsense)
        await until(lambda: leader.opened == 2)
        await until(lambda: w.connected_to() == 0)


async def test_a_job_that_needs_no_stream_any_more_leaves_no_task_behind() -> None:
    leader = FakeLeader()
    async with serving(leader) as port, world(port) as w:
        before = len(asyncio.all_tasks())
        w.streams.watch(KEY, target(address(0)))
        await until(lambda: leader.open == 1)
        w.streams.watch(KEY, None)
        await until(lambda: leader.open == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert w.connected_to() is None
