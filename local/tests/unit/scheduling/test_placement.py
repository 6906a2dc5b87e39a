"""Affinity and spreading, required and preferred, work as in kube-scheduler's plugins."""

from __future__ import annotations

from typing import Any

from trainmaster_local.scheduling.scheduler import NodeState, schedule

Object = dict[str, Any]
SELECTOR = {"matchLabels": {"job": "bert"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def nodes(*racks: str | None, room: int = 2) -> list[NodeState]:
    """Returns nodes n0, n1, ... in these racks."""
    return [
        NodeState(
            {
                "metadata": {"name": f"n{index}", "labels": {} if rack is None else {"rack": rack}},
                "spec": {},
                "status": {"allocatable": {"cpu": str(room), "memory": "8Gi", "pods": "9"}},
            }
        )
        for index, rack in enumerate(racks)
    ]


def pod(uid: str, job: str = "bert", **spec: Any) -> Object:
    containers = [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]
    metadata = {"uid": uid, "name": uid, "namespace": "team", "labels": {"job": job}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def place(pods: list[Object], on: list[NodeState]) -> list[str]:
    """Schedules pods one after the other; for a pod that fits nowhere, the result is the scheduler's reason."""
    found = []
    for one in pods:
        decision = schedule(one, on)
        found.append(decision.node or decision.message.partition(": ")[2].partition(".")[0])
        for state in on:
            if state.name == decision.node:
                state.add(one)
    return found


def pods(count: int, **spec: Any) -> list[Object]:
    return [pod(f"p{index}", **spec) for index in range(count)]


def near(kind: str, required: bool) -> Object:
    term = {"topologyKey": "rack", "labelSelector": SELECTOR}
    rules = {REQUIRED: [term]} if required else {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}
    return {kind: rules}


def spread(when: str) -> list[Object]:
    return [{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": when, "labelSelector": SELECTOR}]


def test_without_wishes_the_emptiest_node_wins() -> None:
    assert place(pods(3), nodes("a", "b", "c")) == ["n0", "n1", "n2"]


def test_preferred_affinity_fills_a_rack_and_then_goes_on() -> None:
    placed = place(pods(5, affinity=near("podAffinity", required=False)), nodes("a", "b", "a"))
    assert (sorted(placed[:4]), placed[4]) == (["n0", "n0", "n2", "n2"], "n1")


def test_required_affinity_stays_in_the_rack_of_the_first() -> None:
    placed = place(pods(3, affinity=near("podAffinity", required=True)), nodes("a", "b", None))
    assert placed[:2] == ["n0", "n0"]
    assert placed[2] == "1 Insufficient cpu, 2 node(s) didn't match pod affinity rules"


def test_required_anti_affinity_holds_in_both_directions() -> None:
    there = nodes("a", "a")
    apart = near("podAntiAffinity", required=True)
    assert place(pods(2, affinity=apart), there) == ["n0", "2 node(s) didn't match pod anti-affinity rules"]
    assert place([pod("q")], there) == ["2 node(s) didn't satisfy existing pods anti-affinity rules"]
    assert place([pod("r", job="other")], there) == ["n1"]


def test_spreading_that_is_asked_for_refuses_a_skew_and_a_node_without_the_label() -> None:
    constraints = spread("DoNotSchedule")
    placed = place(pods(3, topologySpreadConstraints=constraints), nodes("a", "b", None, room=1))
    assert placed[:2] == ["n0", "n1"]
    assert placed[2] == (
        "1 node(s) didn't match pod topology spread constraints (missing required label), 2 Insufficient cpu"
    )
    uneven = nodes("a", "b", room=4)
    uneven[1].node["metadata"]["labels"]["pool"] = "x"  # type: ignore[index]
    only = place(pods(2, topologySpreadConstraints=constraints, nodeSelector={"pool": "x"}), uneven)
    assert only == ["n1", "n1"], "domains that the pod can't go to don't count"


def test_spreading_that_is_preferred_outweighs_an_empty_node() -> None:
    there = nodes("a", "b", "a", room=4)
    there[1].add(pod("q", job="other"))
    assert place(pods(2, topologySpreadConstraints=spread("ScheduleAnyway")), there) == ["n0", "n1"]


def test_preferred_node_affinity_chooses_among_nodes_that_fit() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}]}
    avoid = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": term}]}}
    assert place(pods(3, affinity=avoid), nodes("a", "b")) == ["n1", "n1", "n0"]
