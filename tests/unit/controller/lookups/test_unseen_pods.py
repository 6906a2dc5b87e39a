"""`lookups.unseen_pods`: before a job is decided on, pods that its status names and no watch has shown are listed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Unavailable
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookups
from trainmaster_operator.controller.lookups.unseen_pods import UNSEEN_PODS

KEY = JobKey(b.NAMESPACE, "bert")
UIDS = ["pod-bert-0", "pod-bert-1"]


class World:
    """A cluster with a job of two pods, of which the store knows the job only."""

    def __init__(self, phase: str = "Running", pod_uids: list[str] = UIDS) -> None:
        self.cluster = FakeCluster()
        self.store = Store(lambda _: None, KEYS)
        self.lookups = Lookups(self.cluster, self.store, [UNSEEN_PODS])
        self.statefulset = self.cluster.put(STATEFUL_SETS, b.child("StatefulSet"))
        self.pods = [self.cluster.put(PODS, b.pod(index)) for index in range(2)]
        self.publish({"phase": phase, "attempt": 1, "podUIDs": pod_uids})

    def publish(self, status: dict[str, Any]) -> None:
        self.store.upsert(JOBS, self.cluster.put(JOBS, b.job(status=status)))

    def show_pods(self) -> None:
        for resource, raw in [(STATEFUL_SETS, self.statefulset), *((PODS, pod) for pod in self.pods)]:
            self.store.upsert(resource, raw)

    @property
    def lists(self) -> int:
        return self.cluster.calls["list", "Pod"]

    async def decide_on(self) -> list[str]:
        """Returns the uids of the pods that a decision has before it."""
        while await self.lookups.before_decision(KEY, self.snapshot()):
            pass
        return [pod.uid for pod in self.snapshot().observed.pods]

    def snapshot(self) -> Snapshot:
        found = self.store.snapshot(KEY)
        assert found is not None
        return found


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Running", "Restarting"])
async def test_pods_and_their_sets_are_listed_where_the_watch_of_jobs_is_ahead(phase: str) -> None:
    world = World(phase)
    assert await world.decide_on() == UIDS
    assert await world.decide_on() == UIDS
    assert world.lists == 1


@pytest.mark.parametrize("phase", ["Suspended", "Succeeded", "Failed"])
async def test_pods_of_attempts_against_which_nothing_is_held_are_not_listed(phase: str) -> None:
    assert await World(phase).decide_on() == []


async def test_pods_that_the_watch_has_shown_are_not_listed_nor_are_those_that_it_has_shown_to_be_gone() -> None:
    world = World()
    world.show_pods()
    world.cluster.remove(PODS, b.NAMESPACE, "bert-1")
    world.store.delete(PODS, world.pods[1])
    assert await world.decide_on() == UIDS[:1]
    assert world.lists == 0


async def test_a_pod_that_is_not_there_is_listed_once_for_each_status_that_names_it() -> None:
    world = World()
    world.cluster.remove(PODS, b.NAMESPACE, "bert-1")
    assert await world.decide_on() == UIDS[:1]
    assert await world.decide_on() == UIDS[:1]
    assert world.lists == 1
    world.publish({"phase": "Starting", "attempt": 2, "podUIDs": [UIDS[0], "another"]})
    world.cluster.put(PODS, b.pod(1, uid="another"))
    assert await world.decide_on() == [UIDS[0], "another"]
    assert world.lists == 2


async def test_nothing_is_decided_while_they_cannot_be_listed() -> None:
    world = World()
    world.cluster.fail("list", "pods", Unavailable("list", "busy", status=503))
    with pytest.raises(Unavailable):
        await world.decide_on()
    assert await world.decide_on() == UIDS


async def test_an_attempt_whose_pods_are_not_known_yet_needs_no_list() -> None:
    world = World("Pending", [])
    await world.decide_on()
    assert world.lists == 0
