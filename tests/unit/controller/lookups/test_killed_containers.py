"""`lookups.killed_containers`: the kubelet's events are read once for a kill, before anything is decided."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import EVENTS, JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Forbidden
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.killed_containers import KILLED_CONTAINERS
from trainmaster_operator.controller.lookups.lookup import Lookups

KEY = JobKey(b.NAMESPACE, "bert")
PROBE = "Container worker failed liveness probe, will be restarted"


class World:
    def __init__(self, **end: Any) -> None:
        self.cluster = FakeCluster()
        self.store = Store(lambda _: None, KEYS)
        self.lookups = Lookups(self.cluster, self.store, [KILLED_CONTAINERS])
        self.store.upsert(JOBS, self.cluster.put(JOBS, b.job()))
        self.store.upsert(STATEFUL_SETS, self.cluster.put(STATEFUL_SETS, b.child("StatefulSet")))
        container = {**b.running(), "lastState": b.terminated(**{"code": 137, **end})["state"]}
        self.store.upsert(PODS, self.cluster.put(PODS, b.pod(0, containerStatuses=[container])))

    def event(self, message: str, at: str, *, uid: str = "pod-bert-0", container: str = "worker") -> None:
        about = {"kind": "Pod", "name": "bert-0", "uid": uid, "fieldPath": f"spec.containers{{{container}}}"}
        metadata = {"namespace": b.NAMESPACE, "name": f"e{len(self.cluster.objects)}"}
        body = {"involvedObject": about, "reason": "Killing", "message": message, "lastTimestamp": at}
        self.cluster.put(EVENTS, {"metadata": metadata, **body})

    async def run(self) -> list[str | None]:
        snapshot = self.store.snapshot(KEY)
        assert snapshot is not None
        await self.lookups.before_decision(KEY, snapshot)
        after = self.store.snapshot(KEY)
        assert after is not None
        return list(after.observed.kills.values())

    @property
    def asked(self) -> int:
        return self.cluster.calls["list", "Event"]


async def test_a_probes_kill_is_found_among_the_pods_events_and_asked_for_once() -> None:
    world = World()
    world.event(PROBE, "2026-11-21T04:00:05Z")
    world.event("Container worker failed liveness probe, long ago", "2026-11-20T04:00:05Z")
    world.event("Container worker failed liveness probe, in another life", "2026-11-21T04:30:05Z")
    world.event("Container side failed liveness probe, will be restarted", "2026-11-21T04:00:06Z", container="side")
    world.event("of an earlier pod of this name: a probe", "2026-11-21T04:00:06Z", uid="another")
    world.event("Stopping container worker", "2026-11-21T04:00:07Z")
    assert await world.run() == [f"the kubelet: {PROBE}"]
    assert await world.run() == [f"the kubelet: {PROBE}"]
    assert world.asked == 1


async def test_many_ends_at_a_time_are_asked_for_together() -> None:
    world = World()
    for index in (1, 2):
        container = {**b.running(), "lastState": b.terminated(137)["state"]}
        world.store.upsert(PODS, world.cluster.put(PODS, b.pod(index, containerStatuses=[container])))
    world.event(PROBE, "2026-11-21T04:00:05Z")
    world.event(PROBE, "2026-11-21T04:00:05Z", uid="pod-bert-2")
    assert await world.run() == [f"the kubelet: {PROBE}", None, f"the kubelet: {PROBE}"]
    assert world.asked == 1


async def test_what_cannot_be_read_holds_nothing_up() -> None:
    world = World()
    world.cluster.fail("list", "events", Forbidden("events", "not allowed", status=403))
    assert await world.run() == [None]
    assert await world.run() == [None]
    assert world.asked == 1


@pytest.mark.parametrize("end", [{"code": 1}, {"code": 137, "reason": "OOMKilled"}, {"code": 0}])
async def test_nobody_is_asked_about_an_end_that_explains_itself(end: dict[str, Any]) -> None:
    world = World(**end)
    assert await world.run() == []
    assert world.asked == 0
