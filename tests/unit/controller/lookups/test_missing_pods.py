"""`lookups.missing_pods`: pods that aren't made are explained with the API server's message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import EVENTS, JOBS, PODS, RESOURCE_QUOTAS, STATEFUL_SETS, whole
from trainmaster_operator.controller.apiserver.errors import Forbidden
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookups
from trainmaster_operator.controller.lookups.missing_pods import MISSING_PODS

KEY = JobKey(b.NAMESPACE, "bert")
QUOTA = (
    'create Pod bert-1 in StatefulSet bert failed error: pods "bert-1" is forbidden: exceeded quota: gpus, requested: '
)
QUOTA += "pods=1, used: pods=4, limited: pods=4"


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


async def test_a_set_is_touched_when_the_quota_that_stopped_it_has_changed() -> None:
    world = World()
    quota = {"metadata": {"namespace": b.NAMESPACE, "name": "gpus"}}
    tried = []
    for again in (False, False, True):
        if again or not tried:
            version = world.cluster.put(RESOURCE_QUOTAS, quota)["metadata"]["resourceVersion"]
        world.event(QUOTA, "2026-11-21T04:00:00Z")
        await world.run()
        world.now += 5
        await world.run()
        found = await world.cluster.get(whole(STATEFUL_SETS), b.NAMESPACE, "bert")
        tried.append(found["metadata"]["annotations"]["trainmaster.dev/tried-quota"])
        assert tried[-1] == f"gpus {version}"
    assert tried[0] == tried[1] != tried[2]


@pytest.mark.parametrize("name", ["../secrets/token", "GPUS", "a" * 254])
async def test_a_quota_that_has_no_name_is_not_read(name: str) -> None:
    world = World()
    world.event(QUOTA.replace("gpus", name), "2026-11-21T04:00:00Z")
    await world.run()
    world.now += 3
    await world.run()
    assert not world.cluster.calls["get", "ResourceQuota"]


async def test_a_quota_that_cant_be_read_is_no_failure() -> None:
    world = World()
    world.event(QUOTA, "2026-11-21T04:00:00Z")
    await world.run()
    world.now += 3
    assert await world.run() == 5.0
    assert world.problems() == [QUOTA]


async def test_events_that_may_not_be_read_are_no_failure() -> None:
    world = World()
    world.cluster.fail("list", "events", Forbidden("list", "no", status=403))
    await world.run()
    world.now += 3
    assert await world.run() == 5.0
