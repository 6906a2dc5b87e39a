"""The agents' port: HTTP for the operator, Prometheus and the kubelet, and the way in for the other agents."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from trainmaster.agent.assignment import Assignment, from_wire
from trainmaster.agent.connection import Connection
from trainmaster.agent.errors import InvalidAssignment, LaunchError
from trainmaster.agent.http import (
    STREAM_HEAD,
    UPGRADE_PROTOCOL,
    UPGRADED,
    BadRequest,
    Request,
    parse_request,
    response,
)
from trainmaster.agent.loop import READ, Loop
from trainmaster.agent.report import whole
from trainmaster.agent.settings import Settings

REQUEST_SECONDS = 10.0
"""A request that isn't complete by then is given up, and so is a connection that stays idle between two."""
MAX_WAITING = 256
"""Connections that have not yet shown the token; more are closed at once."""


class Handlers(NamedTuple):
    """What the server asks of the agent."""

    token: Callable[[], str]
    """The token, or "" where none is known yet."""
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
        self._waiting: set[Exchange] = set()
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
        self._loop.watch(listener.fileno(), READ, self._accept)

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _accept(self, _events: int) -> None:
        if self._socket is None:
            return
        try:
            sock, _ = self._socket.accept()
        except OSError:
            # The peer has gone again, or descriptors are short: the next one may do.
            return
        if len(self._waiting) >= MAX_WAITING:
            sock.close()
            return
        self._waiting.add(Exchange(self._loop, sock, self._handlers, self._waiting))


class Exchange:
    """The requests of one connection, one after the other."""

    def __init__(self, loop: Loop, sock: socket.socket, handlers: Handlers, waiting: set[Exchange]) -> None:
        self._loop = loop
        self._handlers = handlers
        self._waiting = waiting
        self._buffer = b""
        self._connection = Connection(loop, sock, self._received, self._gone)
        self._deadline = loop.call_later(REQUEST_SECONDS, self._too_slow)

    def _received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self._connection.closed:
                request, self._buffer = parse_request(self._buffer)
                if request is None:
                    return
                self._deadline.cancel()
                if self._taken_over(request):
                    return
                self._connection.send(self._answer(request))
                if not request.keep_alive:
                    self._finish()
                    return
                self._deadline = self._loop.call_later(REQUEST_SECONDS, self._too_slow)
        except BadRequest as error:
            self._connection.send(response(error.status, f"{error}\n"))
            self._finish()

    def _taken_over(self, request: Request) -> bool:
        """Whether the connection belongs to the lead from now on."""
        if request.method != "GET" or request.path not in ("/v1/stream", "/v1/join") or not self._authorized(request):
            return False
        if request.path == "/v1/join":
            if request.headers.get("upgrade", "").lower() != UPGRADE_PROTOCOL:
                raise BadRequest(400, f"/v1/join needs the header Upgrade: {UPGRADE_PROTOCOL}")
            self._waiting.discard(self)
            self._connection.send(UPGRADED)
            self._handlers.join(self._connection, self._buffer)
        else:
            self._waiting.discard(self)
            self._connection.send(STREAM_HEAD)
            self._handlers.stream(self._connection)
        return True

    def _answer(self, request: Request) -> bytes:
        route = (request.method, request.path)
        if route == ("GET", "/healthz"):
            return response(200, "ok")
        if route == ("GET", "/metrics"):
            return response(200, self._handlers.metrics(), "text/plain; version=0.0.4; charset=utf-8")
        if not self._authorized(request):
            return response(401, "the header Trainmaster-Token is missing or wrong\n")
        if route == ("GET", "/v1/state"):
            return response(200, json.dumps(self._handlers.state(), indent=1) + "\n", "application/json")
        if route == ("POST", "/v1/assignment"):
            return self._take_assignment(request)
        if route == ("POST", "/v1/ack"):
            return self._take_ack(request)
        known = ("/healthz", "/metrics", "/v1/state", "/v1/stream", "/v1/join", "/v1/assignment", "/v1/ack")
        if request.path in known:
            return response(405, f"{request.method} {request.path} is not a request of docs/protocol.md\n")
        return response(404, "no such path\n")

    def _take_assignment(self, request: Request) -> bytes:
        try:
            assignment = from_wire(_json(request))
        except InvalidAssignment as error:
            return response(400, f"{error}\n")
        holds = self._handlers.offer(assignment)
        if (holds.attempt, holds.state) == (assignment.attempt, assignment.state):
            return response(204)
        if holds.attempt < assignment.attempt:
            return response(503, "this agent is on its way out\n")
        return response(409, json.dumps(holds.to_wire()) + "\n", "application/json")

    def _take_ack(self, request: Request) -> bytes:
        body = _json(request)
        seq = whole(body.get("seq")) if isinstance(body, dict) else None
        if seq is None:
            return response(400, "seq is not a whole number of at least 0\n")
        self._handlers.acknowledge(seq)
        return response(204)

    def _authorized(self, request: Request) -> bool:
        token = self._handlers.token()
        given = request.headers.get("trainmaster-token", "")
        # Here, because it costs 3 ms of an agent's start and the first request comes after that.
        import hmac

        return bool(token) and hmac.compare_digest(token.encode(), given.encode("latin-1"))

    def _too_slow(self) -> None:
        if self._buffer:
            self._connection.send(response(408, "the request did not come in time\n"))
        self._finish()

    def _finish(self) -> None:
        self._gone()
        self._connection.finish()

    def _gone(self) -> None:
        self._deadline.cancel()
        self._waiting.discard(self)


def _json(request: Request) -> Any:
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        raise BadRequest(400, "the body is not JSON") from None
