"""A non-blocking TCP connection with bounded buffers, and the lines that come over it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

from trainmaster.agent.loop import READ, WRITE, Loop

MAX_PENDING_BYTES = 4_194_304
"""A peer that leaves so much unread is dropped: it comes back and gets everything again."""
MAX_LINE_BYTES = 65_536
MAX_ASSIGNMENT_LINE_BYTES = 262_144
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))


class Connection:
    """Owns a connected socket. `on_close` is called once, when the peer or an error ends it, not after `close`."""

    def __init__(
        self, loop: Loop, sock: socket.socket, on_data: Callable[[bytes], None], on_close: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._sock = sock
        self.on_data = on_data
        self.on_close = on_close
        self._pending = bytearray()
        self._finishing = False
        self.closed = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        loop.watch(sock.fileno(), READ, self._ready)

    def send(self, data: bytes) -> None:
        """Send, now or when the peer takes it."""
        if self.closed or self._finishing:
            return
        self._pending += data
        self._flush()
        if len(self._pending) > MAX_PENDING_BYTES:
            self._lost()

    def send_line(self, data: dict[str, Any]) -> None:
        """Send one object as a line of JSON."""
        self.send(json_line(data))

    def finish(self) -> None:
        """Close when all that was sent has gone out."""
        self._finishing = True
        if not self._pending:
            self.close()

    def close(self) -> None:
        """Close now."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def _ready(self, events: int) -> None:
        if events & READ:
            try:
                data = self._sock.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            self.on_data(data)
        if events & WRITE and not self.closed:
            self._flush()

    def _flush(self) -> None:
        while self._pending:
            try:
                sent = self._sock.send(self._pending[:262_144])
            except BlockingIOError:
                break
            except OSError:
                self._pending.clear()
                # Told from the loop, never from within the caller's `send`.
                self._loop.call_later(0, self._lost)
                return
            del self._pending[:sent]
        if self._finishing and not self._pending:
            self.close()
            return
        self._loop.watch(self._sock.fileno(), READ | WRITE if self._pending else READ, self._ready)

    def _lost(self) -> None:
        if not self.closed:
            self.close()
            self.on_close()


class TooLong(Exception):
    """A line without an end."""


class Lines:
    """Splits bytes into lines of JSON. What isn't an object is passed over; a line without an end is TooLong."""

    def __init__(self, longest: int = MAX_LINE_BYTES) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The objects that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            raise TooLong
        for line in lines:
            if len(line) > self._longest:
                raise TooLong
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def json_line(data: dict[str, Any]) -> bytes:
    """One object as a line."""
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"
