"""Encodes answers: JSON for a browser, error messages, and live answers.

Live answers are server-sent events: `event: NAME`, `data: JSON` and an empty line. A comment serves as a ping. If a
viewer reads slowly, sending waits, and `Latest` keeps only the newest event of each name. An error is an event with a
message, `{"sentence": "…", "since": null, "what": null}`. No other part of an exception is sent. If `what` is `api` or
`operator`, the stream continues, and the page's content is as of `since` (seconds since the epoch).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from trainmaster.client.errors import ClientError
from trainmaster.client.operator_sign import Silence, clock
from trainmaster.serving import MAX_SENTENCE, refused, write

# Number of levels that are kept of a value that is nested too deeply for the encoder.
MAX_DEPTH = 60
UNKNOWN = (
    "The cluster doesn't know this token: it may have expired, or be another cluster's. Make one with "
    "`kubectl create token SERVICEACCOUNT -n NAMESPACE`, or log in again."
)
PING_SECONDS = 10.0
# Seconds after which a viewer is disconnected if they read nothing.
STUCK_SECONDS = 60.0
_PING = b": ping\n\n"


def dumps(value: Any) -> str:
    """Returns JSON in ASCII. Values that JSON can't express become null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(_plain(value, MAX_DEPTH), separators=(",", ":"), allow_nan=False)


def answer(value: Any, **headers: str) -> web.Response:
    """Returns a response with a value as JSON."""
    return web.json_response(value, dumps=dumps, headers=headers)


def problem(sentence: object, since: float | None = None, what: str | None = None) -> bytes:
    """Returns the encoded event that reports an error.

    If `what` doesn't answer (api or operator), the page's content is as of the time `since` (seconds since the epoch).
    """
    return encoded("problem", {"sentence": str(sentence)[:MAX_SENTENCE], "since": since, "what": what})


def outage(error: ClientError, since: float) -> bytes:
    """Returns the encoded event that reports since when the API server hasn't answered."""
    at = clock(datetime.fromtimestamp(since, UTC), datetime.now(UTC))
    return problem(f"The API server hasn't answered since {at}: what is shown is as of then. {error}", since, "api")


def encoded(name: str, data: Any) -> bytes:
    """Returns an encoded event. Its data is JSON, which contains no line ends."""
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


def silence_problem(silence: Silence) -> bytes:
    """Returns the encoded event that reports since when no operator has been seen."""
    return problem(silence.sentence(datetime.now(UTC)), silence.since.timestamp(), "operator")


class EventStream:
    """EventStream is one live answer."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._sending = asyncio.Lock()
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)

    async def send(self, event: bytes) -> None:
        """Sends an event, and waits if the viewer reads slowly. Raises ConnectionError if the viewer disconnected."""
        # Several tasks send, and a large event is written in pieces.
        async with self._sending:
            await write(self._request, self.response, event, STUCK_SECONDS)

    async def ping(self) -> None:
        """Sends a comment, so that the connection isn't closed as idle."""
        await self.send(_PING)


class Latest:
    """Latest holds the newest encoded event of each name until it is sent."""

    def __init__(self) -> None:
        self._events: dict[str, bytes] = {}
        # Length and hash of the last event of each name.
        self._last: dict[str, tuple[int, int]] = {}
        self._filled = asyncio.Event()
        self._ended = False

    def put(self, name: str, data: Any) -> None:
        """Adds an event, unless it equals the last event of the same name."""
        self.put_event(name, encoded(name, data))

    def put_event(self, name: str, event: bytes) -> None:
        """Adds an encoded event, unless it equals the last event of the same name."""
        last = (len(event), hash(event))
        if self._last.get(name) != last:
            self._last[name] = last
            self._events[name] = event
            self._filled.set()

    def forget(self, name: str) -> None:
        """Makes the next event of this name new, even if it equals the last one."""
        self._last.pop(name, None)

    @property
    def bytes(self) -> int:
        """Returns the total size of the last event of each name."""
        return sum(length for length, _ in self._last.values())

    def end(self) -> None:
        """Marks the end: no more events follow."""
        self._ended = True
        self._filled.set()

    async def send_to(self, stream: EventStream) -> None:
        """Sends events as they arrive, and pings, until the end."""
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


async def streamed(request: web.Request, answer: Callable[[EventStream], Awaitable[None]]) -> web.StreamResponse:
    """Serves a live answer. If it fails, its last event reports the error."""
    stream = EventStream(request)
    await stream.response.prepare(request)
    try:
        await answer(stream)
    except ConnectionError:
        pass
    except Exception as error:
        # The headers were already sent, so an HTTP error is no longer possible.
        await stream.send(problem(refused(error, request).sentence))
    return stream.response


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item, depth - 1) for name, item in value.items()} if depth else None
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value] if depth else None
    return None if isinstance(value, float) and not math.isfinite(value) else value
