"""A faked cluster, a store that knows what is put into it, and what the store knows of the job `bert`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.signer import KEYS
from tests.unit.controller.builders import NAMESPACE
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import RawObject, Resource
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store

KEY = JobKey(NAMESPACE, "bert")


def snapshot_of(store: Store) -> Snapshot:
    found = store.snapshot(KEY)
    assert found is not None
    return found


class BaseWorld:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.changes: list[JobKey] = []
        self.store = Store(self.changes.append, KEYS)

    def put(self, resource: Resource, raw: Mapping[str, Any]) -> RawObject:
        """Write as if by somebody else, seen by the store at once."""
        stored = self.cluster.put(resource, raw)
        self.store.upsert(resource, stored)
        return stored

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.store)

    def stored(self, plural: str, name: str = "bert") -> dict[str, Any]:
        return self.cluster.objects[plural, NAMESPACE, name]
