"""Runs controllers: changes put keys on a queue, one task takes them off and reconciles.

Changes arrive directly from the storage, in the same instant as the write, so a controller never acts on a stale copy.
A key is never reconciled twice at once; a failed one is retried with client-go's back-off (5 ms doubled to 1000 s).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.apiserver.writing.writer import Options

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""

_FIRST_RETRY = 0.005
_LAST_RETRY = 1000.0


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class WorkQueue:
    """The queue contains each key at most once, due now or later. `get` waits for the next."""

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}
        self._later: list[tuple[float, Key]] = []
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Adds a key after `delay` seconds."""
        if delay > 0:
            heapq.heappush(self._later, (asyncio.get_running_loop().time() + delay, key))
        else:
            self._ready[key] = None
        self._wake.set()

    def retry(self, key: Key) -> None:
        """Adds a key that failed, with a delay that grows with its failures."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add(key, min(_FIRST_RETRY * 2 ** min(failures, 30), _LAST_RETRY))

    def forget(self, key: Key) -> None:
        self._failures.pop(key, None)

    async def get(self) -> Key:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            while self._later and self._later[0][0] <= now:
                self._ready[heapq.heappop(self._later)[1]] = None
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                return key
            self._wake.clear()
            delay = self._later[0][0] - now if self._later else None
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                continue


class Controller(ABC):
    """A controller is one reconciler. `name` is its field manager and the source of its events."""

    name = "kube-controller-manager"

    def __init__(self, api: Api) -> None:
        self.api = api
        self.queue = WorkQueue()
        self.options = Options(manager=self.name)
        self._ends: list[Callable[[], None]] = []

    def watch(self, resource: str, keys: Callable[[Object], Iterable[Key]] = lambda obj: (key_of(obj),)) -> None:
        """Queues the keys of every existing object, and of the old and new object of every future change."""

        def changed(change: Change) -> None:
            for key in keys(change.last.object):
                self.queue.add(key)
            if change.old is not None and change.new is not None:
                for key in keys(change.old.object):
                    self.queue.add(key)

        self._ends.append(self.api.storage.subscribe(resource, changed))
        for obj in self.api.peek_all(resource):
            for key in keys(obj):
                self.queue.add(key)

    @abstractmethod
    async def reconcile(self, key: Key) -> float | None:
        """Reconciles one object. Returns the seconds until the next call, or None to wait for a change."""

    async def run(self) -> None:
        """Reconciles until it is cancelled."""
        try:
            while True:
                key = await self.queue.get()
                try:
                    delay = await self.reconcile(key)
                except ApiError as error:
                    level = logging.DEBUG if error.code in (404, 409) else logging.WARNING
                    logger.log(level, "%s %s: %s", type(self).__name__, "/".join(key), error)
                    self.queue.retry(key)
                    continue
                except Exception:
                    logger.exception("%s %s failed", type(self).__name__, "/".join(key))
                    self.queue.retry(key)
                    continue
                self.queue.forget(key)
                if delay is not None:
                    self.queue.add(key, max(delay, 0.001))
                # Other tasks run even while this queue is long.
                await asyncio.sleep(0)
        finally:
            for end in self._ends:
                end()


class Index:
    """This index finds a resource's objects by a property (controller's uid, node), and is always current."""

    def __init__(self, api: Api, resource: str, by: Callable[[Object], Iterable[str]]) -> None:
        self._by = by
        self._found: dict[str, dict[Key, Object]] = {}
        self.close = api.storage.subscribe(resource, self._changed)
        for obj in api.peek_all(resource):
            self._add(obj)

    def get(self, value: str) -> list[Object]:
        return list(self._found.get(value, {}).values())

    def _changed(self, change: Change) -> None:
        if change.old is not None:
            for value in self._by(change.old.object):
                objects = self._found.get(value, {})
                objects.pop(key_of(change.old.object), None)
                if not objects:
                    self._found.pop(value, None)
        if change.new is not None:
            self._add(change.new.object)

    def _add(self, obj: Object) -> None:
        for value in self._by(obj):
            self._found.setdefault(value, {})[key_of(obj)] = obj


def controller_uid(obj: Object) -> tuple[str, ...]:
    """Returns the key for an `Index` by controller."""
    return tuple(ref["uid"] for ref in obj["metadata"].get("ownerReferences") or [] if ref.get("controller"))
