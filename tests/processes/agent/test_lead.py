"""The lead's table alone, with more members than a test could start."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.signer import JOB_UID, environment
from tests.unit.agent.test_parsers import GOOD
from trainmaster.agent.loop import Loop
from trainmaster.agent.network import leader, workers
from trainmaster.agent.network.connection import MAX_LINE_BYTES, Connection, Pace, json_line
from trainmaster.agent.network.kept_lines import KeptLines
from trainmaster.agent.network.leader import MAX_MEMBER_PENDING_BYTES, Lead
from trainmaster.agent.network.workers import MAX_ARRIVING, MAX_OTHERS
from trainmaster.agent.settings import read_settings
from trainmaster.wire.assignment import Assignment


def test_a_large_jobs_hello_keeps_to_lines_that_a_reader_takes() -> None:
    loop = Loop()
    uid = "0123456789abcdef-0123456789abcdef-0123"
    settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_POD_UID": uid})
    table = Lead(loop, settings, lambda *_: None, lambda _: None, lambda: None, lambda *_: None)
    workers = list(range(400))
    names = [f"job-{worker}.job.ns.svc" for worker in workers]
    table.assignment_changed(received({**GOOD, "workers": workers, "hosts": names, "uids": None}))
    sockets = []
    for worker in workers[1:]:
        ours, theirs = tcp_pair()
        sockets.append(theirs)
        hello = json.dumps({"type": "hello", "job": JOB_UID, "worker": worker, "uid": uid, "seen": 3}) + "\n"
        table.join(Connection(loop, ours, lambda _: None, lambda: None), hello.encode())
    ours, theirs = tcp_pair()
    table.open_stream(Connection(loop, ours, lambda _: None, lambda: None))
    lines: list[dict[str, Any]] = []
    rest = b""
    while len(lines) < 1 + len(workers) - 256:
        loop.run_once(0.01)
        rest += theirs.recv(1_000_000)
        *complete, rest = rest.split(b"\n")
        assert all(len(line) < MAX_LINE_BYTES for line in complete)
        lines += [json.loads(line) for line in complete if line.startswith(b"{")]
    told = [member["worker"] for member in lines[0]["workers"]] + [line["worker"] for line in lines[1:]]
    assert sorted(told) == workers
    for sock in (*sockets, theirs):
        sock.close()


def received(data: dict[str, Any]) -> Assignment:
    """An assignment as it has come to an agent."""
    return Assignment.parse(data)._replace(signed=data)


class Alone:
    """A lead of worker 0 in this process, with members that are sockets of the test's."""

    def __init__(self) -> None:
        self.loop = Loop()
        settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_POD_UID": "uid-0"})
        self.lead = Lead(self.loop, settings, lambda *_: None, lambda _: None, lambda: None, lambda *_: None)
        self.sockets: list[socket.socket] = []

    def connection(self) -> tuple[Connection, socket.socket]:
        """One whose buffers in the kernel are small."""
        ours, theirs = tcp_pair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        theirs.setblocking(False)
        self.sockets.append(theirs)
        return Connection(self.loop, ours, lambda _: None, lambda: None), theirs

    def member(self, worker: int | None) -> tuple[Connection, socket.socket]:
        """One that joins; None: it doesn't say who it is."""
        connection, theirs = self.connection()
        hello = {"type": "hello", "job": JOB_UID, "worker": worker, "uid": f"uid-{worker}", "seen": 3}
        self.lead.join(connection, b"" if worker is None else json_line(hello))
        return connection, theirs


@pytest.fixture
def alone() -> Iterator[Alone]:
    made = Alone()
    yield made
    for sock in made.sockets:
        sock.close()


def test_what_members_never_read_is_kept_once_and_to_a_bound(alone: Alone) -> None:
    workers = list(range(500))
    large = {**GOOD, "workers": workers, "hosts": ["x" * 200] * 500, "master": "x" * 200, "uids": None}
    members = [alone.member(worker)[0] for worker in range(1, 30)]
    for attempt in range(4, 9):
        alone.lead.assignment_changed(received({**large, "attempt": attempt}))
    waiting = {id(piece): len(piece) for member in members for piece in member._pending}
    assert sum(waiting.values()) < 2 * MAX_MEMBER_PENDING_BYTES, "the assignments once, not for each member"
    assert not any(member.closed for member in members)
    for attempt in range(9, 20):
        alone.lead.assignment_changed(received({**large, "attempt": attempt}))
    assert all(member.closed for member in members)


def test_a_member_that_sends_without_end_is_read_at_its_pace(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "MEMBER_BYTES_PER_SECOND", 1e-6)
    taken: list[int] = []
    monkeypatch.setattr(alone.lead, "take_progress", lambda worker, line: taken.append(worker))
    alone.lead.assignment_changed(received(GOOD))
    connection, theirs = alone.member(1)
    line = json_line({"type": "progress", "attempt": 3, "at": 1.0, "ranks": {"1": {"step": 1}}})
    for _ in range(2_000):
        with contextlib.suppress(BlockingIOError):
            theirs.send(line * 100)
        alone.loop.run_once(0.0)
    assert 0 < len(taken) < leader.MEMBER_BURST_BYTES / Pace.LINE_BYTES + 65_536 / len(line)
    assert not connection.closed, "the rest waits with the sender"


def test_who_joins_says_soon_who_it_is(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [alone.member(None)[0] for _ in range(MAX_ARRIVING + 5)]
    assert [connection.closed for connection in silent] == [True] * 5 + [False] * MAX_ARRIVING
    known, _ = alone.member(1)
    monkeypatch.setattr(workers, "HELLO_SECONDS", -1.0)
    alone.lead._ping()
    assert all(connection.closed for connection in silent) and not known.closed


def test_members_that_the_job_doesnt_have_are_few(alone: Alone) -> None:
    alone.lead.assignment_changed(received(GOOD))
    others = [alone.member(worker)[0] for worker in range(1_000, 1_000 + MAX_OTHERS)]
    refused, _ = alone.member(5_000)
    assert refused.closed and not any(connection.closed for connection in others)
    assert not alone.member(1)[0].closed, "one that the assignment names"
    others[7].close()
    assert not alone.member(5_000)[0].closed
    assert len(alone.lead.state()) == MAX_OTHERS + 2


def test_what_is_kept_of_workers_lines_has_a_bound() -> None:
    kept = KeptLines(100)
    for worker in range(10):
        kept.keep(worker, 3, b"x" * 40)
    assert kept.all() == [b"x" * 40] * 2
    kept.keep(1, 3, b"y" * 61)
    assert kept.all() == [b"x" * 40], "neither the new one, which doesn't fit, nor the older one"
    kept.keep(1, 4, b"y" * 60)
    kept.forget(lambda worker, attempt: attempt >= 4)
    assert kept.all() == [b"y" * 60]


@pytest.mark.parametrize("at", ["Infinity", "NaN", "-1", "1e400", "true", '"now"', "9" * 400])
def test_a_time_that_is_none_is_passed_on_to_nobody(alone: Alone, at: str) -> None:
    alone.lead.assignment_changed(received(GOOD))
    _, theirs = alone.member(1)
    stream, operator = alone.connection()
    alone.lead.open_stream(stream)
    theirs.sendall(b'{"type":"progress","attempt":3,"ranks":{"1":{"step":1}},"at":%s}\n' % at.encode())
    theirs.sendall(b'{"type":"progress","attempt":3,"ranks":{"1":{"step":2}},"at":5.0}\n')
    text = b""
    while b'"step":2' not in text:
        alone.loop.run_once(0.01)
        with contextlib.suppress(BlockingIOError):
            text += operator.recv(65_536)
    assert b'"step":1' not in text


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=5)
        return listener.accept()[0], client
