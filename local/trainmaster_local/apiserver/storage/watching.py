"""A watch delivers the changes of a resource as events, filtered by namespace and selectors.

As in kube-apiserver, an object that no longer matches the selector is DELETED for the watcher, and an object that
begins to match is ADDED. A watch that is more than `BACKLOG` events behind is ended; its client resumes from its last
resource version.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from trainmaster_local.apiserver.resources import Object
from trainmaster_local.apiserver.storage.store import Change, Revision, Storage

BACKLOG = 20_000
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A watch event has a `type`: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR (then the object is a Status)."""

    type: str
    revision: Revision

    @property
    def object(self) -> Object:
        return self.revision.object


class Watch:
    """This is an open watch: `async for event in watch`, or `next_event` with a time limit. Close it when done."""

    def __init__(
        self, storage: Storage, resource: str, namespace: str, matches: Callable[[Object], bool] | None
    ) -> None:
        self._storage = storage
        self._namespace = namespace
        self._matches = matches
        self._events: deque[WatchEvent] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._closed = False
        self.seen = storage.version
        self._unsubscribe = storage.subscribe(resource, self._on_change, self.close)

    def start_with(self, event: WatchEvent) -> None:
        """Queues an event: the state when the watch began, or a bookmark."""
        self._events.append(event)

    def replay(self, change: Change) -> None:
        self._on_change(change)

    def _on_change(self, change: Change) -> None:
        if self._closed or (self._namespace and change.namespace != self._namespace):
            return
        event = self._event(change)
        if event is not None:
            self._events.append(event)
            if len(self._events) > BACKLOG:
                self.close()
            self._notify()

    def _event(self, change: Change) -> WatchEvent | None:
        matches = self._matches
        before = change.old if change.old is not None and (not matches or matches(change.old.object)) else None
        after = change.new if change.new is not None and (not matches or matches(change.new.object)) else None
        if before is None and after is None:
            return None
        if before is None and after is not None:
            return WatchEvent("ADDED", after)
        if after is not None:
            return WatchEvent("MODIFIED", after)
        if change.new is None:
            return WatchEvent("DELETED", change.last)
        assert before is not None
        return WatchEvent("DELETED", before.copy_with_version(change.version))

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        """Ends the watch after it has delivered the queued events."""
        self._closed = True
        self._unsubscribe()
        self._notify()

    @property
    def closed(self) -> bool:
        return self._closed

    def pending(self) -> list[WatchEvent]:
        """Returns all queued events, without waiting."""
        events = list(self._events)
        self._events.clear()
        return events

    async def wait(self, seconds: float | None) -> bool:
        """Waits for an event or the watch's end; returns False after `seconds`."""
        if self._events or self._closed:
            return True
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._wake
        except TimeoutError:
            return False
        finally:
            self._wake = None
        return True

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        await self.wait(None)
        if self._events:
            return self._events.popleft()
        raise StopAsyncIteration

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
