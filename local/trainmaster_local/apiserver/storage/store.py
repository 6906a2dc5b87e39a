"""The store keeps objects in memory, one counter of revisions, and the changes since the last compaction.

Stored objects are never changed in place: a write stores a new object, so readers share objects without copying, and
each revision is encoded as JSON once for all its readers. Resources are named as in errors: `pods`,
`statefulsets.apps`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import expired
from trainmaster_local.apiserver.resources import Object

HISTORY = 10_000
"""The maximum number of events kept for each resource."""
FRESH_EVENTS = 1_000
FRESH_SECONDS = 75.0
"""Events beyond `FRESH_EVENTS` are kept only for this time (`eventFreshDuration` of kube-apiserver's watch cache)."""


class Revision:
    """A revision is an object at a resource version; `json` is its encoding, computed on first use."""

    __slots__ = ("_json", "object", "version")

    def __init__(self, obj: Object, version: int) -> None:
        self.object = obj
        self.version = version
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        if self._json is None:
            self._json = deep.dumps(self.object)
        return self._json

    def copy_with_version(self, version: int) -> Revision:
        """Returns the same object under a later resource version: the last state of a deleted object."""
        metadata = {**self.object["metadata"], "resourceVersion": str(version)}
        return Revision({**self.object, "metadata": metadata}, version)


@dataclass(frozen=True, slots=True)
class Change:
    """A change is one write.

    `old` is None for a new object. `new` is None for a deleted object; `last` is then the object's final state.
    """

    version: int
    namespace: str
    old: Revision | None
    new: Revision | None
    last: Revision
    at: float
    """The time of the write, in seconds of a monotonic clock."""


class _Table:
    """A table contains the objects of one resource, and their changes."""

    def __init__(self, floor: int, history: int) -> None:
        self.namespaces: dict[str, dict[str, Revision]] = {}
        self.history: deque[Change] = deque(maxlen=history)
        self.floor = floor
        self.subscribers: list[Callable[[Change], None]] = []
        self.ends: list[Callable[[], None]] = []


class Storage:
    """The storage contains all objects of a cluster. It is synchronous: nothing changes between a caller's awaits."""

    def __init__(self, *, history: int = HISTORY, clock: Callable[[], float] = time.monotonic) -> None:
        self.version = 0
        self._clock = clock
        self._history = history
        self._tables: dict[str, _Table] = {}

    def open(self, resource: str) -> None:
        """Starts the history of a resource: a watch from before this moment is too old."""
        self._tables.setdefault(resource, _Table(self.version, self._history))

    def drop(self, resource: str) -> None:
        """Deletes a resource that is no longer served, and ends its watches."""
        table = self._tables.pop(resource, None)
        for end in tuple(table.ends) if table is not None else ():
            end()

    def _table(self, resource: str) -> _Table:
        table = self._tables.get(resource)
        if table is None:
            # The resource hasn't changed yet, so its history is complete.
            table = self._tables[resource] = _Table(0, self._history)
        return table

    def get(self, resource: str, namespace: str, name: str) -> Revision | None:
        return self._table(resource).namespaces.get(namespace, {}).get(name)

    def items(self, resource: str, namespace: str = "") -> list[Revision]:
        """Returns all objects in the order of their keys; without a namespace, those of all namespaces."""
        namespaces = self._table(resource).namespaces
        if namespace:
            objects = namespaces.get(namespace, {})
            return [objects[name] for name in sorted(objects)]
        return [namespaces[space][name] for space in sorted(namespaces) for name in sorted(namespaces[space])]

    def items_at(self, resource: str, namespace: str, version: int) -> list[Revision]:
        """Returns the objects of an earlier version. Raises 410 if the version is compacted."""
        table = self._table(resource)
        if version >= self.version:
            return self.items(resource, namespace)
        if version < table.floor:
            raise expired(f"The resourceVersion for the provided list is too old: {version} ({table.floor})")
        found = {(_namespace(item), _name(item)): item for item in self.items(resource, namespace)}
        for change in reversed(table.history):
            if change.version <= version:
                break
            if namespace and change.namespace != namespace:
                continue
            key = (change.namespace, _name(change.last))
            if change.old is None:
                found.pop(key, None)
            else:
                found[key] = change.old
        return [found[key] for key in sorted(found)]

    def count(self, resource: str) -> int:
        return sum(len(objects) for objects in self._table(resource).namespaces.values())

    def put(self, resource: str, namespace: str, name: str, obj: Object) -> Revision:
        """Stores `obj` under a new resource version; the storage then owns it."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        revision = Revision(obj, self.version)
        table = self._table(resource)
        objects = table.namespaces.setdefault(namespace, {})
        old = objects.get(name)
        objects[name] = revision
        self._publish(table, Change(self.version, namespace, old, revision, revision, self._clock()))
        return revision

    def remove(self, resource: str, namespace: str, name: str, last: Object | None = None) -> Revision:
        """Removes an object; watchers see its last state (`last`, or the stored one) under a new resource version."""
        table = self._table(resource)
        old = table.namespaces[namespace].pop(name)
        if not table.namespaces[namespace]:
            del table.namespaces[namespace]
        self.version += 1
        final = (Revision(last, self.version) if last is not None else old).copy_with_version(self.version)
        self._publish(table, Change(self.version, namespace, old, None, final, self._clock()))
        return final

    def _publish(self, table: _Table, change: Change) -> None:
        if len(table.history) == table.history.maxlen:
            table.floor = table.history[0].version
        table.history.append(change)
        while len(table.history) > FRESH_EVENTS and change.at - table.history[0].at > FRESH_SECONDS:
            table.floor = table.history.popleft().version
        for subscriber in tuple(table.subscribers):
            subscriber(change)

    def changes_since(self, resource: str, version: int) -> Iterable[Change]:
        """Returns the changes after `version`. Raises 410 Expired if that is older than the history."""
        table = self._table(resource)
        if version < table.floor:
            raise expired(f"too old resource version: {version} ({table.floor})")
        return [change for change in table.history if change.version > version]

    def compact(self, resource: str | None = None) -> None:
        """Drops the history (of all resources): watches from earlier versions get 410 Expired."""
        for name, table in self._tables.items():
            if resource is None or name == resource:
                table.history.clear()
                table.floor = self.version

    def subscribe(
        self, resource: str, subscriber: Callable[[Change], None], ended: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """Calls `subscriber`, synchronously, with each change from now on.

        Calls `ended` when the resource isn't served any more. Returns a function that ends the subscription.
        """
        table = self._table(resource)
        table.subscribers.append(subscriber)
        table.ends.append(ended)

        def unsubscribe() -> None:
            if subscriber in table.subscribers:
                table.subscribers.remove(subscriber)
                table.ends.remove(ended)

        return unsubscribe


def _namespace(revision: Revision) -> str:
    namespace: str = revision.object["metadata"].get("namespace", "")
    return namespace


def _name(revision: Revision) -> str:
    name: str = revision.object["metadata"]["name"]
    return name
