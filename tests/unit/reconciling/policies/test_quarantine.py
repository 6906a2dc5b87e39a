"""Nodes that fail repeatedly are avoided; the status shows this, and it can be undone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import NOW, decided, job, kinds, observed, pod, pods, running, said, settled
from trainmaster_operator.reconciling.decision import Apply
from trainmaster_operator.wire.report import Report

TWICE: dict[str, Any] = {"node_failures": {"node-1": 2}}


def bus_error(worker: int) -> Report:
    return said(worker, "Failed", reason="Signal", signal=7, exit_code=135)


def affinity(decision: Any) -> list[dict[str, Any]]:
    (applied,) = [
        action.manifest
        for action in decision.actions
        if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet"
    ]
    found = applied["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(found.get("preferredDuringSchedulingIgnoredDuringExecution", []))


def test_each_failure_is_held_against_the_node_of_the_worker_that_failed_first() -> None:
    status = decided(job(running()), observed(said(0, "Stopped"), bus_error(1))).status
    assert (status.node_failures, status.avoided_nodes, status.attempt) == ({"node-1": 1}, [], 2)


def test_at_the_limit_the_node_is_avoided_and_its_worker_moves_before_the_next_attempt() -> None:
    of = job(running(**TWICE))
    decision = decided(of, settled(of, observed(bus_error(1))))
    status = decision.status
    assert (status.phase, status.attempt, status.avoided_nodes) == ("Restarting", 1, ["node-1"])
    avoided = next(event for event in decision.events if event.reason == "NodeAvoided")
    assert avoided.message.startswith("Node node-1 may have caused ")
    assert kinds(decision) == ["Delete bert-1", "Assign 1 Hold to bert-0,bert-1", "Apply StatefulSet x2"]
    preferred = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}
    assert affinity(decision) == [{"weight": 100, "preference": preferred}]
    still = decided(job(status), observed(bus_error(1)), NOW + 1)
    assert still.status.attempt == 1
    moved = decided(job(status), observed(given=pods(pod(1, uid="new", node=None))), NOW + 2)
    assert (moved.status.phase, moved.status.attempt, moved.status.restarts) == ("Pending", 2, 1)


@pytest.mark.parametrize("around", [pods(pod(1, deleting=True, deadline=NOW + 30)), pods()[:1]])
def test_moving_it_is_no_disruption_and_doesnt_clear_the_node(around: Any) -> None:
    of = job(running(**TWICE))
    status = decided(of, observed(bus_error(1))).status
    moving = decided(job(status), observed(bus_error(1), given=around), NOW + 0.5).status
    assert (moving.restarts, moving.disruptions, moving.avoided_nodes) == (1, 0, ["node-1"])
    assert moving.failures[0].reason == "Signal"


def test_a_worker_that_finds_no_other_node_trains_where_it_is() -> None:
    of = job(running(**TWICE))
    status = decided(of, observed(bus_error(1))).status
    back = decided(job(status), observed(given=pods(pod(1, uid="new"))), NOW + 2)
    assert (back.status.attempt, [kind for kind in kinds(back) if "Delete" in kind]) == (2, [])


@pytest.mark.parametrize(
    ("report", "blamed"),
    [
        (bus_error(1), True),
        (said(1, "Failed", reason="Hung", exit_code=68), True),
        (said(1, "Failed", reason="AgentLost", exit_code=69), True),
        (said(1, "Failed", error="RuntimeError: CUDA error: uncorrectable ECC error encountered"), True),
        (said(1, "Failed", error="ValueError: bad"), False),
        (said(1, "Failed", error="KeyError: 'ECC'"), False),
        (said(1, "Failed", reason="Signal", signal=9, exit_code=137), False),
        (said(1, "Failed", reason="OOMKilled", exit_code=137), False),
        (said(1, "Failed", reason="LaunchError", exit_code=65), False),
        (said(1, "Failed", reason="PreflightMismatch", exit_code=67), False),
    ],
)
def test_only_what_a_machine_can_have_caused_is_held_against_it(report: Report, blamed: bool) -> None:
    status = decided(job(running(**TWICE)), observed(report)).status
    assert status.avoided_nodes == (["node-1"] if blamed else [])


def test_bystanders_nodes_are_innocent_and_the_culprits_is_blamed_when_it_is_known() -> None:
    bystander = said(0, "Failed", culprit=False)
    first = decided(job(running()), observed(bystander)).status
    assert first.node_failures == {}
    later = decided(
        job(first), observed(bystander, said(1, "Failed", reason="Signal", signal=7, exit_code=135)), NOW + 0.5
    ).status
    assert later.node_failures == {"node-1": 1}


def test_setting_the_limit_to_zero_forgives_all() -> None:
    avoided = running(node_failures={"node-1": 3}, avoided_nodes=["node-1"])
    of = job(avoided, failurePolicy={"nodes": {"quarantineAfter": 0}})
    decision = decided(of, settled(job(avoided), observed(said(0, "Running"), said(1, "Running"))))
    assert (decision.status.node_failures, decision.status.avoided_nodes) == ({}, [])
    assert [(event.reason, event.message) for event in decision.events] == [
        ("NodesForgiven", "No longer avoided: node-1")
    ]
    assert affinity(decision) == []


def test_the_jobs_own_affinity_stays() -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}
    template = {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [own]}}}}
    of = job(running(avoided_nodes=["node-9"], node_failures={"node-9": 3}), podTemplate=template)
    assert [term["weight"] for term in affinity(decided(of, observed()))] == [1, 100]
