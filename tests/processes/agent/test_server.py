"""Connections without the token cost the agents' port little, and block neither the kubelet nor the operator."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3

from tests.signer import TOKEN, environment
from trainmaster_operator.agent import http
from trainmaster_operator.agent.authority import Authority
from trainmaster_operator.agent.connection import PeerConnection
from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.network import server
from trainmaster_operator.agent.network.network import Network
from trainmaster_operator.agent.network.server import METRICS_TYPE, json_of, to_replace
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES
from trainmaster_operator.wire.values import ProtocolError

from .agents import AGENT, Agent, Job, free_port, until

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
STATE = b"GET /v1/state HTTP/1.1\r\nTrainmaster-Token: " + TOKEN.encode() + b"\r\n\r\n"


@contextlib.contextmanager
def connections(agent: Agent, addresses: list[str]) -> Iterator[list[socket.socket]]:
    """Returns a connection from each address, all open at once."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((agent.address, agent.job.agent_port), 10, (address, 0)))
            for address in addresses
        ]


def is_open(sock: socket.socket) -> bool:
    """Returns whether the agent still keeps the connection open."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def addresses(count: int) -> list[str]:
    return [f"127.77.{number // 250}.{number % 250 + 1}" for number in range(count)]


@pytest.mark.parametrize(
    ("sources", "held"),
    [
        (["127.77.0.1"] * 400, server.MAX_OF_ADDRESS),
        (["127.0.0.1"] * 400, server.MAX_OF_ADDRESS),
        (addresses(400), server.MAX_UNAUTHENTICATED),
    ],
    ids=["one-address", "the-address-of-the-kubelet-and-the-operator", "many-addresses"],
)
def test_a_peer_that_holds_connections_keeps_nobody_out(job: Job, sources: list[str], held: int) -> None:
    agent = job.agent(0).start("sleep", "300")
    job.annotate(job.assignment(1))
    agent.until_state("Running")
    with connections(agent, sources) as silent:
        assert agent.request("GET", "/healthz", token=None) == (200, "ok"), "the kubelet's probe"
        assert agent.request("GET", "/v1/state")[0] == 200, "the operator"
        until(lambda: sum(map(is_open, silent)) <= held, what="the oldest are closed")


def test_a_flood_that_takes_all_descriptors_stops_neither_the_port_nor_the_ranks(job: Job) -> None:
    limited = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *AGENT]
    agent = job.agent(0).start("sleep", "300", agent=limited)
    agent.until_healthy()
    with connections(agent, addresses(200)):
        assert agent.request("GET", "/healthz", token=None) == (200, "ok")
        job.annotate(job.assignment(1))
        agent.until_state("Running")


def test_without_the_token_a_connection_is_good_for_one_request(job: Job) -> None:
    agent = job.agent(0).start("sleep", "300")
    agent.until_healthy()
    with connections(agent, ["127.77.0.1"]) as (sock,):
        sock.sendall(HEALTHZ * 3)
        with sock.makefile("rb") as file:
            text = file.read()
    assert text.count(b"HTTP/1.1 200 OK") == 1 and b"\r\nConnection: close\r\n" in text


def test_without_the_token_no_body_is_waited_for(job: Job) -> None:
    agent = job.agent(0).start("sleep", "300")
    job.annotate(job.assignment(1))
    agent.until_state("Running")
    head = f"POST /v1/assignment HTTP/1.1\r\nContent-Length: {MAX_ASSIGNMENT_BYTES}\r\n\r\n".encode()
    with connections(agent, ["127.77.0.1"]) as (sock,):
        sock.sendall(head + b"x" * 1_000)
        assert sock.recv(1_000).startswith(b"HTTP/1.1 401 ")
        # A client that keeps sending what it announced gets its answer, rather than a reset that discards it.
        sock.sendall(b"x" * (MAX_ASSIGNMENT_BYTES - 1_000))
        assert sock.recv(1) == b""


class Port:
    """Serves an agent's port in this process; the test makes each of its turns."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.address = ("127.0.0.1", free_port("127.0.0.1"))
        self.metrics_made = self.states_asked = 0
        self.upgraded: list[PeerConnection] = []
        environ = {**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_POD_IP": self.address[0]}
        settings = read_settings({**environ, "TRAINMASTER_AGENT_PORT": str(self.address[1])})
        self.authority = Authority(settings)
        answers = {
            ("GET", "/v1/state"): self.answer_state,
            ("GET", "/metrics"): self.answer_metrics,
            ("POST", "/v1/assignment"): self.answer_push,
        }
        # The operator's other requests are answered as by an agent.
        self.server = Network(self.loop, settings, lambda message: None, answers).server
        self.server.upgraded = self.take_over
        self.server.open()
        self.clients: list[socket.socket] = []

    def turn(self, seconds: float) -> None:
        """Runs one turn of the loop."""
        self.loop.run_once(seconds)

    def take_over(self, connection: PeerConnection, _is_follower: bool, _rest: bytes) -> None:
        connection.on_data = connection.read
        self.upgraded.append(connection)

    def answer_state(self, _body: bytes) -> bytes:
        self.states_asked += 1
        return http.response(200, "{}")

    def answer_metrics(self, _body: bytes) -> bytes:
        self.metrics_made += 1
        return http.response(200, "x 1\n", METRICS_TYPE)

    def answer_push(self, body: bytes) -> bytes:
        with pytest.raises(ProtocolError):
            self.authority.read(json_of(body))
        return http.response(400, "no assignment\n")

    def connect(self, data: bytes = b"") -> socket.socket:
        sock = socket.create_connection(self.address, timeout=10)
        self.clients.append(sock)
        sock.sendall(data)
        return sock

    def answer(self, sock: socket.socket) -> bytes:
        """Returns everything received until the agent closes the connection."""
        sock.setblocking(False)
        text = b""

        def ended() -> bool:
            nonlocal text
            self.turn(0.01)
            try:
                data = sock.recv(65_536)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            text += data
            return not data

        until(ended)
        return text

    def end(self) -> None:
        self.server._socket.close()
        for sock in self.clients:
            sock.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.end()


def test_a_request_that_never_ends_is_given_up_when_the_time_is_over(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, silent = port.connect(b"GET /healthz HT"), port.connect()
    port.turn(1.0)
    port.turn(0.0)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1e6)
    late = port.connect(b"GET /healthz HT")
    port.turn(1.0)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 20.0)
    assert b" 408 " in port.answer(slow) and port.answer(silent) == b""
    late.sendall(b"TP/1.1\r\n\r\n")
    assert port.answer(late).endswith(b"ok")


def test_what_unauthenticated_send_is_kept_to_a_bound(port: Port) -> None:
    half = b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 8_000
    for _ in range(100):
        port.connect(half)
    for _ in range(100):
        port.turn(0.0)
    kept = [len(exchange._request._buffer) for exchange in port.server._unauthenticated]
    assert len(kept) == server.MAX_OF_ADDRESS
    assert max(kept) <= http.MAX_HEAD_BYTES + server.UNAUTHENTICATED_READ_BYTES


def test_a_request_that_has_come_is_answered_though_a_flood_pushes_it_out(port: Port) -> None:
    probe = port.connect()
    port.turn(1.0)
    for _ in range(100):
        port.connect()
    probe.sendall(HEALTHZ)
    assert port.answer(probe).endswith(b"ok")


def test_a_flood_doesnt_keep_the_loop_from_its_other_work(port: Port) -> None:
    read_end, write_end = os.pipe()
    between: list[int] = []

    def work(_events: int) -> None:
        between.append(len(port.server._unauthenticated))

    port.loop.watch(read_end, READ, work)
    os.write(write_end, b".")
    for _ in range(15):
        port.connect()
    while not between or between[-1] < 15:
        port.turn(0.0)
    assert max(after - before for before, after in zip([0, *between], between, strict=False)) <= server.ACCEPTS_AT_ONCE
    for end in (read_end, write_end):
        os.close(end)


def test_without_descriptors_the_port_waits_instead_of_trying_again_and_again(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[None] = []
    listener = port.server._socket
    descriptor = listener.fileno()

    class Short:
        def fileno(self) -> int:
            return descriptor

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            tries.append(None)
            raise OSError(errno.EMFILE, "too many open files")

    client = port.connect(HEALTHZ)
    monkeypatch.setattr(port.server, "_socket", Short())
    for _ in range(20):
        port.turn(0.0)
    assert len(tries) < 3
    monkeypatch.setattr(port.server, "_socket", listener)
    assert port.answer(client).endswith(b"ok"), "it listens again after a moment"


def test_metrics_are_made_once_for_all_who_ask_within_a_second(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "METRICS_SECONDS", 1e6)
    for _ in range(50):
        assert port.answer(port.connect(b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"x 1\n")
    assert port.metrics_made == 1


@pytest.mark.parametrize("first", ["/v1/state", "/healthz", "/metrics", "/nothing"])
@pytest.mark.parametrize("pipelined", [True, False])
def test_the_token_counts_for_one_request(port: Port, first: str, pipelined: bool) -> None:
    """kube-apiserver pools its connections to a pod, so the next request may be another client's."""
    with_token = STATE.replace(b"/v1/state", first.encode())
    without = b"GET /v1/state HTTP/1.1\r\n\r\nGET /v1/stream HTTP/1.1\r\n\r\n"
    sock = port.connect(with_token + without if pipelined else with_token)
    answer = port.answer(sock)
    assert answer.count(b"HTTP/1.1 ") == 1 and b"\r\nConnection: close\r\n" in answer
    if not pipelined:
        with contextlib.suppress(OSError):
            sock.sendall(without)
            assert sock.recv(1_000) == b""
    assert port.states_asked == (first == "/v1/state")


def test_connections_that_an_api_server_pools_let_nobody_else_in(job: Job) -> None:
    agent = job.agent(0).start("sleep", "300")
    agent.until_healthy()
    with urllib3.HTTPConnectionPool(agent.address, job.agent_port, maxsize=1, block=True, retries=False) as pool:
        for _ in range(3):
            assert pool.request("GET", "/v1/state", headers={"Trainmaster-Token": TOKEN}).status == 200
            assert [pool.request("GET", path).status for path in ("/v1/state", "/v1/stream")] == [401, 401]
            assert pool.request("GET", "/metrics").status == 200


def test_a_stream_answers_no_other_request(port: Port) -> None:
    stream = STATE.replace(b"/v1/state", b"/v1/stream")
    sock = port.connect(stream + b"GET /v1/state HTTP/1.1\r\n\r\n")
    port.turn(1.0)
    port.turn(0.0)
    sock.sendall(b"GET /v1/state HTTP/1.1\r\n\r\n")
    for _ in range(5):
        port.turn(0.01)
    assert sock.recv(10_000) == http.STREAM_HEAD and b"Connection: close" in http.STREAM_HEAD
    assert len(port.upgraded) == 1 and port.states_asked == 0


def test_anybody_reads_the_metrics_whoever_asked_before(port: Port) -> None:
    """The API server passes on anybody's requests, so the token may or may not come with them."""
    for head in (b"", b"Trainmaster-Token: " + TOKEN.encode() + b"\r\n"):
        port.answer(port.connect(STATE))
        answer = port.answer(port.connect(b"GET /metrics HTTP/1.1\r\n" + head + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"x 1\n")


def test_few_requests_with_the_token_are_waited_for(port: Port) -> None:
    half = f"POST /v1/ack HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\nContent-Length: 9\r\n\r\n".encode()
    socks = [port.connect(half) for _ in range(server.MAX_KNOWN + 3)]
    for _ in range(100):
        port.turn(0.0)
    assert len(port.server._known) == server.MAX_KNOWN and len(port.server._unauthenticated) == 0
    socks[-1].sendall(b'{"seq":1}')
    assert port.answer(socks[-1]).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("path", ["/v1/assignment", "/v1/ack", "/v1/collect"])
@pytest.mark.parametrize(
    "body", [b"", b"[", b"[" * 100_000, b'{"attempt":Infinity,"seq":Infinity}', b"9" * 5_000, b"\xff", b'{"seq":1e999}']
)
def test_a_body_that_is_no_request_is_refused_with_the_token_too(port: Port, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nTrainmaster-Token: {TOKEN}\r\nConnection: close\r\nContent-Length: {len(body)}"
    assert port.answer(port.connect(head.encode() + b"\r\n\r\n" + body)).startswith(b"HTTP/1.1 400 ")
    assert port.answer(port.connect(HEALTHZ)).endswith(b"ok")


def test_the_address_that_has_most_makes_room() -> None:
    room: list[Any] = []
    for address in ("kubelet", "evil", "evil", "evil"):
        assert to_replace(room, address, 4) is None
        room.append(SimpleNamespace(address=address))
    assert to_replace(room, "operator", 4) is room[1], "the oldest of them"
    assert to_replace(room, "", 0) is room[1]
    del room[1]
    assert to_replace(room, "operator", 4) is None
    many: list[Any] = [SimpleNamespace(address="node") for _ in range(server.MAX_OF_ADDRESS)]
    assert to_replace(many, "node", 100) is many[0] and to_replace([], "", 0) is None
