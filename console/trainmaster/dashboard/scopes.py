"""Shares one watch of a scope (one namespace or all) between the viewers who may list and watch its jobs.

The watch is opened with one connected viewer's token. When that viewer leaves or loses the right, another viewer's
token is used. Every viewer's right is checked with their own token before they get anything, and again each minute.
Once a second the changes become a batch, which all streams send.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainmaster.client.errors import ClientError, NoCluster, NotAllowed
from trainmaster.client.job import collection_path
from trainmaster.client.operator_sign import written_at
from trainmaster.client.permission import seeing
from trainmaster.client.watching import changes
from trainmaster.dashboard.board import Board
from trainmaster.dashboard.sessions import OPERATOR_SECONDS, Viewer
from trainmaster.dashboard.streams import PING_SECONDS, EventStream, encoded, outage, problem, silence_problem
from trainmaster.serving import first_to_end
from trainmaster_operator.api.v1alpha1.names import TERMINAL_PHASES
from trainmaster_operator.wire.values import mapping, text

# Seconds between two checks of a viewer's right to a live answer.
RECHECK_SECONDS = 60.0
BATCH_SECONDS = 1.0
# Seconds before jobs are read again if the API server can't be reached.
RETRY_SECONDS = 2.0
# Objects in one page of a list. Each object becomes a row before the next one is read.
PAGE = 250
# Seconds after which an incomplete list is shown, if it contains any jobs yet.
SHOW_SECONDS = 0.3

_log = logging.getLogger(__name__)


@dataclass
class Scope:
    """Scope is one shared watch, which uses one viewer's token at a time. It runs while viewers are connected."""

    namespace: str | None
    board: Board = field(default_factory=Board)
    # The error if jobs can't be read now.
    problem: ClientError | None = None
    # When the API server last answered (seconds since the epoch).
    answered_at: float = field(default_factory=time.time)
    # The newest time in the jobs' statuses, which only an operator writes.
    written_at: datetime | None = None
    # `is_loaded`: the page can show some jobs. `is_whole`: all jobs were listed.
    is_loaded: bool = False
    is_whole: bool = False
    present: Counter[Viewer] = field(default_factory=Counter)
    _refused: set[Viewer] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _left: asyncio.Event = field(default_factory=asyncio.Event)
    # Set once the first job was read.
    _first: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def seat(self, viewer: Viewer) -> Iterator[None]:
        """Counts a viewer as connected during the block."""
        self.present[viewer] += 1
        self._refused.discard(viewer)
        self._left.set()
        try:
            yield
        finally:
            self.present[viewer] -= 1
            if not self.present[viewer]:
                del self.present[viewer]
                self._left.set()

    def __post_init__(self) -> None:
        self.watching = asyncio.create_task(first_to_end(self._watch(), self._tick()))

    async def watched(self) -> None:
        """Waits while the scope is watched. Only a bug ends the watch; the page then reconnects."""
        await asyncio.wait([self.watching])
        if not self.watching.cancelled():
            _log.error("A shared watch ended", exc_info=self.watching.exception())

    async def close(self) -> None:
        """Ends the watch."""
        self.watching.cancel()
        await asyncio.gather(self.watching, return_exceptions=True)

    async def loaded(self, viewer: Viewer) -> None:
        """Waits until all jobs are listed. Raises the error that prevents the listing."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_whole or self.problem is not None or viewer in self._refused)
        if viewer in self._refused:
            raise NotAllowed("The API server doesn't let you see these jobs.")
        if not self.is_whole and self.problem is not None:
            raise self.problem

    async def send_to(self, stream: EventStream, viewer: Viewer) -> None:
        """Sends all jobs, then changes, until cancelled. Raises NotAllowed for a viewer whose token was refused."""
        number, said = -1, None
        while True:
            if viewer in self._refused:
                await viewer.access.require(*seeing(self.namespace), fresh=True)
                raise NotAllowed("The API server doesn't let you see these jobs any more.")
            if self.problem is not said:
                said = self.problem
                if said is None:
                    number = -1
                else:
                    is_away = isinstance(said, NoCluster) and self.is_loaded
                    await stream.send(outage(said, self.answered_at) if is_away else problem(said))
            if self.is_loaded:
                batches = self.board.since(number) if number >= 0 else None
                # Without batches, the stream is new or too far behind, so it sends all jobs.
                now = self.board.number
                for event in [self.board.whole()] if batches is None else batches:
                    await stream.send(event)
                number = now
            if not await self._news(number, said, viewer):
                await stream.ping()

    async def _news(self, number: int, said: ClientError | None, viewer: Viewer) -> bool:
        """Waits for news that a stream hasn't sent; returns False if there are none when the next ping is due."""

        def is_there() -> bool:
            behind = self.is_loaded and self.board.number != number
            return behind or self.problem is not said or viewer in self._refused

        try:
            async with asyncio.timeout(PING_SECONDS), self._changed:
                return await self._changed.wait_for(is_there)
        except TimeoutError:
            return False

    async def _watch(self) -> None:
        while True:
            watcher = next((viewer for viewer in self.present if viewer not in self._refused), None)
            self._left.clear()
            if watcher is None:
                await self._left.wait()
                continue
            try:
                await first_to_end(self._watch_as(watcher), self._until_gone(watcher))
            except NotAllowed:
                # The watch continues with another viewer's token.
                self._refused.add(watcher)
                await self._notify()
            except ClientError as error:
                self.problem = error
                await self._notify()
                await asyncio.sleep(RETRY_SECONDS)

    async def _until_gone(self, watcher: Viewer) -> None:
        while watcher in self.present:
            await self._left.wait()
            self._left.clear()

    async def _watch_as(self, viewer: Viewer) -> None:
        path = collection_path(self.namespace)
        while True:
            showing = asyncio.create_task(self._show_soon())
            try:
                version = await self._list(viewer, path)
            finally:
                showing.cancel()
            self.problem, first, self.answered_at = None, not self.is_whole, time.time()
            self.is_whole = True
            if first:
                await self._show()
            async with aclosing(changes(viewer.transport, path, version)) as found:
                async for kind, job in found:
                    self.answered_at = time.time()
                    self._note(job)
                    if kind == "DELETED":
                        self.board.remove(text(mapping(job.get("metadata")).get("uid"), 64))
                    else:
                        self.board.put(job)

    async def _show_soon(self) -> None:
        """Shows the first jobs if listing is slow. The remaining jobs are sent as changes."""
        await asyncio.sleep(SHOW_SECONDS)
        await self._first.wait()
        await self._show()

    async def _show(self) -> None:
        if not self.is_loaded:
            self.is_loaded = True
            self.board.forget_changes()
        await self._notify()

    async def _list(self, viewer: Viewer, path: str) -> str:
        """Reads all jobs, page by page; returns the resource version at which the watch starts."""
        query = {"limit": str(PAGE)}
        uids: set[str] = set()

        def put(job: Mapping[str, Any]) -> str:
            self.board.put(job)
            self._note(job)
            self._first.set()
            return text(mapping(job.get("metadata")).get("uid"), 64)

        while True:
            found, metadata = await viewer.transport.listed(path, query, put)
            uids.update(found)
            if not (more := text(metadata.get("continue"), None)):
                break
            query["continue"] = more
        self.board.keep_only(uids)
        return text(metadata.get("resourceVersion"), 200)

    def _note(self, job: Mapping[str, Any]) -> None:
        """Records a sign of life of the operator."""
        written = written_at(job)
        if written is not None and (self.written_at is None or written > self.written_at):
            self.written_at = written

    async def say_silence(self, stream: EventStream, viewer: Viewer) -> None:
        """Repeats to a viewer since when no operator has been seen, while there is none, until cancelled."""
        while True:
            await asyncio.sleep(OPERATOR_SECONDS)
            unfinished = [row for row in self.board.rows.values() if row["phase"] not in TERMINAL_PHASES]
            if unfinished and self.is_loaded and self.problem is None:
                found = await viewer.silence(self.namespace, self.written_at)
                if found is not None:
                    await stream.send(silence_problem(found))

    async def _tick(self) -> None:
        sent: ClientError | None = None
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            if (self.is_loaded and self.board.make_batch()) or self.problem is not sent:
                sent = self.problem
                await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Scopes:
    """Scopes holds the scopes that have connected viewers."""

    def __init__(self, recheck_seconds: float = RECHECK_SECONDS) -> None:
        self._recheck_seconds = recheck_seconds
        self._scopes: dict[str | None, Scope] = {}

    @asynccontextmanager
    async def joined(self, viewer: Viewer, namespace: str | None) -> AsyncGenerator[Scope, None]:
        """Yields a scope, in which the viewer counts as connected. Raises NotAllowed if they may not see it."""
        await viewer.access.require(*seeing(namespace))
        scope = self._scopes.get(namespace)
        if scope is None or scope.watching.done():
            scope = self._scopes[namespace] = Scope(namespace)
        try:
            with scope.seat(viewer):
                yield scope
        finally:
            if not scope.present:
                if self._scopes.get(namespace) is scope:
                    del self._scopes[namespace]
                await scope.close()

    async def send_to(self, stream: EventStream, viewer: Viewer, namespace: str | None) -> None:
        """Sends a scope to a viewer until they lose the right. Raises ClientError."""
        async with self.joined(viewer, namespace) as scope:
            try:
                await first_to_end(
                    scope.send_to(stream, viewer),
                    scope.say_silence(stream, viewer),
                    scope.watched(),
                    viewer.access.until_refused(*seeing(namespace), seconds=self._recheck_seconds),
                )
            except NotAllowed:
                # The page must not keep what the viewer may no longer see.
                await stream.send(encoded("jobs", {"at": time.time(), "jobs": []}))
                raise

    async def close(self) -> None:
        """Ends all watches."""
        for scope in list(self._scopes.values()):
            await scope.close()
