"""The server listens on the agents' port, and serves the operator, Prometheus, the kubelet and joining agents."""

from __future__ import annotations

import errno
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Optional

from trainmaster_operator.agent.connection import READ_BYTES, PeerConnection
from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.http import STREAM_HEAD, UPGRADE_PROTOCOL, UPGRADED, BadRequest, Head, Request, response
from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.names import TOKEN_HEADER, group_of
from trainmaster_operator.wire.signing import job_token
from trainmaster_operator.wire.values import loads

REQUEST_SECONDS = 10.0
"""A connection is closed if its request isn't complete and answered within this time."""
SWEEP_SECONDS = 1.0
ACCEPTS_AT_ONCE = 8
"""The server accepts this many connections before the loop handles other events. It is below
MAX_OF_ADDRESS, so that a new connection is read once before others of its address replace it."""
SHORT_SECONDS = 0.1
"""If descriptors run out and no connection can be closed, no connection is accepted for this long."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MAX_KNOWN = 32
"""The most connections whose request contains the token, not counting streams and followers. A new connection replaces
the oldest."""
MAX_ANSWER_BYTES = 1_048_576
"""The limit of the bytes that a client with the token hasn't read yet."""
UNAUTHENTICATED_READ_BYTES = 8_192
"""The most bytes of one read before the token is known, so that the buffer contains at most a head and this much."""
METRICS_SECONDS = 1.0
"""The text of /metrics is made at most once in this time."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_PATHS = ("/healthz", "/metrics")
UPGRADES = ("/v1/stream", "/v1/join")
MAX_UNAUTHENTICATED = 128
MAX_OF_ADDRESS = 16
DESCRIPTORS_SHARE = 4
"""Unauthenticated connections get at most a fourth of the process's descriptors, because the ranks' files and pipes
need descriptors too."""
Answer = Callable[[bytes], bytes]
"""A function that takes a request's body and returns the response. It raises BadRequest."""


class Server:
    """Server listens on the pod's address.

    `answers` contains the functions that make responses, by method and path. `upgraded` is called when a connection
    becomes an operator's stream or a follower's connection. It takes the connection, whether it is a follower's, and
    the bytes that have been read after the request.
    """

    def __init__(
        self,
        loop: Loop,
        settings: AgentSettings,
        answers: Mapping[tuple[str, str], Answer],
        upgraded: Callable[[PeerConnection, bool, bytes], None],
    ) -> None:
        self._loop, self._settings = loop, settings
        self.answers, self.upgraded = answers, upgraded
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = MAX_UNAUTHENTICATED if descriptors == resource.RLIM_INFINITY else descriptors // DESCRIPTORS_SHARE
        self._most_unauthenticated = max(1, min(MAX_UNAUTHENTICATED, share))
        self._unauthenticated: dict[Exchange, None] = {}
        self._known: dict[Exchange, None] = {}
        self._metrics = b""
        self._metrics_until = 0.0
        family = socket.AF_INET6 if ":" in settings.pod_ip else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)

    def open(self) -> None:
        """Listen; raises LaunchError with a message on failure."""
        address, port = self._settings.pod_ip, self._settings.port
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((address, port))
            self._socket.listen(1_024)
        except OSError as error:
            where = f"port {port} of {address or 'this pod'}"
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"the agents' port is in use: {where}; with interconnect.hostNetwork only one worker of all jobs "
                    f"fits on a node"
                ) from None
            raise LaunchError(f"cannot listen on {where}: {error.strerror}") from None
        self._socket.setblocking(False)
        self._listen()
        self._sweep()

    def metrics(self) -> bytes:
        """Returns the response to a request for the metrics, at most METRICS_SECONDS old."""
        now = time.monotonic()
        if now >= self._metrics_until:
            self._metrics = self.answers["GET", "/metrics"](b"")
            self._metrics_until = now + METRICS_SECONDS
        return self._metrics

    def is_authorized(self, head: Head) -> bool:
        token = job_token(self._settings.agents_secret, self._settings.job_uid)
        given = head.headers.get(TOKEN_HEADER.lower(), "")
        # Imported here, because it costs 3 ms of an agent's start and the first request comes later.
        import hmac

        return bool(token) and hmac.compare_digest(token.encode(), given.encode("latin-1"))

    def became_known(self, exchange: Exchange) -> None:
        """Record that a connection's request contains the token."""
        self._unauthenticated.pop(exchange, None)
        while len(self._known) >= MAX_KNOWN:
            next(iter(self._known)).close()
        self._known[exchange] = None

    def forget(self, exchange: Exchange) -> None:
        """Forget a connection that has ended, or now belongs to the leader."""
        self._unauthenticated.pop(exchange, None)
        self._known.pop(exchange, None)

    def _listen(self) -> None:
        self._loop.watch(self._socket.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    # The peer has already closed this connection.
                    continue
                self._out_of_descriptors()
                return
            self._let_in(sock, group_of(str(address[0])))

    def _let_in(self, sock: socket.socket, address: str) -> None:
        replaced = to_replace(self._unauthenticated, address, self._most_unauthenticated)
        if replaced is not None:
            replaced.make_room()
        exchange = Exchange(self, PeerConnection(self._loop, sock, UNAUTHENTICATED_READ_BYTES), address)
        self._unauthenticated[exchange] = None
        # In a flood of connections, the request has often arrived before the connection is accepted: answer it at once.
        exchange.read()

    def _out_of_descriptors(self) -> None:
        exchange = to_replace(self._unauthenticated, "", 0)
        if exchange is not None:
            exchange.make_room()
        else:
            # The listening socket stays ready, so watching it would keep a core busy.
            self._loop.unwatch(self._socket.fileno())
            self._loop.call_later(SHORT_SECONDS, self._listen)

    def _sweep(self) -> None:
        self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = time.monotonic()
        for exchange in [*self._unauthenticated, *self._known]:
            if exchange.deadline <= now:
                exchange.too_slow()


class Exchange:
    """Exchange is a connection and its one request."""

    def __init__(self, server: Server, connection: PeerConnection, address: str) -> None:
        self._server = server
        self._request = Request()
        self._is_known = False
        self._is_taken = False
        """Whether the request is complete or was refused, so that the rest of the data is ignored."""
        self.connection = connection
        connection.on_data = self.read
        connection.on_end = lambda: server.forget(self)
        self.address = address
        self.deadline = time.monotonic() + REQUEST_SECONDS

    def read(self) -> None:
        data = self.connection.read()
        if data is not None and not self._is_taken:
            self._receive(data)

    def make_room(self) -> None:
        """Close the connection, unless its request contains the token. A request that has arrived is answered first."""
        self.read()
        if not self._is_known:
            self.close()

    def close(self) -> None:
        self._server.forget(self)
        self.connection.close()

    def too_slow(self) -> None:
        if self._request.begun and not self._is_taken:
            self.answer(response(408, "the request did not arrive in time\n"))
        self.close()

    def answer(self, answer: bytes) -> None:
        self._is_taken = True
        self.connection.send(answer)
        self.connection.finish(self._request.missing)

    def _receive(self, data: bytes) -> None:
        self._request.feed(data)
        try:
            head = self._request.head()
            if head is None:
                return
            if not self._is_known:
                if head.path in OPEN_PATHS or not self._server.is_authorized(head):
                    # Answer without waiting for a body.
                    self.answer(self._answer_unauthenticated(head))
                    return
                self._is_known = True
                self.connection.read_bytes = READ_BYTES
                self.connection.most_pending = MAX_ANSWER_BYTES
                self._server.became_known(self)
            body = self._request.body()
            if body is None or self._upgraded(head):
                return
            self.answer(self._answer(head, body))
        except BadRequest as error:
            self.answer(response(error.status, f"{error}\n"))

    def _upgraded(self, head: Head) -> bool:
        """Hand the connection over to `upgraded` if the request asks for it; returns whether it did."""
        if head.method != "GET" or head.path not in UPGRADES:
            return False
        joins = head.path == "/v1/join"
        if joins and head.headers.get("upgrade", "").lower() != UPGRADE_PROTOCOL:
            raise BadRequest(400, f"/v1/join needs the header Upgrade: {UPGRADE_PROTOCOL}")
        self._server.forget(self)
        self.connection.send(UPGRADED if joins else STREAM_HEAD)
        if not self.connection.closed:
            self._server.upgraded(self.connection, joins, self._request.rest())
        return True

    def _answer_unauthenticated(self, head: Head) -> bytes:
        if head.path not in OPEN_PATHS:
            return response(401, "the header Trainmaster-Token is missing or wrong\n")
        if head.method != "GET":
            return response(405, _no_request_of_ours(head))
        if head.path == "/healthz":
            return response(200, "ok")
        return self._server.metrics()

    def _answer(self, head: Head, body: bytes) -> bytes:
        answers = self._server.answers
        answer = answers.get((head.method, head.path))
        if answer is not None:
            return answer(body)
        if head.path in UPGRADES or any(head.path == path for _, path in answers):
            return response(405, _no_request_of_ours(head))
        return response(404, "no such path\n")


def _no_request_of_ours(head: Head) -> str:
    return f"{head.method} {head.path} is not a request of docs/protocol.md\n"


def json_of(body: bytes) -> Any:
    """Returns a request's body; raises BadRequest if it isn't JSON."""
    try:
        return loads(body)
    except ValueError:
        raise BadRequest(400, "the body is not JSON") from None


def to_replace(exchanges: Collection[Exchange], address: str, most: int) -> Optional[Exchange]:
    """Returns the unauthenticated connection that a new one from the address replaces; None if none must be closed.

    The addresses of the kubelet's probe and of the operator are unknown (a node, a proxy, a service mesh's sidecar), so
    no connections are reserved for them. Instead, if there are too many, a new connection replaces the oldest one of
    the address that has the most. So a flood only replaces its own connections. A client that sends its request at once
    is answered before its connection is replaced.
    """
    counts = Counter(exchange.address for exchange in exchanges)
    if counts[address] < MAX_OF_ADDRESS:
        if not counts or len(exchanges) < most:
            return None
        [(address, _)] = counts.most_common(1)
    return next(exchange for exchange in exchanges if exchange.address == address)
