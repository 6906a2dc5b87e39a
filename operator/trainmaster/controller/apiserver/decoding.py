"""kopf's answers from the API server are decoded so that one object that can't be decoded costs only itself.

A real API server takes objects 10,000 levels deep, at which Python's decoder gives up a whole page or watch. Reading
such a page one by one wouldn't be enough: a list of metadata holds managed fields, as deep as what they manage. So
`api.decoding.decode` leaves out what is deeper than any legal job, which is then refused with a sentence.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from trainmaster.api.decoding import SURE_DIGITS, decode
from trainmaster.api.printable import one_line

logger = logging.getLogger(__name__)

# Levels that Python's decoder surely takes, with the frames that stand on the stack when it is called.
SURE_DEPTH = 700
_LONG_NUMBER = re.compile(rb"\d{%d}" % SURE_DIGITS)


class Response(aiohttp.ClientResponse):
    """Decodes an answer for kopf, whose own decoding would end all watching at one object that it can't decode.

    kopf reads a list by `json`, and a watch by `content.iter_chunked`.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        started = await super().start(connection)
        if self.url.query.get("watch") == "true":
            self.content = _Lines(self.content)  # type: ignore[assignment]
        return started

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = decode,
        content_type: str | None = "application/json",
    ) -> Any:
        return await super().json(encoding=encoding, loads=loads, content_type=content_type)


class _Lines:
    """Yields a watch's content in whole lines, each of which `json.loads` decodes."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in self._content.iter_chunked(size):
            rest += chunk
            end = rest.rfind(b"\n") + 1
            if end:
                lines = bytes(rest[:end])
                del rest[:end]
                yield b"".join(decodable(line) for line in lines.splitlines(keepends=True))
        if rest:
            yield decodable(bytes(rest))


def decodable(line: bytes) -> bytes:
    """Returns a line of a watch as it is, or, where `json.loads` may fail at it, as `decode` sees it."""
    if line.count(b"[") + line.count(b"{") <= SURE_DEPTH and not _LONG_NUMBER.search(line):
        return line
    try:
        return json.dumps(decode(line)).encode() + b"\n"
    except ValueError as error:
        # kopf would end at it; the next sweep reads what it was about.
        logger.warning("A line of %d bytes of a watch can't be decoded: %s", len(line), one_line(str(error)[:300]))
        return b""
