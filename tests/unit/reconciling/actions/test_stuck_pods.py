"""The operator deletes pods by force if their node doesn't end them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    all_up,
    container,
    decided,
    ended,
    job,
    kinds,
    observed,
    pod,
    pods,
    running,
    said,
    settled,
    stream,
)
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import DeletePod
from trainmaster_operator.reconciling.observed.snapshot import Observed, StreamView
from trainmaster_operator.wire.report import Report

HELD = running(phase="Restarting", failures=[{"attempt": 1, "reason": "NodeLost", "counted": False, "failed_at": "x"}])


def around(deadline: float, status: JobStatus = HELD) -> Observed:
    going = pod(1, deleting=True, deadline=deadline, disruption="DeletionByTaintManager")
    return settled(job(status), observed(*all_up(), given=pods(going)))


def test_a_pod_whose_node_doesnt_end_it_is_deleted_by_force_after_the_limit() -> None:
    early = decided(job(HELD), around(NOW - 39))
    assert kinds(early) == []
    assert early.requeue_after == pytest.approx(1.0)
    late = decided(job(HELD), around(NOW - 40))
    assert kinds(late) == ["Delete bert-1 by force"]
    (action,) = [action for action in late.actions if isinstance(action, DeletePod)]
    assert (action.pod.uid, action.lost_after, action.reason) == ("uid-1", 40, "its node node-1 doesn't stop it")
    assert late.requeue_after == pytest.approx(10.0)


def test_the_limit_is_the_jobs() -> None:
    of = job(HELD, failurePolicy={"nodes": {"lostAfterSeconds": 5}})
    assert "Delete bert-1 by force" in kinds(decided(of, around(NOW - 6)))


@pytest.mark.parametrize("phase", ["Suspended", "Succeeded"])
def test_pods_of_a_job_that_is_over_are_freed_too(phase: str) -> None:
    of = job(running(phase=phase), runPolicy={"suspend": phase == "Suspended"})
    assert "Delete bert-1 by force" in kinds(decided(of, around(NOW - 100)))


def test_a_pod_that_was_never_on_a_node_isnt_stuck() -> None:
    going = pod(1, deleting=True, deadline=NOW - 100, node=None)
    assert kinds(decided(job(HELD), replace(around(NOW - 100), pods=(going,)))) == []


POLICY: dict[str, Any] = {"failurePolicy": {"nodes": {"lostAfterSeconds": 30}}}


def silent(worker: int = 1) -> Report:
    """Returns the report that the leader makes for a silent worker."""
    return said(
        worker,
        "Failed",
        reason="AgentLost",
        exit_code=None,
        error="no answer from worker 1\nrank 0 made no progress for 9 s",
    )


def beside(connected: bool = False, **fields: Any) -> Observed:
    return observed(silent(), said(0, "Stopped"), stream=stream(workers=(0, 1) if connected else (0,)), **fields)


def held() -> JobStatus:
    return decided(job(running(), **POLICY), beside()).status


def test_it_is_named_and_no_attempt_opens_without_it() -> None:
    status = held()
    assert (status.phase, status.attempt, status.restarts) == ("Restarting", 1, 1)
    assert (status.failures[0].reason, status.failures[0].worker, status.failures[0].pod) == ("AgentLost", 1, "bert-1")
    assert "worker 1 (pod bert-1, node node-1) was lost: its agent doesn't answer" in status.failures[0].message
    assert "replaced if it doesn't answer" in next(c.message for c in status.conditions if c.type == "Running")


def test_it_trains_on_in_its_pod_when_it_connects_again() -> None:
    back = decided(job(held(), **POLICY), beside(connected=True), NOW + 5)
    assert (back.status.phase, back.status.attempt) == ("Starting", 2)
    assert "Delete bert-1" not in kinds(back)


@pytest.mark.parametrize("seen", [beside(), observed(stream=stream(workers=(0,))), observed(stream=StreamView())])
def test_its_pod_is_replaced_when_it_stays_silent(seen: Observed) -> None:
    """An operator that hasn't heard from the worker itself does the same."""
    early = decided(job(held(), **POLICY), seen, NOW + 29)
    assert "Delete bert-1" not in kinds(early)
    assert early.requeue_after is not None
    assert early.requeue_after <= 1.1
    late = decided(job(held(), **POLICY), seen, NOW + 31)
    assert [kind for kind in kinds(late) if "Delete" in kind] == ["Delete bert-1"]
    assert late.status.attempt == 1
    going = decided(job(late.status, **POLICY), replace(seen, pods=pods(pod(1, deleting=True))), NOW + 32)
    assert (going.status.phase, going.status.failures[0].reason) == ("Restarting", "AgentLost")
    new = decided(job(going.status, **POLICY), replace(seen, pods=pods(pod(1, uid="new"))), NOW + 33)
    assert (new.status.attempt, new.status.restarts, new.status.disruptions) == (2, 1, 0)


def test_a_container_that_ended_is_not_waited_for() -> None:
    """The kubelet has restarted it, and its agent joins in a moment."""
    again = container(restarts=1, last_end=ended(137))
    status = decided(job(running(), **POLICY), beside(given=pods(pod(1, worker_container=again)))).status
    assert (status.phase, status.attempt) == ("Starting", 2)


def test_an_elastic_job_goes_on_without_it() -> None:
    of: dict[str, Any] = {**POLICY, "elastic": {"minWorkers": 1, "maxWorkers": 2}}
    status = decided(job(running(ranks=[0, 1]), **of), beside()).status
    assert status.phase == "Restarting"
    late = decided(job(status, **of), beside(), NOW + 31)
    assert "Delete bert-1" in kinds(late)
    assert late.status.attempt == 1, "not with it"
    shrunk = decided(job(late.status, **of), beside(given=pods(pod(1, deleting=True))), NOW + 32).status
    assert (shrunk.attempt, shrunk.worker_order) == (2, [0])


def test_a_pod_that_is_replaced_on_purpose_is_no_other_cause_of_the_failure() -> None:
    """This holds during the seconds in which a stronger cause still replaces the recorded one."""
    quick: dict[str, Any] = {"failurePolicy": {"nodes": {"lostAfterSeconds": 1}}}
    status = decided(job(running(), **quick), beside()).status
    for now, given in ((1.2, pod(1, deleting=True)), (1.4, pod(1, uid="new"))):
        status = decided(job(status, **quick), beside(given=pods(given)), NOW + now).status
        assert (status.failures[0].reason, status.restarts, status.disruptions) == ("AgentLost", 1, 0)
    bus_error = said(1, "Failed", reason="Signal", signal=7, exit_code=135)
    status = decided(job(running(node_failures={"node-1": 2})), observed(bus_error)).status
    status = decided(job(status), observed(bus_error, given=pods(pod(1, deleting=True))), NOW + 0.5).status
    assert (status.failures[0].reason, status.avoided_nodes) == ("Signal", ["node-1"])
