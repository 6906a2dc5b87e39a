"""Free capacity is counted as the scheduler counts it, and the scheduler's messages are read part by part."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from trainmaster.client.diagnosis.capacity import read_exclusions, requests_of, rooms, shown, too_little


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (
            "0/7 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {dedicated: "
            "infra}, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 nodes are available: 7 "
            "Preemption is not helpful for scheduling.",
            [("resource", 3, "nvidia.com/gpu"), ("taint", 2, "dedicated: infra"), ("selector", 2, "")],
        ),
        (
            "0/2 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s). no new claims to "
            "deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod.",
            [("resource", 1, "pods"), ("taint", 1, "")],
        ),
        (
            '0/1 nodes are available: persistentvolumeclaim "checkpoints" not found. preemption: 0/1 nodes.',
            [("claim missing", 0, "checkpoints")],
        ),
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
            [("not ready", 3, "")],
        ),
        (
            "0/4 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 3 node(s) were "
            "unschedulable.",
            [("taint", 1, "a: b"), ("cordoned", 3, "")],
        ),
        (
            "pod big-0 can't be scheduled: 0/3 nodes are unavailable: 3 Insufficient cpu.",
            [("resource", 3, "cpu")],
        ),
        (
            "0/6 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules, 4 node(s) exceed max "
            "volume count.",
            [("pod affinity", 2, ""), ("volume limit", 4, "")],
        ),
    ],
)  # fmt: skip
def test_each_part_has_its_kind(message: str, parts: list[tuple[str, int, str]]) -> None:
    found = read_exclusions(message)
    assert found is not None
    assert [(one.kind, one.nodes, one.about) for one in found] == parts


def test_other_texts_are_none_of_the_schedulers() -> None:
    assert read_exclusions("Successfully assigned team/big-0 to gpu-a") is None


def node(name: str, gpus: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}


def pod(on: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {"spec": {"nodeName": on, "containers": [container]}, "status": {"phase": phase}}


def test_ended_pods_hold_nothing_and_the_most_free_comes_first() -> None:
    pods = [pod("a", 6), pod("b", 2), pod("b", 8, "Succeeded"), pod("", 8)]
    found = rooms([node("a", "8"), node("b", "8")], pods, "nvidia.com/gpu")
    assert [(room.node, room.free) for room in found] == [("b", 6), ("a", 2)]


def test_without_the_pods_only_the_size_is_known() -> None:
    assert rooms([node("a", "8")], None, "nvidia.com/gpu")[0].free is None


def test_a_pod_asks_for_its_containers_together_or_its_largest_init_container() -> None:
    def asks(cpu: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}}

    spec = {"containers": [asks("500m"), asks("1")], "initContainers": [asks("2")]}
    assert requests_of({"spec": spec})["cpu"] == 2
    assert requests_of({"spec": {"containers": [asks("nonsense")]}})["cpu"] == 0


def test_what_is_counted_is_too_few_and_what_is_measured_too_little() -> None:
    found = [too_little(each) for each in ("nvidia.com/gpu", "pods", "memory", "cpu")]
    assert found == ["too few GPUs", "too few places for pods", "too little memory", "too little CPU"]


def test_amounts_are_written_as_in_a_manifest() -> None:
    assert shown(Decimal("0.5"), "cpu") == "500m"
    assert shown(Decimal(8), "nvidia.com/gpu") == "8"
    assert shown(Decimal(128 * 2**30), "memory") == "128Gi"
