"""Pods that their node doesn't end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.reconciling.builders import NOW, all_up, decided, job, kinds, observed, pod, pods, running, settled
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import DeletePod
from trainmaster_operator.reconciling.observed.snapshot import Observed

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
    assert (action.pod.uid, action.lost_after, action.reason) == ("uid-1", 40, "its node node-1 doesn't end it")
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
