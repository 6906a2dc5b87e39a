"""The link alone, against a lead that behaves badly."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.signer import TOKEN, environment
from tests.unit.agent.test_parsers import GOOD
from trainmaster.agent.loop import Loop
from trainmaster.agent.network import follower
from trainmaster.agent.network.http import UPGRADED
from trainmaster.agent.settings import read_settings
from trainmaster.wire.assignment import Assignment


class Listener:
    """A lead's port without a lead behind it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(5)
        self.port = int(self.socket.getsockname()[1])

    def accept(self, answer: bytes) -> socket.socket:
        peer, _ = self.socket.accept()
        peer.settimeout(5)
        request = peer.recv(4_096)
        assert (
            request.startswith(b"GET /v1/join HTTP/1.1\r\n") and f"Trainmaster-Token: {TOKEN}\r\n".encode() in request
        )
        peer.sendall(answer)
        return peer


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    with closing(made.socket):
        yield made


def make_link(listener: Listener, received: list[dict[str, Any]]) -> tuple[Loop, follower.Link]:
    environ = {**environment(), "TRAINMASTER_WORKER": "1", "TRAINMASTER_AGENT_PORT": str(listener.port)}
    loop = Loop()
    made = follower.Link(loop, read_settings(environ), lambda: None, received.append, lambda: None)
    made.assignment_changed(Assignment.parse({**GOOD, "hosts": ["127.0.0.1", "127.0.0.1"], "master": "127.0.0.1"}))
    return loop, made


def turn(loop: Loop, condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        loop.run_once(0.02)


def test_a_lead_that_falls_silent_is_left(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "PING_SECONDS", 0.05)
    monkeypatch.setattr(follower, "SILENCE_SECONDS", 0.3)
    loop, made = make_link(listener, [])
    loop.run_once(0.1)
    peer = listener.accept(UPGRADED + b'{"type":"watched","value":true}\n')
    turn(loop, lambda: made.lead == 0 and made.followed)
    assert made.contact.reached
    # The machine behind it is gone without a word: nothing comes any more, not even a reset.
    listener.socket.close()
    turn(loop, lambda: made.lead == 1)
    assert not made.followed
    peer.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 401 Unauthorized\r\n\r\n", b"SSH-2.0-x\r\n" + b"y" * 5_000, b""])
def test_something_else_on_the_port_is_passed_over(listener: Listener, answer: bytes) -> None:
    loop, made = make_link(listener, [])
    loop.run_once(0.1)
    peer = listener.accept(answer)
    if not answer:
        peer.close()
    turn(loop, lambda: made.lead == 1)
    assert made.contact.resolved
    peer.close()


def test_nonsense_from_the_lead_is_passed_over(listener: Listener) -> None:
    received: list[dict[str, Any]] = []
    loop, made = make_link(listener, received)
    loop.run_once(0.1)
    peer = listener.accept(UPGRADED)
    peer.sendall(b'nonsense\n[1]\n\xff\n{"type":"ping"}\n{"type":"stop","attempt":3}\n')
    turn(loop, lambda: bool(received))
    assert received == [{"type": "stop", "attempt": 3}]
    peer.sendall(b"x" * 300_000)
    turn(loop, lambda: made.lead == 1)
    peer.close()


def test_a_lead_whose_worker_has_a_new_pod_is_left_for_that_pod(listener: Listener) -> None:
    """The old one may live on, on a node that can't be reached, and would take reports that nobody reads."""
    loop, made = make_link(listener, [])
    hosts = ["127.0.0.1", "127.0.0.1"]

    def joined(uid: str) -> socket.socket:
        turn(loop, lambda: bool(select.select([listener.socket], [], [], 0)[0]))
        loop.run_once(0.1)
        return listener.accept(UPGRADED + b'{"type":"watched","value":true,"uid":"%s"}\n' % uid.encode())

    old = joined("a")
    turn(loop, lambda: made.followed)
    made.assignment_changed(
        Assignment.parse({**GOOD, "attempt": 9, "hosts": hosts, "master": hosts[0], "uids": ["new", "mine"]})
    )
    assert made.lead is None
    # The name still leads to the old pod: it is left again, and tried again after a while.
    stale = joined("a")
    new = joined("new")
    turn(loop, lambda: made.lead == 0 and made.followed)
    for peer in (old, stale):
        assert b"" in (peer.recv(1), peer.recv(4_096), peer.recv(4_096)), "left"
    for peer in (old, stale, new):
        peer.close()
