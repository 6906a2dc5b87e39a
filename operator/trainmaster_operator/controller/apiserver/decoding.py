"""Answers of the API server are decoded as they come, so that large and strange objects cost nobody anything.

Of each object only what its type keeps (`kept`) is ever in memory; the rest is passed over, piece by piece. A real API
server also takes objects 10,000 levels deep, at which Python's decoder gives up a whole page or watch: of such a field
`api.decoding` keeps fewer levels, more than any legal job has, so that the job is refused with a sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from trainmaster_operator.api.json_codec import decode_shallow
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.trimming import PIECE, Trimmer
from trainmaster_operator.controller.apiserver.kept import Fields, listed, watched

logger = logging.getLogger(__name__)


async def decoded(content: aiohttp.StreamReader, kept: Fields | None) -> Any:
    """Returns an answer's document, trimmed to `kept`; None keeps everything. Raises ValueError for no JSON."""
    if kept is None:
        raw = await content.read()
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            # In a thread, which lets go of the interpreter: megabytes of brackets would hold up all other jobs.
            return await asyncio.to_thread(decode_shallow, raw)
    trimmer, pieces = Trimmer(kept), 0
    found: list[Any] = []
    async for piece in content.iter_chunked(PIECE):
        pieces += 1
        # A large one in a thread, which lets go of the interpreter.
        found += trimmer.feed(piece) if pieces == 1 else await asyncio.to_thread(trimmer.feed, piece)
    found += trimmer.end() if pieces < 2 else await asyncio.to_thread(trimmer.end)
    document = found[0] if found else ValueError("it is empty")
    if isinstance(document, ValueError):
        raise document
    return document


def response_class(kept_at: Callable[[str], Fields | None]) -> type[aiohttp.ClientResponse]:
    """Returns how kopf's session decodes answers. `kept_at`: what is kept of objects that a path lists or watches.

    kopf reads a list by `json`, and a watch by `content.iter_chunked`.
    """

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            started = await super().start(connection)
            kept = kept_at(self.url.path)
            if self.status == 200 and kept is not None and self.url.query.get("watch") == "true":
                self.content = _Lines(self.content, kept)  # type: ignore[assignment]
            return started

        async def json(self, **options: Any) -> Any:
            kept = kept_at(self.url.path)
            if self.status != 200 or kept is None:
                return await super().json(**options)
            return await decoded(self.content, listed(kept))

    return Response


class _Lines:
    """Yields a watch's content in whole lines, each of which `json.loads` decodes."""

    def __init__(self, content: aiohttp.StreamReader, kept: Fields) -> None:
        self._content = content
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        del size
        trimmer = Trimmer(watched(self._kept))
        async for piece in self._content.iter_chunked(PIECE):
            for document in trimmer.feed(piece):
                yield _line(document)
            await asyncio.sleep(0)
        for document in trimmer.end():
            yield _line(document)


def _line(document: Any) -> bytes:
    if isinstance(document, ValueError):
        # kopf would end at it; the next sweep reads what it was about.
        logger.warning("A line of a watch can't be decoded: %s", one_line(str(document)[:300]))
        return b""
    return json.dumps(document).encode() + b"\n"
