"""A non-blocking TCP connection with bounded buffers, and the lines that come over it."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from trainmaster.agent.loop import READ, WRITE, Loop

MAX_PENDING_BYTES = 4_194_304
"""A peer that leaves so much unread is dropped: it comes back and gets everything again."""
READ_BYTES = 65_536
MAX_LINE_BYTES = 65_536
MAX_ASSIGNMENT_LINE_BYTES = 262_144
MAX_STRANGE_LINES = 100
"""Lines of one connection that are no JSON object; each costs an exception, and a newer agent sends none."""
PIECES_AT_ONCE = 16
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))


class Connection:
    """Owns a connected socket. `on_close` is called once, when the peer, an error or what was left to send after
    `finish` ends it; not after `close`.

    What is sent to many is kept once for all of them: the bytes are referred to until they have gone out.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_data: Callable[[bytes], None],
        on_close: Callable[[], None],
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self.on_data = on_data
        self.on_close = on_close
        self.read_bytes = read_bytes
        """What is read at once."""
        self.most_pending = MAX_PENDING_BYTES
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._sent_of_first = 0
        self._paused = False
        self._finishing = False
        self._unread = 0
        self.closed = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._watch()

    def send(self, data: bytes) -> None:
        """Send, now or when the peer takes it."""
        if self.closed or self._finishing or not data:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._flush()
        if self._pending_bytes > self.most_pending:
            self._lost()

    def send_line(self, data: dict[str, Any]) -> None:
        """Send one object as a line of JSON."""
        self.send(json_line(data))

    def read(self) -> None:
        """Take in what has arrived, without waiting for the loop."""
        if not self.closed:
            self._ready(READ)

    def pause(self, seconds: float) -> None:
        """Read nothing for so long: the peer's own buffers fill up, and it waits."""
        self._paused = True
        self._loop.call_later(seconds, self._resume)
        self._watch()

    def finish(self, unread: int = 0) -> None:
        """Close when all that was sent has gone out.

        `unread`: so many bytes at most may still come, and the peer closes after it has sent them: who closes before
        makes the peer's kernel throw away what it hasn't read yet (RFC 9112, section 9.6).
        """
        self._finishing = True
        self._unread = unread
        if not self._pending:
            self._finished()

    def close(self) -> None:
        """Close now."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._pending.clear()

    def _ready(self, events: int) -> None:
        if events & READ:
            try:
                data = self._sock.recv(self.read_bytes)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            if not self._finishing:
                self.on_data(data)
            else:
                self._unread -= len(data)
                if self._unread <= 0 and not self._pending:
                    self._lost()
        if events & WRITE and not self.closed:
            self._flush()

    def _flush(self) -> None:
        while self._pending:
            first = memoryview(self._pending[0])[self._sent_of_first :]
            pieces: list[bytes | memoryview] = [first, *islice(self._pending, 1, PIECES_AT_ONCE)]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                break
            except OSError:
                self._pending.clear()
                self._pending_bytes = 0
                # Told from the loop, never from within the caller's `send`.
                self._loop.call_later(0, self._lost)
                return
            self._pending_bytes -= sent
            self._sent_of_first += sent
            while self._pending and self._sent_of_first >= len(self._pending[0]):
                self._sent_of_first -= len(self._pending.popleft())
        if self._finishing and not self._pending:
            self._finished()
            return
        self._watch()

    def _finished(self) -> None:
        if self._unread <= 0:
            self._lost()
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._lost()
            return
        self._watch()

    def _watch(self) -> None:
        events = (0 if self._paused else READ) | (WRITE if self._pending else 0)
        if events:
            self._loop.watch(self._sock.fileno(), events, self._ready)
        else:
            self._loop.unwatch(self._sock.fileno())

    def _resume(self) -> None:
        self._paused = False
        if not self.closed:
            self._watch()

    def _lost(self) -> None:
        if not self.closed:
            self.close()
            self.on_close()


class Pace:
    """How fast a peer may be heard: `burst` bytes at once, then `per_second`; every read and every line counts as
    LINE_BYTES at least, because most of its cost is not in its length."""

    LINE_BYTES = 1_024

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at = time.monotonic()

    def spend(self, size: int, lines: int) -> float:
        """Seconds to wait before more is read, after so many bytes and lines; 0: none."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= max(size, max(1, lines) * self.LINE_BYTES)
        return max(0.0, -self._left / self._per_second)


class BrokenLines(Exception):
    """What comes are no lines of JSON objects: one has no end, or many are something else."""


class Lines:
    """Splits bytes into lines of JSON. A few that are no object are passed over; else it is BrokenLines."""

    def __init__(self, longest: int = MAX_LINE_BYTES) -> None:
        self._longest = longest
        self._rest = b""
        self._strange = 0
        self.count = 0
        """Lines that have come."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The objects that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            raise BrokenLines
        for line in lines:
            self.count += 1
            if len(line) > self._longest:
                raise BrokenLines
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                yield value
                continue
            self._strange += 1
            if self._strange > MAX_STRANGE_LINES:
                raise BrokenLines


def json_line(data: dict[str, Any]) -> bytes:
    """One object as a line."""
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"
