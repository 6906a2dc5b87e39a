"""The scheduler chooses pods' nodes, and explains it if there is none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from trainmaster_local.scheduling.scheduler import NodeState, matches_expression, pod_requests, schedule, tolerates

Object = dict[str, Any]

TAIL = "no new claims to deallocate, preemption: "


def node(name: str = "a", gpus: int = 8, cpu: str = "4", taints: Any = (), **labels: str) -> NodeState:
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "3", "nvidia.com/gpu": str(gpus)}
    spec = {"taints": list(taints)} if taints else {}
    return NodeState(
        {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}
    )


def pod(uid: str = "p", priority: int = 0, limits: Any = None, **spec: Any) -> Object:
    containers = [{"name": "c", "resources": {"limits": limits or {}}}]
    return {"metadata": {"uid": uid, "name": uid}, "spec": {"containers": containers, "priority": priority, **spec}}


def gpus(count: int, uid: str = "p", priority: int = 0) -> Object:
    return pod(uid, priority, {"nvidia.com/gpu": str(count)})


def test_more_than_a_node_has_is_said_in_the_recorded_words() -> None:
    head = "0/1 nodes are available: "
    problem = f"{head}1 Insufficient nvidia.com/gpu. {TAIL}{head}1 Preemption is not helpful for scheduling."
    assert schedule(gpus(9), [node()]).message == problem


def test_what_others_hold_could_be_preempted() -> None:
    full = node()
    full.add(gpus(6, "other"))
    assert schedule(gpus(2), [full]).node == "a"
    assert "1 No preemption victims found for incoming pod." in schedule(gpus(3), [full]).message


def test_no_nodes() -> None:
    assert schedule(pod(), []).message == "no nodes available to schedule pods"


def test_reasons_are_counted_over_nodes() -> None:
    tainted = node("b", taints=[{"key": "k", "effect": "NoSchedule"}])
    message = schedule(pod(limits={"cpu": "5"}), [node("a"), tainted, node("c")]).message
    assert message.startswith("0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. ")


def test_selectors_and_affinity_choose_nodes() -> None:
    nodes = [node("a", zone="one"), node("b", zone="two")]
    assert schedule(pod(nodeSelector={"zone": "two"}), nodes).node == "b"
    term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["one"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    assert schedule(pod(affinity=affinity), nodes).node == "b"
    refused = schedule(pod(nodeSelector={"zone": "three"}), nodes).message
    assert "2 node(s) didn't match Pod's node affinity/selector" in refused


def test_the_emptiest_node_is_chosen() -> None:
    busy = node("a")
    busy.add(pod("other", limits={"cpu": "1"}))
    assert schedule(pod(limits={"cpu": "1"}), [busy, node("b")]).node == "b"


def test_a_node_takes_only_so_many_pods() -> None:
    full = node()
    for index in range(3):
        full.add(pod(str(index)))
    assert "1 Too many pods" in schedule(pod(), [full]).message


def test_preemption_evicts_as_little_as_it_can() -> None:
    full = node()
    for uid, count, priority in (("low", 4, 1), ("lower", 2, 0), ("high", 2, 10)):
        full.add(gpus(count, uid, priority))
    decision = schedule(gpus(2, priority=5), [full])
    assert (decision.node, decision.nominated) == ("", "a")
    assert [victim["metadata"]["uid"] for victim in decision.victims] == ["lower"]
    never = gpus(2, priority=5)
    never["spec"]["preemptionPolicy"] = "Never"
    assert schedule(never, [full]).victims == ()


def test_what_is_released_is_free_again() -> None:
    state = node()
    state.add(gpus(8, "other"))
    state.add(gpus(8, "other"))
    assert schedule(gpus(1), [state]).node == ""
    state.remove("other")
    assert schedule(gpus(8), [state]).node == "a"


def test_requests_are_the_containers_or_the_largest_init() -> None:
    spec: Object = {
        "containers": [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
    }
    assert pod_requests(spec) == {"cpu": Fraction(2)}
    spec["initContainers"][0]["restartPolicy"] = "Always"
    assert pod_requests(spec) == {"cpu": Fraction(7, 2)}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: Object, tolerated: bool) -> None:
    assert tolerates([toleration], {"key": "k", "value": "v", "effect": "NoSchedule"}) is tolerated


def test_node_selector_operators() -> None:
    labels = {"a": "5"}
    for operator, values, matched in (
        ("In", ["5"], True), ("NotIn", ["5"], False), ("Exists", [], True), ("DoesNotExist", [], False),
        ("Gt", ["4"], True), ("Lt", ["4"], False),
    ):  # fmt: skip
        assert matches_expression(labels, {"key": "a", "operator": operator, "values": values}) is matched
