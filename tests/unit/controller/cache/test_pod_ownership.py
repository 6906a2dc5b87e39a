"""`cache.records` recognises a job's worker by its controller's uid; nothing that a pod's creator can write counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.world import KEY, BaseWorld, snapshot_of
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.reconciling.observed.snapshot import Observed

FAILED = json.dumps({"attempt": 1, "worker": 0, "state": "Failed", "exitCode": 1})


class World(BaseWorld):
    """A job of two workers whose StatefulSet is known."""

    def __init__(self, *, with_set: bool = True, **spec: Any) -> None:
        super().__init__()
        self._version = 100
        self.upsert(JOBS, b.job(status={"attempt": 1}, **spec))
        if with_set:
            self.upsert(STATEFUL_SETS, b.child("StatefulSet"))

    def upsert(self, resource: Any, raw: dict[str, Any]) -> None:
        self.store.upsert(resource, self.versioned(raw))

    def versioned(self, raw: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self._version)}}

    @property
    def observed(self) -> Observed:
        return self.snapshot().observed

    @property
    def workers(self) -> list[str]:
        return [pod.name for pod in self.observed.pods]


def pod(name: str = "bert-0", *, controller: str | None, uid: str = "theirs", **status: Any) -> dict[str, Any]:
    """Returns a pod with all of the job's labels. `controller` is the uid in its owner reference."""
    made = b.pod(0, uid=uid, **status)
    made["metadata"]["name"] = name
    made["metadata"].pop("ownerReferences")
    if controller is not None:
        made["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "uid": controller, "controller": True}]
    return made


def failed(**more: Any) -> dict[str, Any]:
    return pod(phase="Failed", containerStatuses=[b.terminated(1, FAILED)], **more)


def a_set(name: str, *, uid: str, owner_uid: str | None) -> dict[str, Any]:
    made = b.child("StatefulSet", name, owner_uid=owner_uid)
    made["metadata"]["uid"] = uid
    return made


@pytest.mark.parametrize("controller", [None, "another-set", ""])
def test_a_pod_that_only_has_the_labels_is_no_worker(controller: str | None) -> None:
    world = World()
    world.changes.clear()
    world.upsert(PODS, failed(controller=controller))
    assert (world.workers, world.observed.reports) == ([], ())
    world.store.delete(PODS, world.versioned(failed(controller=controller)))
    assert world.observed.gone == {}
    assert world.changes == [], "nor is a pass spent on it"


def test_a_reference_that_isnt_the_controllers_makes_no_worker() -> None:
    world = World()
    made = failed(controller=b.set_uid())
    made["metadata"]["ownerReferences"][0]["controller"] = False
    world.upsert(PODS, made)
    assert world.workers == []


def test_the_pods_of_a_set_that_isnt_the_jobs_are_no_workers() -> None:
    world = World(with_set=False)
    world.upsert(STATEFUL_SETS, a_set("bert", uid="theirs", owner_uid=None))
    world.upsert(PODS, failed(controller="theirs"))
    assert (world.workers, world.observed.reports) == ([], ())


def test_a_set_that_names_the_job_as_its_owner_under_a_name_of_its_own_has_no_workers() -> None:
    world = World()
    world.upsert(STATEFUL_SETS, a_set("evil", uid="theirs", owner_uid=b.JOB_UID))
    world.upsert(PODS, pod("evil-0", controller="theirs"))
    assert world.workers == []


@pytest.mark.parametrize("name", ["evil-0", "bert-00", "bert-0-0", "bert-x", "bert-\u0660"])
def test_a_pod_that_names_the_jobs_set_as_its_controller_has_a_name_that_the_set_gives(name: str) -> None:
    world = World()
    world.upsert(PODS, failed(name=name, controller=b.set_uid()))
    assert (world.workers, world.observed.reports) == ([], ())


def test_a_group_has_no_workers_of_another_groups_indexes() -> None:
    groups = [{"name": name, "workers": 2} for name in ("a", "c")]
    world = World(with_set=False, workers=None, workerGroups=groups)
    for name in ("bert-a", "bert-c"):
        world.upsert(STATEFUL_SETS, b.child("StatefulSet", name))
    for name in ("bert-a-1", "bert-a-2", "bert-c-1", "bert-c-2"):
        world.upsert(PODS, pod(name, controller=b.set_uid(name[:-2]), uid=name))
    assert world.workers == ["bert-a-1", "bert-c-2"]


def test_a_foreign_pod_in_the_place_of_a_lost_one_takes_nothing_from_what_is_known_of_it() -> None:
    world = World()
    world.upsert(PODS, b.pod(0))
    world.store.delete(PODS, world.versioned(b.pod(0)))
    for number in range(2):
        world.upsert(PODS, failed(controller=None, uid=f"theirs-{number}"))
    world.upsert(PODS, b.pod(0, uid="next"))
    assert [view.uid for view in world.observed.pods] == ["next"]
    assert list(world.observed.gone) == ["pod-bert-0"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (2, 0, 1), (1, 2, 0)])
def test_the_order_in_which_job_set_and_pod_are_seen_makes_no_difference(order: tuple[int, ...]) -> None:
    store = Store(lambda key: None, KEYS)
    container = b.terminated(1, FAILED)
    news = [
        (JOBS, b.job(status={"attempt": 1})),
        (STATEFUL_SETS, b.child("StatefulSet")),
        (PODS, b.pod(0, containerStatuses=[container])),
    ]
    for index in order:
        resource, raw = news[index]
        store.upsert(resource, {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(10 + index)}})
    snapshot = snapshot_of(store)
    assert [view.name for view in snapshot.observed.pods] == ["bert-0"]
    assert [report.state for report in snapshot.observed.reports] == ["Failed"]


def test_pods_outlive_their_set_and_its_successor_has_pods_too() -> None:
    world = World()
    for index in range(2):
        world.upsert(PODS, b.pod(index))
    world.store.delete(STATEFUL_SETS, world.versioned(b.child("StatefulSet")))
    assert world.workers == ["bert-0", "bert-1"], "the garbage collector ends them, with their grace period"
    world.upsert(STATEFUL_SETS, a_set("bert", uid="successor", owner_uid=b.JOB_UID))
    world.upsert(PODS, pod("bert-1", controller="successor", uid="new"))
    assert [view.uid for view in world.observed.pods] == ["pod-bert-0", "new"]


def test_a_set_that_was_replaced_between_two_events_leaves_its_pods_too() -> None:
    world = World()
    world.upsert(PODS, b.pod(0))
    world.upsert(STATEFUL_SETS, a_set("bert", uid="successor", owner_uid=b.JOB_UID))
    assert world.workers == ["bert-0"]


def test_an_orphan_is_no_worker_until_a_set_of_the_job_adopts_it() -> None:
    """`kubectl delete statefulset --cascade=orphan` makes such pods."""
    world = World()
    world.upsert(PODS, b.pod(0))
    world.changes.clear()
    world.upsert(PODS, pod(controller=None, uid="pod-bert-0"))
    assert (world.workers, world.changes) == ([], [KEY])
    world.upsert(STATEFUL_SETS, a_set("bert", uid="successor", owner_uid=b.JOB_UID))
    world.upsert(PODS, pod(controller="successor", uid="pod-bert-0"))
    assert world.workers == ["bert-0"]


def test_what_is_remembered_of_sets_is_bounded() -> None:
    world = World()
    for number in range(1_000):
        world.upsert(STATEFUL_SETS, a_set("bert", uid=f"set-{number}", owner_uid=b.JOB_UID))
    world.upsert(PODS, pod(controller="set-0"))
    assert world.workers == []
