"""A viewer's requests go to the API server with their token, and what is answered is bounded while it comes.

Objects are trimmed to what is shown (`shapes`), lines of logs are cut, and nothing is decompressed, because a pod that
is asked through the API server's proxy decides what its answer unpacks to.
"""

from __future__ import annotations

import asyncio
import copy
import math
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp

from trainmaster.client.answers import Answer, Reader
from trainmaster.client.arrivals import Readers
from trainmaster.client.asynchronous import AiohttpTransport, TaskReaders
from trainmaster.client.picking import Picker
from trainmaster.client.server import Server
from trainmaster.client.transport import JSON, READ_SECONDS
from trainmaster.dashboard.encoding import dumps
from trainmaster.dashboard.parties import Party
from trainmaster.dashboard.shapes import RECORDED_JOB, Fields, answer_shape, item_shape

T = TypeVar("T")

# Bytes that are kept of one answer, and of all that a diagnosis asks for; of a larger list the first objects, and it
# says that more would follow.
MOST_KEPT, MOST_DIAGNOSED = 4 * 2**20, 16 * 2**20
# Bytes that are read in one turn; fewer are read at once, without waiting for one.
PIECE, SMALL = 16_384, 16_384
# Bytes of a line of a log, with its time and rank, and lines of each pod that are read ahead.
MOST_LOG_BYTES, LINES_AHEAD = 10_000, 8
# Bytes of what an agent says of its ranks.
MOST_METRICS = 262_144
# Bytes of an answer of a history.
MOST_HISTORY = 6 * 2**20
_RECORDED_JOB = re.compile(r"/v1/namespaces/[^/]+/jobs/[^/]+$")
# What is in a list's metadata where it was cut here.
CUT = "cut"


class BoundedTransport(AiohttpTransport):
    """BoundedTransport reads whole answers up to a limit, and as they are sent."""

    session_options = MappingProxyType(
        {"headers": {"Accept-Encoding": "identity"}, "auto_decompress": False, "read_bufsize": PIECE}
    )
    most_bytes = MOST_HISTORY


class HistoryTransport(BoundedTransport):
    """HistoryTransport asks a history, which knows jobs as they were written: these are trimmed too."""

    async def _whole(self, response: aiohttp.ClientResponse, cut_at: float = math.inf) -> Answer:
        """Returns an answer to its end; of a recorded job what is kept of it. Raises NoCluster."""
        found = await super()._whole(response, cut_at)
        if not _RECORDED_JOB.search(response.url.path) or found.status != 200:
            return found
        picker = Picker(RECORDED_JOB)
        try:
            for piece in _pieces(found.body):
                picker.feed(piece)
                await asyncio.sleep(0)
        except ValueError:
            return found
        return Answer(found.status, found.headers, dumps(picker.found).encode()) if picker.is_whole else found


class ViewerTransport(BoundedTransport):
    """ViewerTransport reads for one viewer, whose party takes turns with others."""

    def __init__(self, server: Server, connector: aiohttp.BaseConnector, party: Party) -> None:
        super().__init__(server, connector, reader=Reader(server.address))
        self.party = party
        # Bytes that may be kept of all answers together.
        self._left = math.inf

    def for_diagnosis(self) -> ViewerTransport:
        """Returns the same transport for questions whose answers are kept together. It isn't closed."""
        found = copy.copy(self)
        found._left = MOST_DIAGNOSED
        return found

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Any:
        """Sends one request and returns what is kept of the answer. Raises a ClientError."""
        if method == "POST":
            return await super().request(method, path, query=query, body=body, content_type=content_type)
        shape = answer_shape(path, query or {})
        response = await self._send(method, path, query or {}, body, content_type, READ_SECONDS)
        picker = await self._picked(response, Picker(shape, MOST_KEPT if math.isinf(self._left) else self._left))
        self._left -= picker.weight
        if picker.is_cut:
            picker.found.setdefault("metadata", {})["continue"] = CUT
        return picker.found

    async def listed(
        self, path: str, query: Mapping[str, str], take: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any]:
        """Has each object of a list taken when it is there; returns the rest of the answer. Raises a ClientError."""

        def taken(picker: Picker) -> None:
            for item in picker.take("items"):
                take(item)

        response = await self._send("GET", path, query, None, JSON, READ_SECONDS)
        picker = await self._picked(response, Picker(answer_shape(path, query)), taken)
        return picker.found

    async def picked(self, path: str, shape: Fields) -> Picker:
        """Returns what another shape keeps of an object. Raises a ClientError."""
        response = await self._send("GET", path, {}, None, JSON, READ_SECONDS)
        return await self._picked(response, Picker(shape, MOST_KEPT))

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streaming answer: those of a log cut, of a watch what is kept of each object."""
        response = await self._send("GET", path, query, None, JSON, read_seconds)
        read = self._log_lines if path.endswith("/log") else self._events
        try:
            async with aclosing(read(response, item_shape(path, query))) as lines:
                async for line in lines:
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError):
            # The connection broke or stood still: the caller starts again where it was.
            return
        finally:
            response.close()

    async def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        """Returns the first bytes of an answer that is no object, as far as it comes in that time."""
        return await super().beginning(path, limit=min(limit, MOST_METRICS), seconds=seconds)

    async def together(self, parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Runs the coroutines as tasks, a few at a time for all pages of the party."""

        async def limited(part: Coroutine[Any, Any, T]) -> T:
            async with self.party.agents:
                return await part

        return list(await asyncio.gather(*map(limited, parts)))

    def readers(self) -> Readers[Any]:
        """Returns what reads several streams at once."""
        return TaskReaders(LINES_AHEAD)

    async def _picked(
        self, response: aiohttp.ClientResponse, picker: Picker, taken: Callable[[Picker], None] = lambda _: None
    ) -> Picker:
        """Reads an answer to its end. Raises NoCluster for what is no object with a kind."""
        first, seen, rest = b"", 0, None
        try:
            async for chunk in response.content.iter_any():
                for piece in _pieces(chunk):
                    first, seen = first or piece[:200], seen + len(piece)
                    rest = await self._fed(picker, piece, seen)
                    taken(picker)
        except ValueError:
            pass
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._reader.broken_off(error) from error
        finally:
            response.release()
        if rest is None or not isinstance(picker.found.get("kind"), str):
            raise self._reader.no_such_server(Answer(response.status, response.headers, first))
        return picker

    async def _events(self, response: aiohttp.ClientResponse, shape: Fields) -> AsyncGenerator[bytes, None]:
        picker, seen = Picker({"type": 100, "object": shape}), 0
        async for chunk in response.content.iter_any():
            for piece in _pieces(chunk):
                rest: bytes | None = piece
                while rest:
                    seen += len(rest)
                    rest = await self._fed(picker, rest, seen)
                    if rest is not None:
                        yield dumps(picker.found).encode()
                        picker, seen, rest = Picker({"type": 100, "object": shape}), 0, rest.strip()

    async def _fed(self, picker: Picker, piece: bytes, seen: int) -> bytes | None:
        """Reads a piece, in a turn of the viewer's party where more than a little was seen already."""
        if seen <= SMALL or picker.is_whole:
            return picker.feed(piece)
        async with self.party.turn():
            return picker.feed(piece)

    @staticmethod
    async def _log_lines(response: aiohttp.ClientResponse, shape: Fields) -> AsyncGenerator[bytes, None]:
        del shape
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


def _pieces(chunk: bytes) -> Iterator[bytes]:
    return (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))
