"""Defines an application that limits bodies, the server that accepts connections, and a page of metrics."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from trainmaster_operator.serving.connection import PeerConnection, Places
from trainmaster_operator.wire.names import group_of

ACCEPTS_AT_ONCE = 8
"""Limit on the connections accepted before the event loop runs other tasks. It is far lower than the number of places
of an address, so that a connection is read before newer connections of its address push it out."""
BACKLOG = 1_024
SOCKET_BYTES = 65_536
"""Bytes of the kernel's buffer for each direction of a connection. The kernel uses twice as many, which count as the
container's memory. Without this limit, the buffer could grow to 6 MB."""
HANDSHAKE_SECONDS = 5.0
SHORT_SECONDS = 0.1
"""Seconds for which nothing is accepted if no file descriptor is free and no connection can be closed."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
STOP_SECONDS = 1.0
"""Seconds that `close` waits for unfinished answers. It can't wait for all of them, because live answers never end."""
BODY_SECONDS = 30.0
"""Seconds within which a body must be complete; otherwise the request is refused."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MOST_BODY = web.AppKey("most_body", int)
# The statuses for a body that is too slow, too large or compressed.
_REFUSED = (408, 413, 415)
SHARE = 10
"""A page is reused until this many times its computing time has passed since its computation began."""
SEND_SECONDS = 15.0
"""Timeout in seconds for sending a page, which stays in memory until then. Prometheus waits 10 s by default."""
PIECE_BYTES = 65_536
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def stop_event() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set. Call this in the event loop of the main thread."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


class HttpServer:
    """Serves one application, which `application` returned."""

    def __init__(
        self, app: web.Application, *, idle_seconds: float = 75.0, cancels: bool = False, places: Places | None = None
    ) -> None:
        """Creates a server. With `cancels`, a handler is cancelled when its client disconnects.

        A connection may be idle between two requests for `idle_seconds`, which is longer than proxies keep idle
        connections.
        """
        self._app = app
        self._idle_seconds = idle_seconds
        self._places = Places() if places is None else places
        self._runner = web.AppRunner(app, handler_cancellation=cancels, shutdown_timeout=STOP_SECONDS)
        self._listeners: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listens, and returns the address and the port, which is a free one if `port` is 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        # asyncio resolves the name and binds to each address.
        try:
            bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        except OSError as error:
            if error.errno is None or error.errno <= 0:
                # The host's name is unknown (getaddrinfo).
                raise
            # asyncio's message names internal calls.
            raise OSError(error.errno, os.strerror(error.errno)) from error
        self._listeners = [each.dup() for each in bound.sockets]
        bound.close()
        self._tls = tls
        await self._runner.setup()
        for listener in self._listeners:
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                # The connections inherit this option from the listener.
                listener.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BYTES)
            listener.listen(BACKLOG)
            loop.add_reader(listener, self._accept, listener)
        address: tuple[str, int] = self._listeners[0].getsockname()[:2]
        return address

    async def close(self) -> None:
        """Stops accepting connections, and ends all answers."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners = []
        for arriving in list(self._arriving):
            arriving.cancel()
        await self._runner.cleanup()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    # The peer has disconnected.
                    continue
                self._out_of_descriptors(listener)
                return
            sock.setblocking(False)
            self._let_in(sock, group_of(str(address[0])))

    def _let_in(self, sock: socket.socket, address: str) -> None:
        in_the_way = self._places.in_the_way(address)
        if in_the_way is not None:
            in_the_way.leave()
        assert self._runner.server is not None
        connection = PeerConnection(
            self._runner.server,
            address=address,
            most_body=self._app[MOST_BODY],
            idle_seconds=self._idle_seconds,
            on_lost=self._places.discard,
        )
        self._places.add(connection)
        connection.arriving = arriving = asyncio.create_task(self._arrive(connection, sock))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    async def _arrive(self, connection: PeerConnection, sock: socket.socket) -> None:
        timeout = None if self._tls is None else HANDSHAKE_SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=timeout, ssl_shutdown_timeout=timeout
            )
        except (OSError, asyncio.CancelledError):
            # The peer has disconnected, or the connection was closed for a new one. Nothing awaits this task.
            self._places.discard(connection)
            sock.close()
        finally:
            connection.arriving = None

    def _out_of_descriptors(self, listener: socket.socket) -> None:
        in_the_way = self._places.first_to_leave()
        if in_the_way is not None:
            in_the_way.leave()
            return
        # Pause listening, because the listener stays ready, and repeated wake-ups would keep a core busy.
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(SHORT_SECONDS, self._listen_again, listener)

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)


def application(*, most_body: int, middlewares: Iterable[Middleware] = ()) -> web.Application:
    """Returns an application that accepts bodies of at most `most_body` bytes, uncompressed.

    Refusals are raised as `web.HTTPException` inside the given middlewares, which can change their messages.
    """
    # For aiohttp, 0 means "no limit".
    app = web.Application(client_max_size=max(1, most_body), middlewares=[*middlewares, _bounded])
    app[MOST_BODY] = most_body
    app.on_response_prepare.append(_finish)
    return app


@web.middleware
async def _bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses a body that is compressed, too large or too slow."""
    if not request.can_read_body:
        return await handler(request)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(
            reason="Compressed bodies are not accepted", headers={"Accept-Encoding": "identity"}
        )
    most = request.app[MOST_BODY]
    if (request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=request.content_length or 0)
    late = web.HTTPRequestTimeout(reason=f"The body was not complete within {BODY_SECONDS:g} s")
    timer = asyncio.get_running_loop().call_later(BODY_SECONDS, _give_up, request, late)
    try:
        return await handler(request)
    finally:
        timer.cancel()


def _give_up(request: web.Request, late: web.HTTPException) -> None:
    if not request.content.is_eof():
        request.content.set_exception(late)


async def _finish(request: web.Request, response: web.StreamResponse) -> None:
    """Closes the connection if the body wasn't read completely, and removes the Server header."""
    if response.status in _REFUSED or not request.content.is_eof():
        response.force_close()
        response.headers["Connection"] = "close"
    response.headers.pop("Server", None)
    if isinstance(request.protocol, PeerConnection):
        request.protocol.answered(request.content)


class Exposition:
    """Computes one page at a time, and answers any number of requests with that page."""

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._page = b""
        self._until = 0.0
        self._making: asyncio.Task[bytes] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Sends the page piece by piece, so that only one unread piece is buffered."""
        page = memoryview(await self._current())
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Content-Length": str(len(page))})
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            for start in range(0, len(page), PIECE_BYTES):
                await response.write(page[start : start + PIECE_BYTES])
            await response.write_eof()
        return response

    async def _current(self) -> bytes:
        if time.monotonic() < self._until:
            return self._page
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make_page())
        # If a client disconnects, the other clients still get the page.
        return await asyncio.shield(self._making)

    async def _make_page(self) -> bytes:
        begun = time.monotonic()
        self._page = await self._make()
        ended = time.monotonic()
        self._until = ended + (SHARE - 1) * (ended - begun)
        return self._page
