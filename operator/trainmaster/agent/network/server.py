"""The agents' port: HTTP for the operator, Prometheus and the kubelet, and the way in for the other agents."""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.loop import READ, Loop
from trainmaster.agent.network.connection import READ_BYTES, Connection
from trainmaster.agent.network.http import (
    STREAM_HEAD,
    UPGRADE_PROTOCOL,
    UPGRADED,
    BadRequest,
    Head,
    Requests,
    response,
)
from trainmaster.agent.network.unauthenticated import Strangers, group_of, room_for_strangers
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.values import whole

REQUEST_SECONDS = 10.0
"""A request that isn't complete by then is given up, and so is a connection that stays idle between two."""
SWEEP_SECONDS = 1.0
ACCEPTS_AT_ONCE = 8
"""Then the loop sees to everything else. Fewer than strangers.MAX_OF_ADDRESS, so that who has just come in is looked at
once more before others of its address push it out."""
SHORT_SECONDS = 0.1
"""Where descriptors are short and nobody can be closed for it, nobody is let in for so long."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MAX_KNOWN = 32
"""Connections that have shown the token and are neither a stream nor a member's; the oldest gives way."""
MAX_ANSWER_BYTES = 1_048_576
"""What one of them may leave unread."""
STRANGERS_READ_BYTES = 8_192
"""What is read at once before the token is shown: the buffer never holds more than a head and this."""
METRICS_SECONDS = 1.0
"""The text of /metrics is made once in so long, whoever asks how often."""
OPEN_PATHS = ("/healthz", "/metrics")
PATHS = ("/v1/state", "/v1/stream", "/v1/join", "/v1/assignment", "/v1/ack")


class Handlers(NamedTuple):
    """What the server asks of the agent."""

    token: Callable[[], str]
    """The token, or "" where there is none, and nobody gets in."""
    read: Callable[[Any], Assignment]
    """Check what was pushed; raises ProtocolError."""
    offer: Callable[[Assignment], Assignment]
    """Take an assignment if it is higher; returns the one that then holds."""
    acknowledge: Callable[[int], None]
    stream: Callable[[Connection], None]
    join: Callable[[Connection, bytes], None]
    state: Callable[[], dict[str, Any]]
    metrics: Callable[[], str]


class Server:
    """Listens on the pod's address."""

    def __init__(self, loop: Loop, settings: Settings, handlers: Handlers) -> None:
        self._loop = loop
        self._settings = settings
        self._handlers = handlers
        self._strangers: Strangers[Exchange] = Strangers(room_for_strangers())
        self._known: dict[Exchange, None] = {}
        self._metrics = ""
        self._metrics_until = 0.0
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Listen; raises LaunchError with a sentence where that isn't possible."""
        address, port = self._settings.pod_ip, self._settings.port
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(1_024)
        except OSError as error:
            listener.close()
            where = f"port {port} of {address or 'this pod'}"
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"the agents' port is in use: {where}; with interconnect.hostNetwork only one worker of all jobs "
                    f"fits on a node"
                ) from None
            raise LaunchError(f"cannot listen on {where}: {error.strerror}") from None
        listener.setblocking(False)
        self._socket = listener
        self._listen()
        self._loop.call_every(SWEEP_SECONDS, self._sweep)

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def became_known(self, exchange: Exchange) -> None:
        """A connection has shown the token."""
        self._strangers.discard(exchange.address, exchange)
        while len(self._known) >= MAX_KNOWN:
            next(iter(self._known)).close()
        self._known[exchange] = None

    def leave(self, exchange: Exchange) -> None:
        """A connection has ended, or belongs to the lead from now on."""
        self._strangers.discard(exchange.address, exchange)
        self._known.pop(exchange, None)

    def metrics(self) -> str:
        """The text of /metrics, at most METRICS_SECONDS old."""
        now = time.monotonic()
        if now >= self._metrics_until:
            self._metrics, self._metrics_until = self._handlers.metrics(), now + METRICS_SECONDS
        return self._metrics

    def _listen(self) -> None:
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._socket is None:
                return
            try:
                sock, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    # The peer has gone again.
                    continue
                self._out_of_descriptors()
                return
            self._let_in(sock, group_of(str(peer[0])))

    def _let_in(self, sock: socket.socket, address: str) -> None:
        in_the_way = self._strangers.in_the_way(address)
        if in_the_way is not None:
            in_the_way.make_room()
        exchange = Exchange(self, self._loop, sock, address, self._handlers)
        self._strangers.add(address, exchange)
        # Under a flood its request has often come while it waited to be accepted: it is answered at once.
        exchange.read()

    def _out_of_descriptors(self) -> None:
        exchange = self._strangers.first_to_leave()
        if exchange is not None:
            exchange.make_room()
        elif self._socket is not None:
            # The listener stays ready: to be woken by it again and again would keep a core busy.
            self._loop.unwatch(self._socket.fileno())
            self._loop.call_later(SHORT_SECONDS, self._listen)

    def _sweep(self) -> None:
        now = time.monotonic()
        for exchange in [*self._strangers.all(), *self._known]:
            if exchange.deadline <= now:
                exchange.too_slow()


class Exchange:
    """The requests of one connection: one where the token isn't shown, else one after the other."""

    def __init__(self, server: Server, loop: Loop, sock: socket.socket, address: str, handlers: Handlers) -> None:
        self._server = server
        self._handlers = handlers
        self._requests = Requests()
        self._is_known = False
        self._answered = False
        self.address = address
        self.deadline = time.monotonic() + REQUEST_SECONDS
        self._connection = Connection(loop, sock, self._received, self._gone, STRANGERS_READ_BYTES)

    def read(self) -> None:
        """Take in what has arrived already."""
        self._connection.read()

    def make_room(self) -> None:
        """Close, unless what has arrived is a request that can be answered."""
        self.read()
        if not self._is_known:
            self.close()

    def close(self) -> None:
        """Close now."""
        self._gone()
        self._connection.close()

    def too_slow(self) -> None:
        """The time is over."""
        if self._requests.begun and not self._answered:
            self._finish(response(408, "the request did not come in time\n", last=True))
        self.close()

    def _received(self, data: bytes) -> None:
        self._requests.feed(data)
        try:
            head = self._requests.head()
            if head is None:
                return
            if not self._is_known:
                if head.path in OPEN_PATHS or not self._authorized(head):
                    # Whatever else comes, a body too, isn't waited for.
                    self._finish(self._answer_stranger(head))
                    return
                self._is_known = True
                self._connection.read_bytes = READ_BYTES
                self._connection.most_pending = MAX_ANSWER_BYTES
                self._server.became_known(self)
            body = self._requests.body()
            if body is None or self._taken_over(head):
                return
            # Nobody sends a second request before the first is answered, except to keep this loop busy.
            last = not head.keep_alive or self._requests.begun
            answer = self._answer(head, body)
            if last:
                self._finish(answer)
                return
            self._connection.send(answer)
            self.deadline = time.monotonic() + REQUEST_SECONDS
        except BadRequest as error:
            self._finish(response(error.status, f"{error}\n", last=True))

    def _taken_over(self, head: Head) -> bool:
        """Whether the connection belongs to the lead from now on."""
        if head.method != "GET" or head.path not in ("/v1/stream", "/v1/join"):
            return False
        if head.path == "/v1/join":
            if head.headers.get("upgrade", "").lower() != UPGRADE_PROTOCOL:
                raise BadRequest(400, f"/v1/join needs the header Upgrade: {UPGRADE_PROTOCOL}")
            self._gone()
            self._connection.send(UPGRADED)
            self._handlers.join(self._connection, self._requests.rest())
        else:
            self._gone()
            self._connection.send(STREAM_HEAD)
            self._handlers.stream(self._connection)
        return True

    def _answer_stranger(self, head: Head) -> bytes:
        if head.path not in OPEN_PATHS:
            return response(401, "the header Trainmaster-Token is missing or wrong\n", last=True)
        if head.method != "GET":
            return response(405, _no_request_of_ours(head), last=True)
        if head.path == "/healthz":
            return response(200, "ok", last=True)
        return response(200, self._server.metrics(), "text/plain; version=0.0.4; charset=utf-8", last=True)

    def _answer(self, head: Head, body: bytes) -> bytes:
        route = (head.method, head.path)
        if route == ("GET", "/v1/state"):
            return response(200, json.dumps(self._handlers.state(), indent=1) + "\n", "application/json")
        if route == ("POST", "/v1/assignment"):
            return self._take_assignment(body)
        if route == ("POST", "/v1/ack"):
            return self._take_ack(body)
        if head.path in PATHS:
            return response(405, _no_request_of_ours(head))
        return response(404, "no such path\n")

    def _take_assignment(self, body: bytes) -> bytes:
        try:
            assignment = self._handlers.read(_json(body))
        except ProtocolError as error:
            return response(400, f"{error}\n")
        holds = self._handlers.offer(assignment)
        if (holds.attempt, holds.state) == (assignment.attempt, assignment.state):
            return response(204)
        if holds.attempt < assignment.attempt:
            return response(503, "this agent is on its way out\n")
        return response(409, json.dumps(holds.signed) + "\n", "application/json")

    def _take_ack(self, body: bytes) -> bytes:
        data = _json(body)
        seq = whole(data.get("seq")) if isinstance(data, dict) else None
        if seq is None:
            return response(400, "seq is not a whole number of at least 0\n")
        self._handlers.acknowledge(seq)
        return response(204)

    def _authorized(self, head: Head) -> bool:
        token = self._handlers.token()
        given = head.headers.get("trainmaster-token", "")
        # Here, because it costs 3 ms of an agent's start and the first request comes after that.
        import hmac

        return bool(token) and hmac.compare_digest(token.encode(), given.encode("latin-1"))

    def _finish(self, answer: bytes) -> None:
        self._answered = True
        self._connection.send(answer)
        self._connection.finish(self._requests.missing)

    def _gone(self) -> None:
        self._server.leave(self)


def _no_request_of_ours(head: Head) -> str:
    return f"{head.method} {head.path} is not a request of docs/protocol.md\n"


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest(400, "the body is not JSON") from None
