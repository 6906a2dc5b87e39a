"""`lookups.missing_pods`: pods that aren't made are explained with the API server's message."""

from __future__ import annotations

from typing import Any

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster.controller.apiserver.cluster import EVENTS, JOBS, PODS, STATEFUL_SETS
from trainmaster.controller.apiserver.errors import Forbidden
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.controller.lookups.lookup import Lookups
from trainmaster.controller.lookups.missing_pods import MISSING_PODS

KEY = JobKey(b.NAMESPACE, "bert")
QUOTA = 'create Pod bert-1 in StatefulSet bert failed error: pods "bert-1" is forbidden: exceeded quota: gpus'


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = FakeCluster()
        self.store = Store(lambda _: None, KEYS)
        self.lookups = Lookups(self.cluster, self.store, [MISSING_PODS], clock=lambda: self.now)
        self.store.upsert(JOBS, self.cluster.put(JOBS, b.job()))
        self.set_uid = self.put(STATEFUL_SETS, b.child("StatefulSet"))["metadata"]["uid"]
        self.put(PODS, b.pod(0))

    def put(self, resource: Any, raw: dict[str, Any]) -> dict[str, Any]:
        stored = self.cluster.put(resource, raw)
        self.store.upsert(resource, stored)
        return stored

    def event(self, message: str, at: str, uid: str | None = None) -> None:
        metadata = {"namespace": b.NAMESPACE, "name": f"e{at}"}
        about = {"kind": "StatefulSet", "name": "bert", "uid": uid or self.set_uid}
        self.cluster.put(
            EVENTS, {"metadata": metadata, "involvedObject": about, "message": message, "lastTimestamp": at}
        )

    def snapshot(self) -> Snapshot:
        found = self.store.snapshot(KEY)
        assert found is not None
        return found

    async def run(self) -> float | None:
        return await self.lookups.after_decision(KEY, self.snapshot())

    def problems(self) -> list[str]:
        return [problem.message for problem in self.snapshot().observed.refused_writes]


async def test_the_newest_refusal_becomes_a_problem_after_some_patience_and_goes_with_the_last_pod() -> None:
    world = World()
    world.event("an old one", "2026-11-21T03:00:00Z")
    world.event(QUOTA, "2026-11-21T04:00:00Z")
    world.event("of an earlier set of the same name", "2026-11-21T05:00:00Z", uid="another")
    assert await world.run() == 3.0
    assert world.problems() == []
    world.now += 3
    assert await world.run() == 5.0
    assert world.problems() == [QUOTA]
    world.put(PODS, b.pod(1))
    assert await world.run() is None
    assert world.problems() == []


async def test_events_that_may_not_be_read_are_no_failure() -> None:
    world = World()
    world.cluster.fail("list", "events", Forbidden("list", "no", status=403))
    await world.run()
    world.now += 3
    assert await world.run() == 5.0
