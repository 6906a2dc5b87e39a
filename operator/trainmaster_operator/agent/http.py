"""This module implements the part of HTTP/1.1 (RFC 9112) that the agents' port needs.

Requests are bounded and have a Content-Length. A connection carries only one request, because kube-apiserver uses the
same connection to a pod for several users of `pods/proxy`. If a token authorized the whole connection, it would also
admit the next user.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES

MAX_HEAD_BYTES = 8_192
MAX_HEAD_PIECES = 64
"""The most reads for one head, so that a client that sends it byte by byte costs little. Clients need one or two."""
HEAD_END = b"\r\n\r\n"


class BadRequest(Exception):
    """BadRequest makes the server answer with `status` and a message, and close the connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(NamedTuple):
    """Head is the part of a request before its body; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    length: int
    """Bytes of the body."""


class Request:
    """Request reads a connection's request.

    It parses the head once, before the body has arrived, because the token in the head decides whether to wait for the
    body.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._pieces = 0
        self._head: Optional[Head] = None

    @property
    def begun(self) -> bool:
        return bool(self._buffer) or self._head is not None

    @property
    def missing(self) -> int:
        return 0 if self._head is None else max(0, self._head.length - len(self._buffer))

    def feed(self, data: bytes) -> None:
        self._buffer += data
        self._pieces += 1

    def head(self) -> Optional[Head]:
        """Returns the head, or None if it isn't complete. Raises BadRequest."""
        if self._head is None:
            # Search only the new bytes and the three before them, which may contain the beginning of the head's end.
            end = self._buffer.find(HEAD_END, max(0, self._searched - len(HEAD_END) + 1))
            self._searched = len(self._buffer)
            if (self._searched if end < 0 else end) > MAX_HEAD_BYTES:
                raise BadRequest(431, f"the request's head is longer than {MAX_HEAD_BYTES} bytes")
            if end < 0:
                if self._pieces >= MAX_HEAD_PIECES:
                    raise BadRequest(408, f"the request's head arrived in more than {MAX_HEAD_PIECES} pieces")
                return None
            self._head = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(HEAD_END)]
        return self._head

    def body(self) -> Optional[bytes]:
        length = 0 if self._head is None else self._head.length
        return bytes(self._buffer[:length]) if len(self._buffer) >= length else None

    def rest(self) -> bytes:
        return bytes(self._buffer[0 if self._head is None else self._head.length :])


def parse_head(data: bytes) -> Head:
    """Parse a request's head, without the empty line that ends it. Raises BadRequest."""
    first, *lines = data.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or not parts[1].startswith("/") or parts[2][:7] != "HTTP/1.":
        raise BadRequest(400, "the request line is not `METHOD /path HTTP/1.1`")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, "a header line is not `name: value`")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise BadRequest(411, "send a Content-Length instead of a Transfer-Encoding")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise BadRequest(400, "Content-Length is not a whole number")
    if len(length) > 9 or int(length) > MAX_ASSIGNMENT_BYTES:
        raise BadRequest(413, f"the body is longer than {MAX_ASSIGNMENT_BYTES} bytes")
    return Head(parts[0], parts[1].partition("?")[0], headers, int(length))


def response(status: int, body: str = "", content_type: str = "text/plain; charset=utf-8") -> bytes:
    """Returns a complete response that ends the connection."""
    # Imported here, because it isn't needed for an agent's start.
    from http import HTTPStatus

    data = body.encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Connection: close"]
    if status != 204:
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
    b"Cache-Control: no-store\r\nConnection: close\r\n\r\n"
)
UPGRADE_PROTOCOL = "trainmaster/1"
UPGRADED = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: {UPGRADE_PROTOCOL}\r\nConnection: Upgrade\r\n\r\n".encode()
