"""Limits the number of connections, and the data that a peer may send before it gets an answer or may leave unread.

A new connection is always accepted; if there is no room, another connection is closed. No place is reserved for the
kubelet's probes, because their addresses aren't known. The limit for one address only concerns connections that wait
for a complete request, because all viewers behind a proxy have the same address.

Such waiting connections are closed first, from the address that has the most of them. Among these, connections that
have had an answer are closed before those without one, so that incomplete requests push out no other client. Among
equal connections, the oldest is closed first. If no connection is waiting, the oldest connection of the address with
the most connections is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from aiohttp import StreamReader, web

from trainmaster_operator.serving.logs import server_log

MAX_FIELD = 16_384
"""Limit on the bytes of one header. The longest headers contain tokens of identity providers with many groups."""
MAX_HEAD = 32_768
"""Limit on the bytes of a request's line and all headers; aiohttp alone would accept 128 headers of MAX_FIELD bytes."""
HEAD_SECONDS = 10.0
"""Seconds within which a request's head must be complete; otherwise the request is refused."""
SLACK = 262_144
"""Bytes that a peer may send in addition to a request's head and body, because asyncio reads so many at once."""
LINGER_SECONDS = 1.0
"""Seconds for which an unwanted body is read and dropped, so that its sender can read the answer."""
WRITE_SECONDS, LEAST_WRITTEN = 15.0, 65_536
"""If a peer reads fewer bytes of its answer than LEAST_WRITTEN in WRITE_SECONDS, the connection is closed."""
MOST_UNSENT = 16_384
"""Bytes buffered for a slow peer, in addition to the kernel's buffer. If there are more, the handler waits."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
MAX_CONNECTIONS = 256
MAX_WAITING_OF_ADDRESS = 192


class PeerConnection(web.RequestHandler):
    """Handles a peer's connection, which has a place in `Places` from its acceptance to its loss."""

    def __init__(
        self,
        manager: web.Server,
        *,
        address: str,
        most_body: int,
        idle_seconds: float,
        on_lost: Callable[[PeerConnection], None],
    ) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=idle_seconds,
            access_log=None,  # type: ignore[arg-type]
            logger=server_log(),
            max_field_size=MAX_FIELD,
            lingering_time=LINGER_SECONDS,
            # By default, aiohttp decompresses a body before the request's path is checked, and a megabyte may become a
            # gigabyte.
            auto_decompress=False,
        )
        self.address = address
        self.arriving: asyncio.Future[Any] | None = None
        """A future that is done once aiohttp has the connection. With TLS, that is after the handshake."""
        self._most = most_body + MAX_HEAD + SLACK
        self._on_lost = on_lost
        self._received = 0
        """Bytes received since the previous answer began."""
        self._answered: StreamReader | None = None
        """The body of the last request, set when the answer begins."""
        self._open: asyncio.Transport | None = None
        """The transport, until the connection is lost. aiohttp drops its own reference when it begins to close."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def is_waiting(self) -> bool:
        """Returns whether no complete request is being answered, so that closing the connection does no harm."""
        if self._awaits_head():
            return True
        # aiohttp drops the request before the answer is sent, and before the rest of the body is read and dropped.
        body = self._answered if self._current_request is None else self._current_request.content
        return body is not None and not body.is_eof()

    def has_answer(self) -> bool:
        """Returns whether an answer to the last request has at least begun."""
        return self._answered is not None

    def answered(self, body: StreamReader) -> None:
        """Records the beginning of an answer; data after this body then belongs to the next request."""
        self._received = 0
        self._answered = body

    def leave(self) -> None:
        """Closes the connection at once."""
        self._on_lost(self)
        if self._open is not None:
            self._open.abort()
        elif self.arriving is not None:
            self.arriving.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._open = cast(asyncio.Transport, transport)
        self._open.set_write_buffer_limits(high=MOST_UNSENT)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open = None
        self._on_lost(self)
        self._stop_head_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        awaited_head = self._awaits_head()
        super().data_received(data)
        if self.transport is None:
            return
        if not self._awaits_head():
            self._stop_head_timer()
            if awaited_head:
                self._answered = None
            if self._received > self._most:
                self.force_close()
        elif self._received > MAX_HEAD:
            self._refuse(_TOO_LARGE)
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._refuse, _TOO_SLOW)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _watch_writing(self) -> None:
        if self._open is not None:
            unread = self._open.get_write_buffer_size()
            self._write_timer = self._loop.call_later(WRITE_SECONDS, self._require_reader, unread)

    def _require_reader(self, unread: int) -> None:
        if self._open is not None and self._open.get_write_buffer_size() > unread - LEAST_WRITTEN:
            self.leave()
        else:
            self._watch_writing()

    def _awaits_head(self) -> bool:
        return self.transport is None or (self._waiter is not None and not self._waiter.done())

    def _refuse(self, answer: bytes) -> None:
        self._head_timer = None
        if self.transport is not None and self._awaits_head():
            self.transport.write(answer)
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Places:
    """Holds the open connections in the order of arrival."""

    def __init__(self, most: int = MAX_CONNECTIONS, most_waiting: int = MAX_WAITING_OF_ADDRESS) -> None:
        self._most, self._most_waiting = most, most_waiting
        self.held: dict[PeerConnection, None] = {}

    def add(self, place: PeerConnection) -> None:
        """Adds a connection."""
        self.held[place] = None

    def discard(self, place: PeerConnection) -> None:
        """Removes a connection, if it is held."""
        self.held.pop(place, None)

    def in_the_way(self, address: str) -> PeerConnection | None:
        """Returns the connection to close before `address` gets another connection; None if there is room."""
        if len(self.held) >= self._most:
            return self.first_to_leave()
        if len(self.held) < self._most_waiting:
            return None
        waiting = [place for place in self.held if place.address == address and place.is_waiting()]
        if len(waiting) < self._most_waiting:
            return None
        return next((place for place in waiting if place.has_answer()), waiting[0])

    def first_to_leave(self) -> PeerConnection | None:
        """Returns the connection to close first, or None.

        It belongs to the address with the most connections. If connections are waiting, only those are considered.
        """
        candidates = [place for place in self.held if place.is_waiting()] or list(self.held)
        of_address = Counter(place.address for place in candidates)
        return max(candidates, key=lambda place: (of_address[place.address], place.has_answer()), default=None)
