"""The PodGroup exists before the first pod and until the last one is gone, and waiting for nodes is no failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.reconciling.builders import (
    NOW,
    UID,
    decided,
    job,
    kinds,
    observed,
    pod,
    pods,
    running,
    settled,
    stream,
)
from trainmaster_operator.reconciling.decision import DeleteChild
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Observed, PodView, RefusedWrite

GANG: dict[str, Any] = {"scheduling": {"gang": {"scheduler": "volcano", "timeoutSeconds": 3600}}}
FRESH: dict[str, Any] = {"phase": "Pending", "pod_uids": [], "pod_restart_counts": []}
KIND = "PodGroup.scheduling.volcano.sh"


def group(**fields: Any) -> ChildView:
    return replace(ChildView(KIND, "bert", "uid-group", "", UID), **fields)


def homeless(worker: int, **fields: Any) -> PodView:
    given = {"phase": "Pending", "node": None, "worker_container": None, "unschedulable": "pod group is not ready"}
    return pod(worker, **{**given, **fields})


def nobody(**fields: Any) -> Observed:
    return observed(given=(), stream=stream(workers=()), **fields)


def test_pods_come_after_what_makes_a_gang_of_them() -> None:
    made = decided(job(**GANG), nobody())
    assert kinds(made) == ["Apply Service", "Apply PodGroup"]
    stands = settled(job(made.status, **GANG), nobody(children=(group(),)))
    names = sorted((child.kind, child.name) for child in stands.children)
    assert ("StatefulSet", "bert") in names


def test_a_pod_group_on_its_way_out_is_waited_for() -> None:
    assert kinds(decided(job(running(**FRESH), **GANG), nobody(children=(group(deleting=True),)))) == ["Apply Service"]


def test_a_pod_group_of_somebody_else_makes_no_gang() -> None:
    foreign = nobody(children=(group(owner_uid="somebody"),))
    assert "Apply StatefulSet x2" not in kinds(decided(job(running(**FRESH), **GANG), foreign))


def test_it_goes_with_the_last_pod() -> None:
    over = job(running(phase="Succeeded"), **GANG)
    leaving = decided(over, observed(given=[pod(0, deleting=True)], children=(group(),)))
    assert not [action for action in leaving.actions if isinstance(action, DeleteChild)]
    left = decided(over, nobody(children=(group(),)))
    assert [action for action in left.actions if isinstance(action, DeleteChild)] == [
        DeleteChild(KIND, "bert", "uid-group")
    ]
    assert not decided(over, nobody(children=(group(deleting=True),))).actions


def test_a_suspended_job_reserves_nothing_and_gets_its_group_back() -> None:
    suspended = job(running(phase="Suspended"), runPolicy={"suspend": True}, **GANG)
    assert DeleteChild(KIND, "bert", "uid-group") in decided(suspended, nobody(children=(group(),))).actions
    assert kinds(decided(job(running(phase="Suspended"), **GANG), nobody())) == ["Apply Service", "Apply PodGroup"]


def test_a_gang_may_wait_longer_than_a_start_may_take() -> None:
    late = running(**FRESH, ago=3000)
    waiting = observed(given=pods(homeless(0), homeless(1)), stream=stream(workers=()), children=(group(),))
    decision = decided(job(late, **GANG), waiting)
    assert decision.status.phase == "Pending"
    assert decision.requeue_after is not None
    over = decided(job(running(**FRESH, ago=3601), **GANG), waiting)
    failed = next(item for item in over.status.conditions if item.type == "Failed")
    assert (over.status.phase, failed.reason) == ("Failed", "Unschedulable")
    assert "the gang had no nodes within 3600 s (scheduling.gang.timeoutSeconds)" in failed.message


def test_a_start_begins_when_the_gang_has_its_nodes() -> None:
    pulling = {"phase": "Pending", "worker_container": None}
    for scheduled, phase in ((NOW - 800, "Starting"), (NOW - 901, "Failed")):
        both = pods(*(pod(worker, scheduled_at=scheduled, **pulling) for worker in (0, 1)))
        around = observed(given=both, stream=stream(workers=()), children=(group(),))
        assert decided(job(running(**FRESH, ago=3000), **GANG), around).status.phase == phase


def test_a_scheduler_that_isnt_there_is_reported_and_not_waited_for_longer_than_a_start() -> None:
    problem = RefusedWrite("apply PodGroup bert", "NotInstalled", "the cluster doesn't serve podgroups", NOW - 5)
    decision = decided(job(running(**FRESH, ago=10), **GANG), nobody(refused_writes=(problem,)))
    condition = next(item for item in decision.status.conditions if item.type == "Running")
    assert condition.reason == "NotInstalled"
    late = decided(job(running(**FRESH, ago=1000), **GANG), nobody(refused_writes=(problem,)))
    assert late.status.phase == "Failed"
