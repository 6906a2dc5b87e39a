"""One try to join one host: resolve, connect, ask for the upgrade. Bounded in time, and it never blocks."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Optional

from trainmaster.agent.loop import WRITE, Loop
from trainmaster.agent.network.connection import Connection
from trainmaster.agent.network.http import UPGRADE_PROTOCOL
from trainmaster.agent.network.resolve import Resolved, resolve
from trainmaster.wire.names import TOKEN_HEADER

LIMIT_SECONDS = 1.0
MAX_ANSWER_BYTES = 4_096


class Joined(NamedTuple):
    """What became of it: a connection that speaks lines from `rest` on, or None and the problem."""

    connection: Optional[Connection]
    rest: bytes
    resolved: bool
    problem: str


class Joining:
    """Calls `done` once, from the loop and never from within `begin`; not at all after `cancel`."""

    def __init__(
        self, loop: Loop, host: str, port: int, token: str, hosts_file: str, done: Callable[[Joined], None]
    ) -> None:
        self._loop = loop
        self._host = host
        self._port = port
        self._token = token
        self._hosts_file = hosts_file
        self._done = done
        self._address = ""
        self._sock: socket.socket | None = None
        self._connection: Connection | None = None
        self._answer = b""
        self._over = False
        self._timer = loop.call_later(LIMIT_SECONDS, lambda: self._fail(f"no answer within {LIMIT_SECONDS:g} s"))

    def begin(self) -> None:
        """Start."""
        resolve(self._loop, self._host, self._hosts_file, self._resolved)

    def cancel(self) -> None:
        """Give up without a word."""
        self._over = True
        self._timer.cancel()
        if self._sock is not None:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
        if self._connection is not None:
            self._connection.close()

    def _resolved(self, found: Resolved) -> None:
        if self._over:
            return
        if not found.address:
            self._fail(found.problem)
            return
        self._address = found.address
        self._sock = socket.socket(found.family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        code = self._sock.connect_ex((found.address, self._port))
        if code not in (0, errno.EINPROGRESS):
            self._fail(os.strerror(code))
            return
        self._loop.watch(self._sock.fileno(), WRITE, self._connected)

    def _connected(self, _events: int) -> None:
        if self._sock is None:
            return
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code))
            return
        self._loop.unwatch(self._sock.fileno())
        sock, self._sock = self._sock, None
        closed = "the connection was closed before an answer"
        self._connection = Connection(self._loop, sock, self._received, lambda: self._fail(closed))
        self._connection.send(
            (
                f"GET /v1/join HTTP/1.1\r\nHost: {self._host}\r\n{TOKEN_HEADER}: {self._token}\r\n"
                f"Connection: Upgrade\r\nUpgrade: {UPGRADE_PROTOCOL}\r\n\r\n"
            ).encode()
        )

    def _received(self, data: bytes) -> None:
        self._answer += data
        answer, separator, rest = self._answer.partition(b"\r\n\r\n")
        if not separator and len(answer) <= MAX_ANSWER_BYTES:
            return
        if not separator or not answer.startswith(b"HTTP/1.1 101"):
            # It answers, but not to us: it isn't an agent, or has no assignment or another token yet.
            self._fail(f"answered {answer[:40].decode('latin-1').splitlines()[0] if answer.strip() else 'nothing'!r}")
            return
        connection, self._connection = self._connection, None
        self.cancel()
        self._done(Joined(connection, rest, True, ""))

    def _fail(self, problem: str) -> None:
        if self._over:
            return
        self.cancel()
        where = f"{self._host} ({self._address or 'no address'}) port {self._port}: {problem}"
        # From the loop: hosts that fail at once would else recurse, one level for each.
        self._loop.call_later(0, lambda: self._done(Joined(None, b"", bool(self._address), where)))
