"""The API server's JSON as Python's values: one object that can't be decoded costs only itself.

A real API server takes objects 10,000 levels deep (encoding/json); Python's decoder stops below 1,000 of 3.11's own
frames, and deeper in newer versions, with a RecursionError for the whole page of a list. Reading such a page one by one
isn't enough: a list of metadata holds managed fields, which are as deep as what they manage. So an answer that can't
be decoded is decoded to MAX_DEPTH levels, with null for what is deeper: further down than any legal job reaches
(`api.limits`), so that the job is refused with a sentence, and all that is beside it in the page is whole.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp

from trainmaster.api.printable import one_line

logger = logging.getLogger(__name__)

# Levels that are kept of what is too deep to decode: more than a job may have, and few enough for any recursion.
MAX_DEPTH = 100
# Levels that Python's decoder surely takes, with the frames that stand on the stack when it is called.
SURE_DEPTH = 700
# Digits of a whole number that Python converts (sys.get_int_max_str_digits is 4,300 at least).
SURE_DIGITS = 640
_LONG_NUMBER = re.compile(rb"\d{%d}" % SURE_DIGITS)
# Strings, so that brackets in them don't count, and brackets.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def decode(raw: bytes | str) -> Any:
    """`json.loads` that takes any depth and any number. Raises json.JSONDecodeError for what isn't JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        whole = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
        return json.loads("".join(_shallow(whole)), parse_int=_integer)


def _shallow(document: str) -> Iterator[str]:
    """The document with null in place of everything below MAX_DEPTH."""
    depth = kept = 0
    for token in _TOKENS.finditer(document):
        match token[0][0]:
            case "[" | "{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    yield document[kept : token.start()]
            case "]" | "}":
                if depth == MAX_DEPTH + 1:
                    yield "null"
                    kept = token.end()
                depth -= 1
    if depth <= MAX_DEPTH:
        yield document[kept:]


def _integer(digits: str) -> int | float:
    # float() takes any number of digits, and answers infinity, which no reader takes for a value.
    return int(digits) if len(digits) <= SURE_DIGITS else float(digits)


class Response(aiohttp.ClientResponse):
    """An answer to kopf, whose own decoding would end with one object that it can't decode, and all watching with it.

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
    """A watch's content in whole lines, each of which `json.loads` decodes."""

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
    """A line of a watch as it is, or, where `json.loads` may fail at it, as `decode` sees it."""
    if line.count(b"[") + line.count(b"{") <= SURE_DEPTH and not _LONG_NUMBER.search(line):
        return line
    try:
        return json.dumps(decode(line)).encode() + b"\n"
    except ValueError as error:
        # kopf would end at it; the next sweep reads what it was about.
        logger.warning("A line of %d bytes of a watch can't be decoded: %s", len(line), one_line(str(error)[:300]))
        return b""
