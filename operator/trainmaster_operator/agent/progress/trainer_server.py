"""Hugging Face's Trainer reports here, by HTTP on the loopback address, as it does to Kubeflow's controller.

A rank waits for the answer, so it is given at once and by the loop alone; what is too much is refused. The token of an
attempt is in a file that only the job's own user can read: on a node's own network (`interconnect.hostNetwork`) others
reach the address too.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Optional

from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.network.connection import Connection
from trainmaster_operator.agent.network.events import NetworkEvent, Readable
from trainmaster_operator.agent.network.http import BadRequest, Head, Request, response
from trainmaster_operator.agent.progress.trainer_environment import ADDRESS, PATH
from trainmaster_operator.wire.limits import MAX_LINE_BYTES
from trainmaster_operator.wire.values import loads

MAX_CONNECTIONS = 8
"""The oldest gives way: a Trainer opens a new one for each report."""
REQUEST_SECONDS = 5.0
BURST, PER_SECOND = 20, 4.0
"""Reports that are read: a Trainer sends one in 5 s. More are answered 429, which it passes over."""


class TrainerServer:
    """Listens until the agent ends. `receive` gets the bodies of the present attempt's reports."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, _Exchange] = {}
        self._token = ""
        self._receive: Callable[[Any], None] = lambda _body: None
        self._room, self._room_at = float(BURST), 0.0
        self._socket: Optional[socket.socket] = None

    def open(self) -> int:
        """Listen, and return the port; 0 where that isn't possible: then nobody is told of it."""
        if self._socket is None:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((ADDRESS, 0))
                listener.listen(MAX_CONNECTIONS)
            except OSError:
                listener.close()
                return 0
            listener.setblocking(False)
            self._socket = listener
            self._loop.watch(listener.fileno(), READ, self._accept)
        return int(self._socket.getsockname()[1])

    def begin(self, token_file: str, receive: Callable[[Any], None]) -> None:
        """An attempt begins: write its token, and forget the one before. Raises OSError."""
        self._token, self._receive = os.urandom(16).hex(), receive
        fd = os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(self._token)

    def _accept(self, _events: int) -> None:
        if self._socket is None:
            return
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return
        if len(self._exchanges) >= MAX_CONNECTIONS:
            self._close(next(iter(self._exchanges)))
        number = next(self._numbers)
        connection = Connection(self._loop, sock, number, self._happened)
        self._exchanges[number] = _Exchange(connection, Request())
        self._loop.call_later(REQUEST_SECONDS, lambda: self._close(number))

    def _happened(self, event: NetworkEvent) -> None:
        """Something has come on a connection, or it has ended."""
        peer = getattr(event, "peer", 0)
        exchange = self._exchanges.get(peer)
        if exchange is None:
            return
        if not isinstance(event, Readable):
            del self._exchanges[peer]
            return
        data = exchange.connection.read()
        if data is None:
            return
        exchange.request.feed(data)
        try:
            answer = self._answer(exchange.request)
        except BadRequest as error:
            answer = response(error.status, f"{error}\n")
        if answer:
            exchange.connection.send(answer)
            exchange.connection.finish(exchange.request.missing)

    def _answer(self, request: Request) -> bytes:
        """Returns the answer to a connection's one request; empty while it isn't whole."""
        head = request.head()
        if head is None:
            return b""
        if head.path != PATH or head.method != "POST":
            return response(404, f"POST {PATH} is all that is answered here\n")
        if not self._is_authorized(head):
            return response(401, "the token is missing, or another attempt's\n")
        if head.length > MAX_LINE_BYTES:
            return response(413, f"the report is longer than {MAX_LINE_BYTES} bytes\n")
        body = request.body()
        if body is None:
            return b""
        if not self._has_room():
            return response(429, "too many reports\n")
        try:
            report = loads(body)
        except ValueError:
            return response(400, "the body is not JSON\n")
        self._receive(report)
        return response(200, "{}", "application/json")

    def _is_authorized(self, head: Head) -> bool:
        # Here, because it costs 3 ms of an agent's start, and the first report comes after that.
        import hmac

        given = head.headers.get("authorization", "").encode("latin-1")
        return bool(self._token) and hmac.compare_digest(f"Bearer {self._token}".encode(), given)

    def _has_room(self) -> bool:
        now = time.monotonic()
        self._room = min(BURST, self._room + (now - self._room_at) * PER_SECOND)
        self._room_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def _close(self, number: int) -> None:
        exchange = self._exchanges.pop(number, None)
        if exchange is not None:
            exchange.connection.close()


class _Exchange:
    """A connection, and the request on it."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection = connection
        self.request = request
