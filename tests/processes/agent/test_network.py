"""An agent's connections run in this process: to a leader that misbehaves, from followers that never read or stop."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.signer import JOB_UID, TOKEN, environment
from trainmaster_operator.agent.connection import Pace, PeerConnection, json_line
from trainmaster_operator.agent.http import UPGRADED
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network import follower, network
from trainmaster_operator.agent.network.network import MAX_FOLLOWER_PENDING_BYTES, Network
from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import Ack, Joined
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import ProgressLine


class Alone:
    """Holds the connections of one agent, with its queue; the test makes each of its turns."""

    def __init__(self, worker: int, port: int = 8472) -> None:
        self.loop = Loop()
        environ = {"TRAINMASTER_WORKER": str(worker), "TRAINMASTER_AGENT_PORT": str(port)}
        settings = read_settings({**environment(), **environ, "TRAINMASTER_POD_UID": f"uid-{worker}"})
        self.network = Network(self.loop, settings, self.receive, {})
        self.received: list[Any] = []
        self.joined = False
        self.sockets: list[socket.socket] = []

    @staticmethod
    def now() -> Now:
        return Now(time.monotonic(), time.time())

    def assign(self, attempt: int = 3, uids: tuple[str, ...] | None = None, size: int = 0) -> None:
        hosts, signed = ("127.0.0.1", "127.0.0.1"), {"attempt": attempt, "text": "x" * size}
        assignment = Assignment(JOB_UID, attempt, (0, 1), uids, hosts, 28_000, signed=signed)
        self.network.assign(assignment, self.now())

    def receive(self, message: Any) -> None:
        """Keep what the planner would get."""
        if isinstance(message, LeaderJoined):
            self.joined = True
        else:
            self.received.append(message)

    def turn(self, seconds: float = 0.02) -> None:
        """Run one turn of the loop, and of the executor."""
        self.loop.run_once(max(0.0, min(seconds, self.network.deadline - time.monotonic())))
        self.network.tick(self.now())
        if self.joined:
            self.joined = False
            self.network.introduce([Joined(JOB_UID, 1, "uid-1", 0)])

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    @property
    def leader(self) -> int | None:
        return self.network.contact(self.now()).leader

    def follower(self, worker: int) -> tuple[PeerConnection, socket.socket]:
        """Returns a follower that has joined, and whose buffers in the kernel are small."""
        ours, theirs = tcp_pair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        theirs.setblocking(False)
        self.sockets.append(theirs)
        connection = PeerConnection(self.loop, ours)
        hello = json_line(Joined(JOB_UID, worker, f"uid-{worker}", 3).to_wire())
        self.network.upgraded(connection, True, hello)
        return connection, theirs


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=5)
        return listener.accept()[0], client


# A leader that misbehaves


class Listener:
    """Listens at a leader's port with no leader behind it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port = int(self.socket.getsockname()[1])
        self.made = Alone(1, self.port)

    def accept(self, answer: bytes) -> socket.socket:
        """Accepts the agent's next connection, and answers its request."""
        found: list[socket.socket] = []

        def came() -> bool:
            with contextlib.suppress(BlockingIOError):
                found.append(self.socket.accept()[0])
            return bool(found)

        self.made.until(came)
        peer = found[0]
        peer.setblocking(False)
        request = self.read(peer)
        assert request.startswith(b"GET /v1/join HTTP/1.1\r\n")
        assert f"Trainmaster-Token: {TOKEN}\r\n".encode() in request
        peer.sendall(answer)
        return peer

    def read(self, peer: socket.socket) -> bytes:
        """Returns what the agent sends next; empty if it closes."""
        found: list[bytes] = []

        def came() -> bool:
            with contextlib.suppress(BlockingIOError):
                found.append(peer.recv(65_536))
            return bool(found)

        self.made.until(came)
        return found[0]


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    with closing(made.socket):
        made.made.assign()
        yield made


def test_a_connection_ends_when_its_other_side_confirms_nothing(listener: Listener) -> None:
    """Across a broken network the kernel would resend for a quarter of an hour, and send no probes meanwhile."""
    with socket.create_connection(listener.socket.getsockname()) as here:
        PeerConnection(Loop(), here)
        assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_it_says_who_it_is_before_anything_else(listener: Listener) -> None:
    peer = listener.accept(UPGRADED)
    listener.made.assign(4)
    hello = json.loads(listener.read(peer).splitlines()[0])
    assert (hello["type"], hello["uid"]) == ("hello", "uid-1")
    peer.close()


def test_a_leader_that_falls_silent_is_left(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "SILENCE_SECONDS", 0.3)
    peer = listener.accept(UPGRADED + b'{"type":"watched","value":true}\n')
    made = listener.made
    made.until(lambda: made.leader == 0 and made.network.contact(made.now()).watched)
    assert made.network.contact(made.now()).master.reached
    # The machine behind it is gone silently: nothing comes any more, not even a reset.
    listener.socket.close()
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + follower.PING_SECONDS)
    made.until(lambda: made.leader == 1)
    peer.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 401 Unauthorized\r\n\r\n", b"SSH-2.0-x\r\n" + b"y" * 5_000, b""])
def test_something_else_on_the_port_is_passed_over(listener: Listener, answer: bytes) -> None:
    peer = listener.accept(answer)
    if not answer:
        peer.close()
    made = listener.made
    made.until(lambda: made.leader == 1)
    assert made.network.contact(made.now()).master.resolved
    peer.close()


def test_nonsense_from_the_leader_is_passed_over(listener: Listener) -> None:
    made = listener.made
    peer = listener.accept(UPGRADED)
    peer.sendall(b'nonsense\n[1]\n\xff\n{"type":"ping"}\n{"type":"ack","attempt":3}\n')
    made.until(lambda: bool(made.received))
    assert made.received == [Ack(3)]
    with contextlib.suppress(BlockingIOError):
        peer.sendall(b"x" * 300_000)
    made.until(lambda: made.leader == 1)
    peer.close()


def test_a_leader_whose_worker_has_a_new_pod_is_left_for_that_pod(listener: Listener) -> None:
    made = listener.made
    watched = UPGRADED + b'{"type":"watched","value":true,"uid":"%s"}\n'
    old = listener.accept(watched % b"a")
    made.until(lambda: made.network.contact(made.now()).watched and made.leader == 0)
    made.assign(9, ("new", "mine"))
    assert made.leader is None
    # The name still resolves to the old pod, so the agent leaves it again, and retries after a while.
    stale = listener.accept(watched % b"a")
    new = listener.accept(watched % b"new")
    made.until(lambda: made.leader == 0 and made.network.contact(made.now()).watched)
    for peer in (old, stale):
        while listener.read(peer):
            pass
    for peer in (old, stale, new):
        peer.close()


# Followers that never read, or never stop


@pytest.fixture
def alone() -> Iterator[Alone]:
    made = Alone(0)
    made.assign()
    yield made
    for sock in made.sockets:
        sock.close()


def test_what_followers_never_read_is_kept_once_and_to_a_bound(alone: Alone) -> None:
    followers = [alone.follower(worker)[0] for worker in range(1, 30)]
    for attempt in range(4, 9):
        alone.assign(attempt, size=100_000)
    waiting = {id(piece): len(piece) for connection in followers for piece in connection._pending}
    assert sum(waiting.values()) < 2 * MAX_FOLLOWER_PENDING_BYTES, "the assignments once, not for each follower"
    assert not any(connection.closed for connection in followers)
    for attempt in range(9, 20):
        alone.assign(attempt, size=100_000)
    assert all(connection.closed for connection in followers)
    alone.turn()
    assert [line.worker for line in alone.network.leader.workers() if line.connected] == [0]


def test_a_follower_that_sends_without_end_is_read_at_its_pace(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FOLLOWER_BYTES_PER_SECOND", 1e-6)
    taken: list[int] = []
    receive = alone.network.leader.receive_line
    monkeypatch.setattr(alone.network.leader, "receive_line", lambda *given: taken.append(given[0]) or receive(*given))
    connection, theirs = alone.follower(1)
    line = json_line({"type": "progress", "attempt": 3, "at": 1.0, "ranks": {"1": {"step": 1}}})
    for _ in range(2_000):
        with contextlib.suppress(BlockingIOError):
            theirs.send(line * 100)
        alone.turn(0.0)
    assert 0 < len(taken) < network.FOLLOWER_BURST_BYTES / Pace.LINE_BYTES + 65_536 / len(line)
    assert not connection.closed, "the rest waits with the sender"


def test_the_progress_of_many_ranks_goes_out_in_several_lines(alone: Alone) -> None:
    ours, theirs = tcp_pair()
    alone.sockets.append(theirs)
    alone.network.upgraded(PeerConnection(alone.loop, ours), False, b"")
    ranks = {rank: RankProgress(step=1) for rank in range(300)}
    alone.network.publish(ProgressLine(3, 0, ranks, 1.0), alone.now())
    text = b""
    while text.count(b'"type":"progress"') < 3:
        alone.turn(0.0)
        text += theirs.recv(65_536)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith(b'{"type":"progress"')]
    assert [(len(line["ranks"]), line.get("more", False)) for line in lines] == [(128, True), (128, True), (44, False)]


def test_a_follower_whose_lines_have_no_end_is_left(alone: Alone) -> None:
    connection, theirs = alone.follower(1)
    theirs.setblocking(True)
    theirs.settimeout(0.01)
    for _ in range(20):
        with contextlib.suppress(OSError):
            theirs.send(b"x" * 10_000)
        alone.turn(0.0)
    assert connection.closed
    assert [line.worker for line in alone.network.leader.workers() if line.connected] == [0]
