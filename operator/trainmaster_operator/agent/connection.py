"""This module provides non-blocking TCP connections with bounded buffers, JSON lines, and a limit of the read pace."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Optional

from trainmaster_operator.agent.loop import READ, WRITE, Loop
from trainmaster_operator.wire.limits import MAX_LINE_BYTES, UNSEEN_SECONDS
from trainmaster_operator.wire.stream import LineBuffer
from trainmaster_operator.wire.values import ProtocolError, loads

MAX_PENDING_BYTES = 4_194_304
"""If a peer leaves this much unread, its connection is closed. The peer reconnects and gets everything again."""
READ_BYTES = 65_536
PIECES_AT_ONCE = 16
TCP_OPTIONS = (
    (socket.TCP_NODELAY, 1),
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    # Without this option the kernel retransmits for 15 minutes, because keepalive doesn't probe a connection with
    # unacknowledged data.
    (socket.TCP_USER_TIMEOUT, UNSEEN_SECONDS * 1_000),
)


class PeerConnection:
    """PeerConnection owns a connected socket, and calls its present user's `on_data` and `on_end` from the loop.

    Data for many peers is kept only once, because the buffers hold references to the bytes.
    """

    def __init__(self, loop: Loop, sock: socket.socket, read_bytes: int = READ_BYTES) -> None:
        self._loop, self._sock = loop, sock
        self.on_data: Callable[[], object] = lambda: None
        """Called in each round of the loop in which data is waiting for `read`."""
        self.on_end: Callable[[], None] = lambda: None
        """Called once, from the loop, if the peer has closed the connection, after an error, or once all data is sent
        after `finish`. It isn't called after `close`."""
        self.read_bytes = read_bytes
        """The most bytes that one `read` returns."""
        self.most_pending = MAX_PENDING_BYTES
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._sent_of_first = 0
        self._paused = False
        self._finishing = False
        self._unread = 0
        self.closed = False
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_OPTIONS:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._watch()

    def send(self, data: bytes) -> None:
        """Send the data now, or as soon as the peer accepts it."""
        if self.closed or self._finishing or not data:
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._flush()
        if self._pending_bytes > self.most_pending:
            self._lose()

    def read(self) -> Optional[bytes]:
        """Returns the data that has arrived; None if there is none, or if reading has ended."""
        if self.closed:
            return None
        try:
            data = self._sock.recv(self.read_bytes)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._lose()
            return None
        if not self._finishing:
            return data
        self._unread -= len(data)
        if self._unread <= 0 and not self._pending:
            self._lose()
        return None

    def pause(self, seconds: float) -> None:
        """Stop reading for `seconds`, so that the peer's buffers fill up and the peer waits."""
        if not self.closed:
            self._paused = True
            self._loop.call_later(seconds, self._resume)
            self._watch()

    def finish(self, unread: int = 0) -> None:
        """Close once all data is sent.

        `unread`: the number of bytes that may still arrive before the peer closes. If this side closed before they
        arrive, the peer's kernel would discard the data that the peer hasn't read yet (RFC 9112, section 9.6).
        """
        self._finishing = True
        self._unread = unread
        if not self._pending and not self.closed:
            self._finished()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._pending.clear()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and not self.closed:
            self.on_data()

    def _flush(self) -> None:
        while self._pending:
            first = memoryview(self._pending[0])[self._sent_of_first :]
            pieces: list[bytes | memoryview] = [first, *islice(self._pending, 1, PIECES_AT_ONCE)]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                break
            except OSError:
                self._lose()
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
            self._lose()
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._lose()
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

    def _lose(self) -> None:
        if not self.closed:
            self.close()
            self._loop.call_soon(lambda: self.on_end())


MAX_BAD_LINES = 100
"""The most lines of a connection that needn't be JSON objects. Each costs an exception, and no agent sends any."""


def json_line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class JsonLines:
    """JsonLines parses a connection's lines as JSON objects. It ignores a few lines that aren't objects."""

    def __init__(self, longest: int = MAX_LINE_BYTES) -> None:
        self._lines = LineBuffer(longest)
        self._bad = 0
        self.count = 0
        """The number of lines received."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the objects that are complete now.

        Raises ProtocolError if a line doesn't end, or if too many lines aren't JSON objects.
        """
        for line in self._lines.feed(data):
            self.count += 1
            try:
                value = loads(line)
            except ValueError:
                value = None
            if isinstance(value, dict):
                yield value
                continue
            self._bad += 1
            if self._bad > MAX_BAD_LINES:
                raise ProtocolError(f"more than {MAX_BAD_LINES} lines are no JSON objects")


class Pace:
    """Pace limits the bytes read from a peer.

    Each line counts as at least LINE_BYTES, because it costs more than its length.
    """

    LINE_BYTES = 1_024

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._at = burst, now

    def spend(self, size: int, lines: int, now: float) -> float:
        """Record that this many bytes and lines were read; returns the seconds to wait before reading more."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= max(size, max(1, lines) * self.LINE_BYTES)
        return max(0.0, -self._left / self._per_second)
