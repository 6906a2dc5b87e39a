"""A viewer is who has one bearer token; their session here is a transport with it and what they were allowed.

Sessions are found by the SHA-256 of their token, and are forgotten after minutes without a request; all share their
connections to the API server, which knows viewers by their token alone. Tokens are never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.arrivals import Readers
from trainmaster.client.asynchronous import AiohttpTransport, TaskReaders, connector_to
from trainmaster.client.history import HistoryReader
from trainmaster.client.job import TrainingJob
from trainmaster.client.server import Server, for_viewer
from trainmaster.dashboard.access import AccessCache
from trainmaster.dashboard.errors import UNKNOWN, Refused
from trainmaster.dashboard.history import HistoryAccess, HistoryOf, RecordedJob, look_up

MOST_VIEWERS = 1_000
IDLE_SECONDS = 300.0
# Seconds for which a token that the API server doesn't know isn't tried again, and how many such are remembered.
REFUSED_SECONDS = 10.0
MOST_REFUSED = 1_000
# Live answers of one viewer at once: a browser's tabs have one to three each.
MOST_STREAMS = 32
# Requests of one viewer: so many at once, and then so many a second.
BURST, PER_SECOND = 100.0, 20.0
# The same of tokens that weren't known here: each is asked about at the API server.
NEW_BURST, NEW_PER_SECOND = 500.0, 50.0
# Bytes of a line of a log, with its time and rank, that are shown, and lines of each pod that are read ahead.
MOST_LOG_BYTES, LINES_AHEAD = 10_000, 64


@dataclass
class Rate:
    """Rate lets so many through at once, and then so many a second."""

    burst: float
    per_second: float
    room: float = field(init=False)
    at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self.room = self.burst

    def take(self) -> bool:
        """Returns whether one more may pass."""
        now = time.monotonic()
        self.room = min(self.burst, self.room + (now - self.at) * self.per_second)
        self.at = now
        if self.room < 1.0:
            return False
        self.room -= 1.0
        return True


class ViewerTransport(AiohttpTransport):
    """ViewerTransport keeps little of logs in memory: here many read them, as slowly as they like."""

    async def lines(
        self, path: str, *, query: Mapping[str, str], read_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streaming answer, those of a log cut."""
        most = MOST_LOG_BYTES if path.endswith("/log") else None
        async with aclosing(super().lines(path, query=query, read_seconds=read_seconds)) as lines:
            async for line in lines:
                yield line[:most]

    def readers(self) -> Readers[Any]:
        """Returns what reads several streams at once."""
        return TaskReaders(LINES_AHEAD)


@dataclass(eq=False)
class Viewer:
    """Viewer is one session."""

    transport: AiohttpTransport = field(repr=False)
    access: AccessCache = field(repr=False)
    history_access: HistoryAccess | None = field(repr=False, default=None)
    seen_at: float = field(default_factory=time.monotonic)
    streams: int = 0
    is_over: bool = False
    requests: Rate = field(default_factory=lambda: Rate(BURST, PER_SECOND))

    @property
    def history(self) -> HistoryReader | None:
        """Returns the history as this viewer reads it; None where there is none."""
        return None if self.history_access is None else self.history_access.reader

    async def look_up(self, namespace: str, name: str, uid: str | None) -> TrainingJob | RecordedJob:
        """Returns a job, as the history has it where it is gone. Raises ClientError."""
        return await look_up(self.transport, self.history, namespace, name, uid)

    async def close(self) -> None:
        """Closes the session's connections."""
        await self.transport.close()
        if self.history_access is not None:
            await self.history_access.close()

    def count(self) -> None:
        """Counts a request. Raises Refused for one too many."""
        self.seen_at = time.monotonic()
        if not self.requests.take():
            raise Refused(429, f"These are more than {PER_SECOND:g} requests a second; wait.", {"Retry-After": "5"})

    @asynccontextmanager
    async def streaming(self) -> AsyncGenerator[None, None]:
        """Counts a live answer while it goes on. Raises Refused for one too many."""
        if self.streams >= MOST_STREAMS:
            raise Refused(429, f"You have {MOST_STREAMS} live views open already; close some.", {"Retry-After": "5"})
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            self.seen_at = time.monotonic()
            if self.is_over and not self.streams:
                await self.close()


class Viewers:
    """Viewers keeps the sessions."""

    def __init__(self, server: Server, history_of: HistoryOf) -> None:
        """`server` is the API server without credentials, or with the kubeconfig's for `myself`."""
        self._server = server
        self._history_of = history_of
        self._connector = connector_to(server)
        self._by_hash: OrderedDict[bytes, Viewer] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._new = Rate(NEW_BURST, NEW_PER_SECOND)

    def myself(self) -> Viewer:
        """Returns the viewer who has the server's own credentials, on a laptop."""
        return self._session(b"", self._server)

    def of_token(self, token: str) -> Viewer:
        """Returns who has this token. Raises Refused for one that the API server didn't know a moment ago."""
        key = hashlib.sha256(token.encode()).digest()
        if self._refused.get(key, 0.0) > time.monotonic():
            raise Refused(401, UNKNOWN)
        return self._session(key, for_viewer(self._server, token))

    def end(self, viewer: Viewer) -> None:
        """Ends the session of a viewer whom the API server doesn't know."""
        for key, known in list(self._by_hash.items()):
            if known is viewer and key:
                self._forget(key)
                self._refused[key] = time.monotonic() + REFUSED_SECONDS
        while len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    def forget_idle(self) -> None:
        """Forgets who hasn't asked for long, and what tokens weren't known."""
        now = time.monotonic()
        for key, viewer in list(self._by_hash.items()):
            if not viewer.streams and now - viewer.seen_at > IDLE_SECONDS:
                self._forget(key)
        for key, until in list(self._refused.items()):
            if until < now:
                del self._refused[key]

    async def close(self) -> None:
        """Closes all connections."""
        for key in list(self._by_hash):
            self._forget(key)
        await asyncio.gather(*self._closing)
        await self._connector.close()

    def _session(self, key: bytes, server: Server) -> Viewer:
        viewer = self._by_hash.get(key)
        if viewer is None:
            if not self._new.take():
                raise Refused(503, "Too many new viewers come at once; try again.", {"Retry-After": "5"})
            self._make_room()
            transport = ViewerTransport(server, self._connector)
            viewer = Viewer(transport, AccessCache(transport), self._history_of(server))
            self._by_hash[key] = viewer
        self._by_hash.move_to_end(key)
        return viewer

    def _make_room(self) -> None:
        """Where there are too many, forgets the one that was idle longest. Raises Refused."""
        self.forget_idle()
        if len(self._by_hash) < MOST_VIEWERS:
            return
        key = next((key for key, viewer in self._by_hash.items() if not viewer.streams), None)
        if key is None:
            raise Refused(503, f"{MOST_VIEWERS} viewers look at jobs already; try again later.", {"Retry-After": "30"})
        self._forget(key)

    def _forget(self, key: bytes) -> None:
        viewer = self._by_hash.pop(key)
        viewer.is_over = True
        if viewer.streams:
            # Its last live answer closes it.
            return
        task = asyncio.ensure_future(viewer.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
