"""With Kueue, a job is held until admitted, runs as admitted, stops when evicted, and reports in its Workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    UID,
    all_up,
    decided,
    happened,
    job,
    kinds,
    observed,
    pod,
    pods,
    running,
    stream,
)
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus
from trainmaster_operator.reconciling.decision import Apply, Decision, DeleteChild, ReportWorkload, WorkloadCondition
from trainmaster_operator.reconciling.observed.snapshot import (
    ChildView,
    Observed,
    PodSetAdmission,
    RefusedWrite,
    WorkloadView,
)
from trainmaster_operator.rendering import Placement

KUEUE: dict[str, Any] = {"scheduling": {"gang": {"scheduler": "kueue"}, "queue": "team"}}
ELASTIC: dict[str, Any] = {**KUEUE, "workers": 4, "elastic": {"minWorkers": 2, "maxWorkers": 8}}
KIND = "Workload.kueue.x-k8s.io"
TAINT = {"key": "gpu", "operator": "Exists"}
FLAVORS = {"h100": Placement((("gpu", "h100"),), (TAINT,))}


def workload(count: int = 2, admitted: int | None = None, **fields: Any) -> ChildView:
    """Returns the job's Workload of one pod set. If it is admitted, `admitted` is the number of workers."""
    view = WorkloadView(counts=(("worker", count),))
    if admitted is not None:
        sets = (PodSetAdmission("worker", admitted, ("h100",), Placement((("zone", "one"),))),)
        view = replace(view, reserved=True, admitted=True, pod_sets=sets)
    return ChildView(KIND, "bert", "uid-workload", "", UID, workload=replace(view, **fields))


def around(*children: ChildView, **fields: Any) -> Observed:
    values: dict[str, Any] = {"given": (), "stream": stream(workers=())}
    seen = observed(*fields.pop("reports", ()), children=children, **{**values, **fields})
    return replace(seen, listed=frozenset({KIND}), flavors=FLAVORS)


def queued(attempt: int = 0) -> JobStatus:
    condition = Condition(type="Suspended", status="True", reason="Queued", last_transition_time="2026-11-20T00:00:00Z")
    return running(attempt, phase="Suspended", conditions=[condition])


def reported(decision: Decision) -> ReportWorkload:
    (found,) = [action for action in decision.actions if isinstance(action, ReportWorkload)]
    return found


def applied(decision: Decision, kind: str) -> dict[str, Any]:
    (found,) = [
        dict(action.manifest)
        for action in decision.actions
        if isinstance(action, Apply) and action.manifest["kind"] == kind
    ]
    return found


def test_a_new_job_makes_its_workload_and_nothing_else() -> None:
    decision = decided(job(**ELASTIC), around())
    assert (decision.status.phase, decision.status.attempt, kinds(decision)) == ("Suspended", 0, ["Apply Workload"])
    (pod_set,) = applied(decision, "Workload")["spec"]["podSets"]
    assert (pod_set["count"], pod_set["minCount"]) == (4, 2)
    assert happened(decision) == ["Queued"]


def test_it_waits_with_kueues_message() -> None:
    waiting = workload(message="insufficient quota")
    condition = decided(job(JobStatus(), **KUEUE), around(waiting)).status.conditions
    said = next(item.message for item in condition if item.type == "Suspended")
    assert said == "waiting for its turn in the queue team of Kueue: insufficient quota"


def test_where_kueue_isnt_installed_the_job_says_so_and_waits() -> None:
    problem = RefusedWrite("apply Workload bert", "NotInstalled", "the cluster doesn't serve workloads", NOW - 5)
    decision = decided(job(queued(), **KUEUE), around(refused_writes=(problem,)))
    condition = next(item for item in decision.status.conditions if item.type == "Running")
    assert (decision.status.phase, condition.reason) == ("Suspended", "NotInstalled")


def test_an_admitted_job_starts_with_as_many_workers_where_it_was_admitted() -> None:
    decision = decided(job(queued(), **ELASTIC), around(workload(4, admitted=3)))
    assert (decision.status.phase, decision.status.attempt, decision.status.worker_order) == ("Pending", 1, [0, 1, 2])
    assert happened(decision)[0] == "Admitted"
    made = applied(decision, "StatefulSet")["spec"]
    template = made["template"]["spec"]
    assert (made["replicas"], template["nodeSelector"]) == (3, {"gpu": "h100", "zone": "one"})
    assert TAINT in template["tolerations"]


def test_pods_wait_until_it_is_known_what_the_flavor_means() -> None:
    unread = replace(around(workload(admitted=2)), flavors={})
    decision = decided(job(queued(), **KUEUE), unread)
    assert (decision.status.phase, kinds(decision)) == ("Suspended", [])
    # A new operator hasn't read the flavors yet: running jobs continue, and it renders nothing until it has.
    restarted = replace(around(workload(admitted=2, pods_ready=True), given=pods(), reports=all_up()), flavors={})
    decision = decided(job(running(), **KUEUE), restarted)
    assert decision.status.phase == "Running"
    assert "Apply StatefulSet x2" not in kinds(decision)


def test_a_workload_that_couldnt_be_listed_stops_nothing() -> None:
    unknown = replace(around(given=pods(), reports=all_up()), listed=frozenset())
    assert decided(job(running(), **KUEUE), unknown).status.phase == "Running"
    gone = around(given=pods(), reports=all_up())
    assert decided(job(running(), **KUEUE), gone).status.phase == "Suspending"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"evicted": "Preempted", "message": "for bigger"}, "evicted by Kueue (Preempted): for bigger"),
        ({"active": False}, "its Workload is deactivated (spec.active is false)"),
        ({"admitted": False, "message": "a check failed"}, "waiting for its turn in the queue team of Kueue: a check"),
    ],
)
def test_an_evicted_job_stops_with_a_checkpoint(change: dict[str, Any], said: str) -> None:
    child = workload(admitted=2)
    child = replace(child, workload=replace(child.workload or WorkloadView(), **change))
    decision = decided(job(running(), **KUEUE), around(child, given=pods(), reports=all_up()))
    assert decision.status.phase == "Suspending"
    assert "Apply StatefulSet x0" not in kinds(decision), "there is no set to scale in this world"
    held = next(item for item in decision.status.conditions if item.type == "Suspended")
    assert held.message.startswith(said)
    assert (decision.status.restarts, decision.status.disruptions) == (0, 0)


def test_the_quota_is_given_back_with_the_last_pod() -> None:
    evicted = workload(admitted=2, evicted="Preempted", message="for bigger")
    stopping = decided(job(queued(1), **KUEUE), around(evicted, given=[pod(0, deleting=True)]))
    assert not [action for action in stopping.actions if isinstance(action, ReportWorkload)]
    assert (stopping.status.phase, stopping.status.workers.created) == ("Suspending", 1)
    shown = reported(decided(job(queued(1), **KUEUE), around(evicted)))
    assert shown.release == "for bigger"
    assert shown.condition == WorkloadCondition("Requeued", True, "Preempted", "for bigger")
    stopped = workload(admitted=2, evicted="ClusterQueueStopped", message="stopped")
    assert reported(decided(job(queued(1), **KUEUE), around(stopped))).condition.status is False


# Kueue 0.15 to 0.18, apis/kueue/v1beta2 (WorkloadEvicted...) and pkg/controller/jobframework (setRequeued).
@pytest.mark.parametrize(
    ("reason", "queued_again"),
    [
        ("Preempted", True),
        ("NodeFailures", True),
        ("PodsReadyTimeout", False),
        ("AdmissionCheck", False),
        ("ClusterQueueStopped", False),
        ("LocalQueueStopped", False),
        ("Deactivated", False),
        ("DeactivatedDueToRequeuingLimitExceeded", False),
        ("FlavorMigration", False),
        ("EvictedOnManagerCluster", False),
        ("SomethingNewer", False),
    ],
)
def test_after_an_eviction_only_some_go_straight_back_into_the_queue(reason: str, queued_again: bool) -> None:
    """Kueue reports when the others may return: it finds its own reason in Requeued=False."""
    evicted = workload(admitted=2, evicted=reason, message="why", active=not reason.startswith("Deactivated"))
    stopped = decided(job(running(), **KUEUE), around(evicted, given=pods(), reports=all_up()))
    assert (stopped.status.phase, stopped.status.restarts, stopped.status.disruptions) == ("Suspending", 0, 0)
    held = job(stopped.status, **KUEUE)
    shown = reported(decided(held, around(evicted)))
    assert shown.condition == WorkloadCondition("Requeued", queued_again, reason, "why")
    assert shown.release == "why"
    # The job doesn't train without quota, even while Kueue's own conditions still show it as admitted.
    for late in ({"reserved": False, "admitted": False}, {"reserved": False}):
        waits = decided(held, around(replace(evicted, workload=replace(evicted.workload or WorkloadView(), **late))))
        assert waits.status.phase == "Suspended"
        assert not [kind for kind in kinds(waits) if "StatefulSet x2" in kind]


@pytest.mark.parametrize("spec", [{}, {"runPolicy": {"suspend": True}}, ELASTIC])
def test_a_deactivated_workload_is_neither_resumed_nor_replaced_by_an_active_one(spec: dict[str, Any]) -> None:
    """Otherwise a suspension, or kubectl scale, would override the user who set `spec.active: false`."""
    off = workload(active=False, evicted="Deactivated", message="The workload is deactivated")
    decision = decided(job(queued(1), **{**KUEUE, **spec}), around(off))
    assert decision.status.phase == "Suspended"
    assert [kind for kind in kinds(decision) if "Workload" in kind] == []
    if not spec:
        shown = next(item.message for item in decision.status.conditions if item.type == "Suspended")
        assert shown.startswith("its Workload is deactivated (spec.active is false): The workload is deactivated")
    holding = workload(admitted=2, active=False, evicted="Deactivated", message="off")
    assert reported(decided(job(queued(1), **{**KUEUE, **spec}), around(holding))).release == "off"
    on = workload(message="activated again")
    again = decided(job(queued(1), **{**KUEUE, **spec}), around(on))
    assert again.status.phase == "Suspended"
    assert ("Delete Workload.kueue.x-k8s.io" in " ".join(kinds(again))) == bool(spec)


def test_an_evicted_job_goes_on_when_it_is_admitted_again() -> None:
    decision = decided(job(queued(1), **KUEUE), around(workload(admitted=2)))
    assert (decision.status.phase, decision.status.attempt) == ("Restarting", 1)
    assert "Apply StatefulSet x2" in kinds(decision)


def test_another_number_of_workers_needs_another_workload() -> None:
    scaled = {**ELASTIC, "workers": 5}
    holding = around(workload(4, admitted=4), given=pods(workers=4))
    stopping = decided(job(running(workers=4, ranks=[0, 1, 2, 3]), **scaled), holding)
    assert stopping.status.phase == "Suspending"
    stopped = decided(job(queued(1), **scaled), around(workload(4, admitted=4)))
    assert [action for action in stopped.actions if isinstance(action, DeleteChild)]
    (pod_set,) = applied(decided(job(queued(1), **scaled), around()), "Workload")["spec"]["podSets"]
    assert pod_set["count"] == 5


def test_a_workload_that_holds_quota_is_never_changed() -> None:
    busy = around(workload(admitted=2, pods_ready=True), given=pods(), reports=all_up())
    assert "Apply Workload" not in kinds(decided(job(running(), **KUEUE), busy))
    assert "Apply Workload" in kinds(decided(job(queued(), **KUEUE), around(workload())))


def test_kueue_learns_when_pods_are_ready_and_when_one_is_lost() -> None:
    ready = around(workload(admitted=2), given=pods(), reports=all_up())
    shown = reported(decided(job(running(), **KUEUE), ready)).condition
    assert (shown.type, shown.status) == ("PodsReady", True)
    lost = around(workload(admitted=2, pods_ready=True), given=[pod(0)])
    shown = reported(decided(job(running(), **KUEUE), lost)).condition
    assert (shown.type, shown.status) == ("PodsReady", False)


def test_a_job_that_is_over_says_so_when_its_pods_are_gone() -> None:
    over = job(running(phase="Failed"), **KUEUE)
    leaving = around(workload(admitted=2), given=[pod(0, deleting=True)])
    assert not [action for action in decided(over, leaving).actions if isinstance(action, ReportWorkload)]
    shown = reported(decided(over, around(workload(admitted=2)))).condition
    assert shown == WorkloadCondition("Finished", True, "Failed", "the job has failed")
    assert decided(over, around(workload(admitted=2, finished=True))).actions == ()


def test_a_job_that_its_user_suspends_gives_its_place_up() -> None:
    suspended = {**KUEUE, "runPolicy": {"suspend": True}}
    assert kinds(decided(job(**suspended), around())) == []
    decision = decided(job(running(phase="Suspended"), **suspended), around(workload(admitted=2)))
    assert kinds(decision) == [f"Delete {KIND}"]


def test_a_priority_class_is_waited_for_and_handed_on() -> None:
    important = {"scheduling": {**KUEUE["scheduling"], "priorityClassName": "high"}}
    assert kinds(decided(job(**important), around())) == []
    known = replace(around(), priorities={"high": 1000})
    spec = applied(decided(job(**important), known), "Workload")["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (1000, "high")
    unreadable = replace(around(), priorities={"high": None})
    assert "priority" not in applied(decided(job(**important), unreadable), "Workload")["spec"]
