"""Live answers are server-sent events: `event: NAME`, `data: JSON` and an empty line, with a comment as a ping.

A viewer who reads slowly makes the sending wait (`send`), and what is to be sent meanwhile isn't kept without bound:
`Latest` has of each event only the newest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from aiohttp import web

from trainmaster.client.errors import ClientError
from trainmaster.dashboard.encoding import dumps
from trainmaster.dashboard.errors import Refused, sentence_of

PING_SECONDS = 10.0
# A viewer who takes nothing for so long (seconds) isn't there any more.
STUCK_SECONDS = 60.0
# Bytes that are written before it is waited until they are taken: so much of a stream is in memory.
PIECE_BYTES = 65_536
_PING = b": ping\n\n"

_log = logging.getLogger(__name__)


def encoded(name: str, data: Any) -> bytes:
    """Returns an event. Texts of others are JSON strings, in which nothing ends a line."""
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


class EventStream:
    """EventStream is one live answer."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)

    async def open(self) -> None:
        """Sends the headers."""
        await self.response.prepare(self._request)

    async def send(self, event: bytes) -> None:
        """Sends an event, and waits while the viewer doesn't read. Raises ConnectionError for one who has gone."""
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                for start in range(0, len(event), PIECE_BYTES):
                    await self.response.write(event[start : start + PIECE_BYTES])
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the viewer takes nothing") from error

    async def ping(self) -> None:
        """Shows that the connection is alive."""
        await self.send(_PING)


class Latest:
    """Latest holds of each event the newest that wasn't sent yet, encoded."""

    def __init__(self) -> None:
        self._events: dict[str, bytes] = {}
        # Of each event the last one's length and hash.
        self._last: dict[str, tuple[int, int]] = {}
        self._filled = asyncio.Event()
        self._ended = False

    def put(self, name: str, data: Any) -> None:
        """Adds an event, unless it says the same as the last of its name."""
        self.put_event(name, encoded(name, data))

    def put_event(self, name: str, event: bytes) -> None:
        """Adds an event that is encoded already."""
        last = (len(event), hash(event))
        if self._last.get(name) != last:
            self._last[name] = last
            self._events[name] = event
            self._filled.set()

    @property
    def bytes(self) -> int:
        """Returns how many bytes the last of all events have."""
        return sum(length for length, _ in self._last.values())

    def end(self) -> None:
        """Says that nothing more comes."""
        self._ended = True
        self._filled.set()

    async def send_to(self, stream: EventStream) -> None:
        """Sends what comes, and pings, until the end."""
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._filled.wait()
            except TimeoutError:
                await stream.ping()
                continue
            self._filled.clear()
            events, self._events = self._events, {}
            for event in events.values():
                await stream.send(event)
            if self._ended and not self._events:
                return


async def first_to_end(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all until one ends, and ends the others. Raises what that one raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def streamed(request: web.Request, answer: Callable[[EventStream], Awaitable[None]]) -> web.StreamResponse:
    """Serves a live answer; what goes wrong within it is its last event."""
    stream = EventStream(request)
    await stream.open()
    try:
        await answer(stream)
    except ClientError as error:
        await stream.send(encoded("problem", problem(error)))
    except Refused as error:
        await stream.send(encoded("problem", {"sentence": error.sentence}))
    except ConnectionError:
        pass
    except Exception:
        # The headers are sent, so that no other answer can be.
        _log.exception("A live answer for %s broke off", request.path)
        await stream.send(encoded("problem", {"sentence": "Something went wrong here; the dashboard's log says what."}))
    return stream.response


def problem(error: ClientError) -> Mapping[str, str]:
    """Returns what says that something can't be read now."""
    return {"sentence": sentence_of(error)}
