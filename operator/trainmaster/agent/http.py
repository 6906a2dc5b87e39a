"""As much of HTTP/1.1 (RFC 9112) as the agents' port needs: bounded requests with a Content-Length, plain responses."""

from __future__ import annotations

from typing import NamedTuple, Optional

MAX_HEAD_BYTES = 16_384
MAX_BODY_BYTES = 262_144
REASONS = {
    101: "Switching Protocols",
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class BadRequest(Exception):
    """A request that is answered with `status` and a sentence, and whose connection is then closed."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Request(NamedTuple):
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


def parse_request(data: bytes) -> tuple[Optional[Request], bytes]:
    """The first request in `data` and what follows it; (None, data) while it isn't complete. Raises BadRequest."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise BadRequest(431, f"the request's head is longer than {MAX_HEAD_BYTES} bytes")
    if not separator:
        return None, data
    first, *lines = head.decode("latin-1").split("\r\n")
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
    if len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise BadRequest(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    if len(rest) < int(length):
        return None, data
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" if parts[2] == "HTTP/1.1" else connection == "keep-alive"
    path = parts[1].partition("?")[0]
    return Request(parts[0], path, headers, rest[: int(length)], keep_alive), rest[int(length) :]


def response(status: int, body: str = "", content_type: str = "text/plain; charset=utf-8") -> bytes:
    """A whole response."""
    data = body.encode()
    lines = [f"HTTP/1.1 {status} {REASONS[status]}"]
    if status != 204:
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body; data must not be empty."""
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
    b"Cache-Control: no-store\r\n\r\n"
)
UPGRADE_PROTOCOL = "trainmaster/1"
UPGRADED = f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: {UPGRADE_PROTOCOL}\r\nConnection: Upgrade\r\n\r\n".encode()
