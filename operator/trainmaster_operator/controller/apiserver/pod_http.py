"""Sends HTTP requests to pods, whose answers aren't trusted.

A pod runs users' code. Its answers reach the operator directly, or through the API server's pod proxy, which doesn't
change them. Therefore:

- Redirects aren't followed: a pod could direct the operator's requests to any address in the operator's network.
- Content encodings aren't decoded: 1 MB of gzip can become 1 GiB.
- Cookies aren't kept: through the proxy, every later request would send them to the API server.
- Connections aren't reused, and every read has a limit, so an answer needs only a small buffer. After every piece, the
  reader yields to the event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import aiohttp

from trainmaster_operator.controller.apiserver.errors import (
    ClusterError,
    Silent,
    Unreachable,
    Untrusted,
    Unusable,
    from_response,
)

# Sent with every request, so that answers aren't encoded.
IDENTITY: Mapping[str, str] = {"Accept-Encoding": "identity"}
# Bytes of a body that are passed on at a time, and the limit on reading ahead.
PIECE = 8_192
# Limits on the bytes of an error's body. A pod's body is shown in a message; the API server's is a Status with causes.
POD_ERROR_BYTES, API_ERROR_BYTES = 4_096, 256 * 1024
# Timeouts in seconds for a pod's complete response head, and for silence on its stream (which has a ping every 5 s).
HEAD_SECONDS = 5.0
SILENCE_SECONDS = 15.0
# Limits on the bytes received without a result. The limit for heads stops endless heads and repeated interim heads.
# Through the API server's proxy, that limit is higher, because the proxy's certificates arrive first. The limit for
# bodies allows six bytes of framing for each byte of content that is read ahead.
VAIN_HEAD_BYTES, PROXIED_HEAD_BYTES, VAIN_BODY_BYTES = 8_192, 65_536, 131_072
# Bytes of a head that are read at a time. Each read is parsed at once, and parsing an empty head takes 0.06 ms.
HEAD_PIECE = 512


@dataclass
class _Received:
    """Counts the bytes received over a connection, in total and since data was last passed on."""

    most_in_vain: int = VAIN_HEAD_BYTES
    at_a_time: int = HEAD_PIECE
    total: int = 0
    in_vain: int = 0

    def begin_body(self) -> None:
        self.most_in_vain, self.at_a_time, self.in_vain = VAIN_BODY_BYTES, PIECE, 0

    @property
    def too_much(self) -> bool:
        return self.in_vain > self.most_in_vain

    def count(self, size: int) -> None:
        self.total += size
        self.in_vain += size
        if self.too_much:
            raise ConnectionAbortedError("too much came of which nothing follows")


# The byte counter of the request whose connection is being opened.
_received: ContextVar[_Received] = ContextVar("received")


class _PodSocket(socket.socket):
    """Reads at most a small piece at a time, whatever size is requested, and counts the bytes."""

    received: _Received

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(min(size, self.received.at_a_time), flags)
        self.received.count(len(data))
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0, /) -> int:
        size = super().recv_into(buffer, min(size or len(buffer), self.received.at_a_time), flags)
        self.received.count(size)
        return size


class PodHttp:
    """Sends requests to pods on separate connections, so that pods can't affect connections to the API server."""

    def __init__(
        self, *, ssl: SSLContext | bool = True, trust_env: bool = False, most_of_head: int = VAIN_HEAD_BYTES
    ) -> None:
        self._ssl = ssl
        self._trust_env = trust_env
        self._most_of_head = most_of_head
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        request: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_seconds: float,
        **way: Any,
    ) -> AsyncIterator[PodStream]:
        """Yields an open answer with a successful status. Raises ClusterError.

        `request` names the request in errors; `way` contains aiohttp's arguments for a proxy.
        """
        if self._session is None:
            self._session = self._made()
        limits = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=SILENCE_SECONDS)
        received = _Received(self._most_of_head)
        _received.set(received)
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                response = await self._session.request(
                    method,
                    url,
                    headers={**headers, **IDENTITY, "Content-Type": "application/json"},
                    data=body,
                    timeout=limits,
                    allow_redirects=False,
                    **way,
                )
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise Silent(request, f"no answer within {HEAD_SECONDS:g} s") from error
            raise _error(request, error, received) from error
        received.begin_body()
        try:
            await refuse_unasked(response, request, POD_ERROR_BYTES, received)
            yield PodStream(response, request, received)
        finally:
            response.close()

    def _made(self) -> aiohttp.ClientSession:
        # Connections aren't limited, because each running job has one open stream.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._ssl, socket_factory=_socket)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=PIECE,
            trust_env=self._trust_env,
        )


@dataclass(eq=False)
class PodStream:
    """Reads an open answer from a pod's port or from the API server, in chunks."""

    _response: aiohttp.ClientResponse
    _request: str
    _received: _Received = field(default_factory=_Received)

    @property
    def received(self) -> int:
        """Returns the number of bytes received so far, including framing."""
        return self._received.total

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yields the body until the other side ends it. Raises Unreachable if the connection breaks."""
        # A head is read in small pieces, and the last piece contains a little of the body. Before this is passed on,
        # the event loop runs twice: first it finds more data, then it reads the data. So a leader's hello is passed on
        # together with the reports behind it; otherwise passes could decide between the two chunks.
        for _ in range(2):
            await asyncio.sleep(0)
        try:
            async for chunk in self._response.content.iter_chunked(PIECE):
                self._received.in_vain = 0
                yield chunk
                # Reading buffered data doesn't yield to the event loop, so yield here.
                await asyncio.sleep(0)
        except (aiohttp.ClientError, OSError) as error:
            raise _error(self._request, error, self._received) from error


async def refuse_unasked(
    response: aiohttp.ClientResponse, request: str, error_bytes: int, received: _Received | None = None
) -> None:
    """Raises ClusterError for an answer that isn't a success or has an unrequested form."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise Unusable(request, f"an answer in the content encoding {encoding[:40]!r}, and none is accepted")
    if not 200 <= response.status < 300:
        body = await bounded_body(response, request, error_bytes, received)
        raise from_response(request, response.status, response.headers, body)


async def bounded_body(
    response: aiohttp.ClientResponse, request: str, limit: int, received: _Received | None = None
) -> bytes:
    """Returns at most the first `limit` bytes of a body. Raises ClusterError."""
    body = bytearray()
    async for chunk in PodStream(response, request, received or _Received()).chunks():
        body += chunk
        if len(body) >= limit:
            break
    return bytes(body[:limit])


def unreachable(request: str, error: BaseException) -> Unreachable:
    """Converts a connection's error, because aiohttp's timeouts have no text and its other errors quote the answer."""
    kind: type[Unreachable] = Silent if isinstance(error, aiohttp.SocketTimeoutError) else Unreachable
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        kind = Untrusted
        reason = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        text = f"the certificate of {error.host}:{error.port} can't be verified: {reason}"
    elif isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        reason = os.strerror(number) if number is not None and number > 0 else error.os_error.strerror
        text = f"no connection to {error.host}:{error.port}: {reason or error.os_error}"
    return kind(request, text[:300])


def _error(request: str, error: BaseException, received: _Received) -> ClusterError:
    if received.too_much:
        return Unusable(request, f"{received.most_in_vain} bytes and nothing that follows from them")
    return unreachable(request, error)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = _PodSocket(family, kind, protocol)
    made.received = _received.get()
    made.setblocking(False)
    return made
