"""Two live pods never share a device, and a pod that a scheduler placed always gets its devices."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trainmaster_local.kubelet.devices import DeviceManager, OutOfDevicesError
from trainmaster_local.scheduling.scheduler import NodeState, schedule

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
GPUS = ("0", "1", "2", "3")


def container(name: str, gpus: int, **fields: Any) -> Object:
    resources = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}} if gpus else {}
    return {"name": name, "resources": resources, **fields}


def pod(uid: str, *gpus: int, init: tuple[Object, ...] = ()) -> Object:
    containers = [container(f"c{index}", count) for index, count in enumerate(gpus)]
    metadata = {"name": uid, "namespace": "ns", "uid": uid}
    return {"metadata": metadata, "spec": {"containers": containers, "initContainers": list(init)}}


def devices(manager: DeviceManager, made: Object) -> dict[str, tuple[str, ...]]:
    spec = made["spec"]
    return {
        each["name"]: manager.of(made, each["name"])[GPU] for each in [*spec["initContainers"], *spec["containers"]]
    }


def test_each_container_has_its_own_and_keeps_them() -> None:
    manager = DeviceManager({GPU: GPUS})
    first = pod("first", 1, 2, 0)
    assert manager.admit(first)
    assert devices(manager, first) == {"c0": ("0",), "c1": ("1", "2"), "c2": ()}
    # A restarted container needs no new devices.
    assert manager.admit(first)
    assert devices(manager, first)["c0"] == ("0",)


def test_a_released_device_is_given_again() -> None:
    manager = DeviceManager({GPU: GPUS[:1]})
    first, second = pod("first", 1), pod("second", 1)
    assert manager.admit(first)
    with pytest.raises(OutOfDevicesError) as error:
        manager.admit(second)
    assert error.value.reason == "OutOfnvidia.com/gpu"
    assert str(error.value) == "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 1, capacity: 1"
    assert manager.release("first")
    assert manager.admit(second)
    assert devices(manager, second) == {"c0": ("0",)}
    assert not manager.release("first")


def test_what_a_pod_deleted_by_force_still_uses_is_waited_for() -> None:
    manager = DeviceManager({GPU: GPUS[:1]})
    first, second = pod("first", 1), pod("second", 1)
    assert manager.admit(first)
    manager.leave("first")
    assert not manager.admit(second)
    assert devices(manager, first) == {"c0": ("0",)}
    manager.release("first")
    assert manager.admit(second)


def test_devices_of_init_containers_are_used_again_but_not_those_of_sidecars() -> None:
    manager = DeviceManager({GPU: GPUS})
    init = (container("prepare", 2), container("monitor", 1, restartPolicy="Always"), container("check", 1))
    made = pod("p", 2, init=init)
    assert manager.admit(made)
    assert devices(manager, made) == {"prepare": ("0", "1"), "monitor": ("0",), "check": ("1",), "c0": ("1", "2")}


def test_shared_devices_are_spread_and_named_once() -> None:
    manager = DeviceManager({GPU: ("0", "1", "0", "1")})
    pods = [pod("a", 1), pod("b", 1), pod("c", 2)]
    assert all(manager.admit(made) for made in pods)
    assert [devices(manager, made)["c0"] for made in pods] == [("0",), ("1",), ("0", "1")]
    manager.release("b")
    # Two pods already have a part of 0.
    assert manager.admit(pods[1])
    assert devices(manager, pods[1])["c0"] == ("1",)
    greedy = DeviceManager({GPU: ("0", "0")})
    assert greedy.admit(pods[2])
    assert devices(greedy, pods[2])["c0"] == ("0",)


def test_a_node_without_the_resource_gives_and_hides_nothing() -> None:
    manager = DeviceManager({})
    made = pod("p", 1)
    assert manager.admit(made)
    assert manager.of(made, "c0") == {}


SPECS = st.builds(
    lambda apps, inits: (apps, tuple(container(f"i{n}", gpus, **policy) for n, (gpus, policy) in enumerate(inits))),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([{}, {"restartPolicy": "Always"}])), max_size=3),
)


class Node(RuleBasedStateMachine):
    """Simulates a node whose scheduler counts the API's pods, and whose pods' processes may end before or after
    that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.manager = DeviceManager({GPU: GPUS})
        self.uids = itertools.count()
        allocatable = {"cpu": "64", "memory": "64Gi", "pods": "100", GPU: str(len(GPUS))}
        self.scheduler = NodeState({"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": allocatable}})
        self.waiting: dict[str, Object] = {}
        self.live: dict[str, Object] = {}
        self.given: dict[str, dict[str, tuple[str, ...]]] = {}

    def try_waiting(self) -> None:
        for uid, made in list(self.waiting.items()):
            if self.manager.admit(made):
                self.live[uid] = self.waiting.pop(uid)
                self.given[uid] = devices(self.manager, made)

    @rule(spec=SPECS)
    def create(self, spec: tuple[list[int], tuple[Object, ...]]) -> None:
        apps, init = spec
        made = pod(f"p{next(self.uids)}", *apps, init=init)
        if schedule(made, [self.scheduler]).node:
            self.scheduler.add(made)
            self.waiting[made["metadata"]["uid"]] = made
            self.try_waiting()

    @rule(data=st.data())
    def delete_by_force(self, data: st.DataObject) -> None:
        there = sorted(set(self.scheduler.pods))
        if there:
            uid = data.draw(st.sampled_from(there))
            self.scheduler.remove(uid)
            self.manager.leave(uid)
            self.waiting.pop(uid, None)
            self.try_waiting()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.live:
            uid = data.draw(st.sampled_from(sorted(self.live)))
            del self.live[uid]
            # First the last process ends; then the API learns it.
            assert self.manager.release(uid)
            self.scheduler.remove(uid)
            self.try_waiting()

    @invariant()
    def no_device_is_with_two_live_pods(self) -> None:
        held = [
            device
            for made in self.live.values()
            for device in {name for names in devices(self.manager, made).values() for name in names}
        ]
        assert len(held) == len(set(held))

    @invariant()
    def containers_have_what_they_ask_for_and_keep_it(self) -> None:
        for uid, made in self.live.items():
            now = devices(self.manager, made)
            assert now == self.given[uid]
            spec = made["spec"]
            for each in [*spec["initContainers"], *spec["containers"]]:
                assert len(now[each["name"]]) == int(each["resources"].get("limits", {}).get(GPU, 0))
            staying = [*(each for each in spec["initContainers"] if "restartPolicy" in each), *spec["containers"]]
            together = [device for each in staying for device in now[each["name"]]]
            assert len(together) == len(set(together)), "containers that run side by side share a device"

    @invariant()
    def who_waits_waits_for_a_pod_that_was_deleted_by_force(self) -> None:
        assert not self.waiting or set(self.live) - set(self.scheduler.pods)


TestNode = Node.TestCase
TestNode.settings = settings(stateful_step_count=30)
