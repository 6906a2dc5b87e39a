"""What nodes have free is counted as the scheduler counts it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from trainmaster.client.diagnosis.room import requests_of, rooms, shown, too_little


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
    assert [too_little(each) for each in ("nvidia.com/gpu", "pods", "memory", "cpu")] == [
        "too few GPUs",
        "too few places for pods",
        "too little memory",
        "too little CPU",
    ]


def test_amounts_are_written_as_in_a_manifest() -> None:
    assert [
        shown(Decimal("0.5"), "cpu"),
        shown(Decimal(8), "nvidia.com/gpu"),
        shown(Decimal(128 * 2**30), "memory"),
    ] == [
        "500m",
        "8",
        "128Gi",
    ]
