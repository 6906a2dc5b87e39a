"""Sends a viewer's requests to the API server with the viewer's token, and limits the answers' size as they arrive.

Objects are trimmed to the fields in `shapes`, and long lines of logs are cut. Nothing is decompressed, because a pod
behind the API server's proxy could send an answer whose decompressed size is huge.
"""

from __future__ import annotations

import asyncio
import copy
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

import aiohttp

from trainmaster.client.answers import Answer, Reader
from trainmaster.client.asynchronous import AiohttpTransport, TaskMerger
from trainmaster.client.server import Server
from trainmaster.client.time_order import Merger
from trainmaster.client.transport import READ_SECONDS, RequestOptions
from trainmaster.dashboard.shapes import RECORDED_JOB, Fields, answer_shape, item_shape
from trainmaster.dashboard.streams import dumps
from trainmaster.dashboard.tenants import Tenant
from trainmaster_operator.api.trimming import Trimmer, Whole
from trainmaster_operator.wire.values import mapping

T = TypeVar("T")
# Maximum bytes kept of one answer, and of all answers for a diagnosis. If a list is larger, its first objects are kept,
# and the list is marked as cut.
MOST_KEPT, MOST_DIAGNOSED = 4 * 2**20, 16 * 2**20
# Bytes of memory that an object, and each value in it, need besides their text.
OBJECT_BYTES, VALUE_BYTES = 300, 80
# Bytes that are read at a time. Answers of at most SMALL bytes don't wait for other tenants.
PIECE, SMALL = 16_384, 16_384
# Maximum bytes of a log's line, including its time and rank.
MOST_LOG_BYTES = 10_000
# Maximum bytes of an agent's metrics.
MOST_METRICS = 262_144
# Maximum bytes of a history's answer.
MOST_HISTORY = 6 * 2**20
_RECORDED_JOB = re.compile(r"/v1/namespaces/[^/]+/jobs/[^/]+$")
# Key in a list's metadata that marks it as cut here.
CUT = "cut"


class BoundedTransport(AiohttpTransport):
    """BoundedTransport reads answers up to a maximum size, without decompressing them."""

    session_options = MappingProxyType(
        {"headers": {"Accept-Encoding": "identity"}, "auto_decompress": False, "read_bufsize": PIECE}
    )
    most_bytes = MOST_HISTORY


class HistoryTransport(BoundedTransport):
    """HistoryTransport reads a history. It trims recorded jobs too, because the history keeps whole objects."""

    async def _whole(self, response: aiohttp.ClientResponse, cut_at: float = math.inf) -> Answer:
        """Returns an answer. If it contains a recorded job, the job is trimmed. Raises NoCluster."""
        found = await super()._whole(response, cut_at)
        if not _RECORDED_JOB.search(response.url.path) or found.status != 200:
            return found
        trimmer, documents = Trimmer(RECORDED_JOB), []
        for piece in _pieces(found.body):
            documents += trimmer.feed(piece)
            await asyncio.sleep(0)
        kept = next(iter(documents + trimmer.end()), None)
        return Answer(found.status, found.headers, dumps(kept).encode()) if isinstance(kept, dict) else found


class ViewerTransport(BoundedTransport):
    """ViewerTransport reads for one viewer. The viewer's tenant takes turns with other tenants."""

    def __init__(self, server: Server, connector: aiohttp.BaseConnector, tenant: Tenant) -> None:
        super().__init__(server, connector, reader=Reader(server.address))
        self.tenant = tenant
        # Bytes of memory that all further answers together may use.
        self._left = math.inf

    def for_diagnosis(self) -> ViewerTransport:
        """Returns a copy of the transport with one limit for all its answers. The copy needn't be closed."""
        found = copy.copy(self)
        found._left = MOST_DIAGNOSED
        return found

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Any:
        """Sends one request and returns the kept part of the answer. Raises a ClientError."""
        if method == "POST":
            return await super().request(method, path, **options)
        items = Items(min(self._left, MOST_KEPT))
        shape = answer_shape(path, options.get("query") or {}, items.take)
        response = await self._send(method, path, READ_SECONDS, **options)
        found = await self._trimmed(response, shape)
        if "items" in found:
            found["items"] = items.kept
        if items.is_cut:
            found.setdefault("metadata", {})["continue"] = CUT
        self._left -= items.weight if "items" in found else _weight(found)
        return found

    async def listed(
        self, path: str, query: Mapping[str, str], kept: Callable[[Mapping[str, Any]], T | None]
    ) -> tuple[list[T], Mapping[str, Any]]:
        """Applies `kept` to each object of a list as it arrives.

        Returns the results other than None, and the list's metadata. Raises a ClientError.
        """
        found: list[T] = []

        def take(item: Mapping[str, Any]) -> bool:
            if (one := kept(item)) is not None:
                found.append(one)
            return True

        rest = await self.trimmed(path, answer_shape(path, query, take), query)
        return found, mapping(rest.get("metadata"))

    async def trimmed(self, path: str, shape: Fields, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns the part of an object that a shape keeps. Raises a ClientError."""
        response = await self._send("GET", path, READ_SECONDS, query=query)
        return await self._trimmed(response, shape)

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that isn't JSON: those that arrive within `seconds`."""
        return await super().beginning(path, limit=min(limit, MOST_METRICS), seconds=seconds)

    def merger(self) -> Merger[Any]:
        """Returns a merger that reads several logs at once."""
        return TaskMerger(ahead=0)

    def _lines_of(
        self, response: aiohttp.ClientResponse, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a log (long ones are cut), or the events of a watch (their objects are trimmed)."""
        is_log = path.endswith("/log")
        return _log_lines(response) if is_log else self._events(response, item_shape(path, query))

    def _parts_at_once(self) -> asyncio.Semaphore:
        """Returns a limit that all pages of a tenant share."""
        return self.tenant.agents

    async def _trimmed(self, response: aiohttp.ClientResponse, shape: Fields) -> dict[str, Any]:
        """Returns an answer's trimmed object. Raises NoCluster if the answer isn't one object with a kind."""
        first = b""

        async def chunks() -> AsyncGenerator[bytes, None]:
            nonlocal first
            async for chunk in response.content.iter_any():
                first = first or chunk[:200]
                yield chunk

        try:
            async with aclosing(self._documents(chunks(), shape)) as documents:
                found = [document async for document in documents]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._reader.broken_off(error) from error
        finally:
            response.release()
        if len(found) != 1 or not isinstance(found[0], dict) or not isinstance(found[0].get("kind"), str):
            raise self._reader.no_such_server(Answer(response.status, response.headers, first))
        return found[0]

    async def _events(self, response: aiohttp.ClientResponse, shape: Fields) -> AsyncGenerator[bytes, None]:
        event: Fields = {"type": Whole(100), "object": shape}
        async with aclosing(self._documents(response.content.iter_any(), event)) as documents:
            async for document in documents:
                if not isinstance(document, dict):
                    return
                yield dumps(document).encode()

    async def _documents(self, chunks: AsyncIterator[bytes], shape: Fields) -> AsyncGenerator[Any, None]:
        """Yields each document's trimmed value, or a ValueError for text that isn't JSON.

        A large document is read in pieces, between which other tenants' answers are read.
        """
        trimmer, seen = Trimmer(shape), 0
        async for chunk in chunks:
            for piece in _pieces(chunk):
                seen += len(piece)
                if seen <= SMALL:
                    found = trimmer.feed(piece)
                else:
                    async with self.tenant.turn():
                        found = trimmer.feed(piece)
                for document in found:
                    seen = 0
                    yield document
        for document in trimmer.end():
            yield document


@dataclass
class Items:
    """Items keeps the first objects of a list, up to about `most` bytes of memory."""

    most: float
    kept: list[Any] = field(default_factory=list)
    weight: int = 0
    is_cut: bool = False

    def take(self, item: Any) -> bool:
        """Keeps an object; returns False if there is no room for it."""
        if self.weight > self.most:
            self.is_cut = True
            return False
        self.kept.append(item)
        self.weight += _weight(item)
        return True


async def _log_lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    begun, is_cut = b"", False
    async for chunk in response.content.iter_any():
        *whole, begun = (begun + chunk).split(b"\n")
        for line in whole:
            if not is_cut:
                yield line[:MOST_LOG_BYTES]
            is_cut = False
        if not is_cut and len(begun) > MOST_LOG_BYTES:
            yield begun[:MOST_LOG_BYTES]
            is_cut = True
        if is_cut:
            begun = b""
    if begun:
        yield begun


def _weight(value: Any) -> int:
    """Returns the approximate number of bytes of memory that a value uses."""
    written = dumps(value)
    return len(written) + OBJECT_BYTES * written.count("{") + VALUE_BYTES * written.count(",")


def _pieces(chunk: bytes) -> Iterator[bytes]:
    return (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))
