"""The operator begins, ends and delays attempts, and opens the next ones."""

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
    happened,
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
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import Assign
from trainmaster_operator.reconciling.observed.snapshot import Observed, PodView

NO_RESTARTS: dict[str, Any] = {"failurePolicy": {"maxRestarts": 0}}


def test_a_new_job_gets_its_children_with_attempt_one_in_the_template() -> None:
    decision = decided(job(), Observed())
    assert decision.status.phase == "Pending"
    assert decision.status.attempt == 1
    assert kinds(decision) == ["Apply Service", "Apply StatefulSet x2"]
    assert happened(decision) == [], "three writes until the pods exist: the status, the Service, the StatefulSet"


def test_the_attempts_pods_are_recorded_when_all_are_scheduled() -> None:
    fresh = running(phase="Pending", pod_uids=[], pod_restart_counts=[])
    waiting = container("waiting", reason="ContainerCreating")
    some = decided(job(fresh), observed(given=[pod(0, worker_container=waiting), pod(1, node=None)]))
    assert some.status.phase == "Pending"
    assert some.status.pod_uids == []
    everybody = decided(job(fresh), observed(given=pods(pod(0, worker_container=waiting))))
    assert everybody.status.phase == "Starting"
    assert everybody.status.pod_uids == ["uid-0", "uid-1"]


def test_all_ranks_up_is_running_and_stays_so() -> None:
    of = job(running(phase="Starting"))
    assert decided(of, observed(said(0, "Running"), said(1, "Starting"))).status.phase == "Starting"
    up = decided(of, observed(*all_up()))
    assert up.status.phase == "Running"
    assert happened(up) == ["Running"]
    assert decided(job(up.status), observed()).status.phase == "Running"


def test_where_no_agent_can_report_a_running_container_counts_as_up_after_a_while() -> None:
    of = job(running(phase="Starting", ago=5.0))
    around = observed(stream=stream(workers=()).__class__())
    early = decided(of, around)
    assert early.status.phase == "Starting"
    assert early.requeue_after == pytest.approx(5.0)
    assert decided(of, around, NOW + 5.1).status.phase == "Running"


def test_a_quiet_running_job_needs_nothing() -> None:
    of = job(running())
    decision = decided(of, settled(of, observed(*all_up())))
    again = decided(replace(of, status=decision.status), settled(of, observed(*all_up())))
    assert again.status == decision.status
    assert (again.actions, again.events, again.requeue_after) == ((), (), None)


def test_a_failed_rank_opens_the_next_attempt_with_the_same_pods_at_once() -> None:
    of = job(running())
    around = settled(of, observed(said(0, "Stopped"), said(1, "Failed")))
    decision = decided(of, around)
    status = decision.status
    assert (status.phase, status.attempt, status.restarts, status.disruptions) == ("Starting", 2, 1, 0)
    assert status.pod_uids == ["uid-0", "uid-1"]
    assert kinds(decision) == ["Assign 2 Run to bert-0,bert-1", "Apply StatefulSet x2"]
    (assignment,) = [action.assignment for action in decision.actions if isinstance(action, Assign)]
    assert assignment.uids == ("uid-0", "uid-1")
    assert assignment.grace_seconds == 0.4
    assert happened(decision) == ["Error", "AttemptOpened"]
    assert status.failures[0].worker == 1
    assert "restart 1 of 6" in decision.events[0].message


def test_the_first_attempt_names_no_uids() -> None:
    of = job(running(phase="Starting"))
    (shown,) = [action for action in decided(of, observed()).actions if isinstance(action, Assign)]
    assert shown.assignment.uids is None


def test_a_failure_waits_for_its_back_off() -> None:
    of = job(running(restarts=2), failurePolicy={"backoff": {"initialSeconds": 10, "factor": 3, "maxSeconds": 60}})
    decision = decided(of, settled(of, observed(said(1, "Failed"))))
    assert decision.status.phase == "Restarting"
    assert decision.status.attempt == 1
    assert decision.status.next_attempt_time == to_text(NOW + 60)
    assert decision.requeue_after == pytest.approx(60)
    assert kinds(decision) == ["Assign 1 Hold to bert-0,bert-1", "Apply StatefulSet x2"]
    waiting = job(decision.status, failurePolicy={"backoff": {"initialSeconds": 10, "factor": 3, "maxSeconds": 60}})
    assert decided(waiting, observed(said(1, "Failed")), NOW + 59).status.attempt == 1
    opened = decided(waiting, observed(said(1, "Failed")), NOW + 60)
    assert (opened.status.phase, opened.status.attempt, opened.status.restarts) == ("Starting", 2, 3)


def test_the_budget_used_up_ends_the_job() -> None:
    of = job(running(restarts=6))
    decision = decided(of, settled(of, observed(said(1, "Failed"))))
    assert decision.status.phase == "Failed"
    assert decision.status.restarts == 6
    assert kinds(decision) == ["Apply StatefulSet x0"]
    assert happened(decision) == ["MaxRestartsExceeded"]
    failed = next(item for item in decision.status.conditions if item.type == "Failed")
    assert failed.message == (
        "attempt 1 failed: ValueError: bad; worker 1 (pod bert-1, node node-1) ended with exit code 1; no restart is "
        "left (failurePolicy.maxRestarts is 6)"
    )


def test_a_bystander_alone_starts_the_next_attempt_and_the_culprit_corrects_the_record() -> None:
    of = job(running())
    bystander = said(0, "Failed", culprit=False, error="Connection reset by peer")
    first = decided(of, observed(bystander))
    assert (first.status.attempt, first.status.failures[0].reason) == (2, "PeerLost")
    assert first.status.failures[0].worker == 0
    culprit = said(1, "Failed", reason="OOMKilled", exit_code=137)
    later = decided(job(first.status), observed(bystander, culprit), NOW + 0.5)
    assert (later.status.attempt, later.status.restarts) == (2, 1)
    assert (later.status.failures[0].reason, later.status.failures[0].worker) == ("OOMKilled", 1)
    assert len(later.status.failures) == 1


def test_a_container_that_ended_after_its_agents_report_of_an_attempt_ended_that_one_however_young_it_is() -> None:
    """Its peer reports first. The pod never reports: because of the kubelet's crash back-off, it is replaced."""
    opened = running(2, ago=2.4, restarts=1, pod_restart_counts=[0, 1])
    peer = said(0, "Failed", 2, reason="Error", culprit=False)
    pair = [pod(1, worker_container=container("terminated", restarts=1, end=ended(137, ago=ago))) for ago in (1, 2.3)]
    after, before = (
        decided(job(opened), observed(peer, said(1, "Running", 2, ago=2.2), given=pods(given), attempt=2))
        for given in pair
    )
    assert (after.status.failures[0].reason, after.status.failures[0].worker) == ("AgentLost", 1)
    assert kinds(after)[-1] == "Delete bert-1"
    assert (before.status.failures[0].reason, before.status.failures[0].worker) == ("PeerLost", 0)


def test_after_the_settling_time_the_record_stands() -> None:
    first = decided(job(running()), observed(said(0, "Failed", culprit=False)))
    late = decided(job(first.status), observed(said(1, "Failed", reason="OOMKilled")), NOW + 2.1)
    assert late.status.failures[0].reason == "PeerLost"


def test_a_culprit_who_speaks_late_can_still_end_the_job_by_a_rule() -> None:
    rules: dict[str, Any] = {"failurePolicy": {"rules": [{"exitCodes": [2], "action": "Fail"}]}}
    first = decided(job(running(), **rules), observed(said(0, "Failed", culprit=False)))
    later = decided(job(first.status, **rules), observed(said(1, "Failed", exit_code=2)), NOW + 0.3)
    assert later.status.phase == "Failed"
    assert later.status.restarts == 0


def test_a_disruption_that_shows_late_gives_the_restart_back() -> None:
    of = job(running())
    first = decided(of, observed(said(0, "Failed", culprit=False)))
    assert first.status.restarts == 1
    later = decided(job(first.status), observed(given=[pod(0)]), NOW + 0.5)
    assert later.status.restarts == 0
    assert later.status.disruptions == 1
    assert later.status.failures[0].reason == "PodDeleted"
    held = decided(job(later.status), observed(given=[pod(0)]), NOW + 0.6)
    assert held.status.phase == "Restarting"
    assert held.status.attempt == 2


def test_no_job_is_given_up_for_a_bystanders_report_before_the_cause_had_time_to_show() -> None:
    of = job(running(), **NO_RESTARTS)
    reports = (said(0, "Failed", culprit=False), said(1, "Stopped"))
    decision = decided(of, settled(of, observed(*reports)))
    assert (decision.status.phase, decision.status.attempt, decision.status.restarts) == ("Restarting", 1, 0)
    assert kinds(decision)[0] == "Assign 1 Hold to bert-0,bert-1"
    assert decision.requeue_after == pytest.approx(2.0)
    lost = decided(job(decision.status, **NO_RESTARTS), observed(*reports, given=[pod(0)]), NOW + 1)
    assert (lost.status.phase, lost.status.disruptions) == ("Restarting", 1)
    over = decided(job(decision.status, **NO_RESTARTS), observed(*reports), NOW + 2)
    assert over.status.phase == "Failed"
    assert next(item for item in over.status.conditions if item.type == "Failed").reason == "MaxRestartsExceeded"


def test_an_agent_that_stopped_opens_no_attempt_before_its_pods_deletion_can_show() -> None:
    stopped = said(1, "Stopped")
    first = decided(job(running()), settled(job(running()), observed(said(0, "Running"), stopped)))
    assert (first.status.phase, first.status.attempt) == ("Restarting", 1)
    assert first.requeue_after == pytest.approx(2.0)
    shown = decided(job(first.status), observed(stopped, given=[pod(0), pod(1, deleting=True)]), NOW + 0.3).status
    assert (shown.attempt, shown.restarts, shown.disruptions) == (1, 0, 1)
    assert shown.failures[0].reason == "PodDeleted"
    # If the pod isn't deleted, the container restarts in it.
    kept = decided(job(first.status), observed(stopped), NOW + 2).status
    assert (kept.attempt, kept.restarts, kept.disruptions) == (2, 1, 0)


def test_a_silent_worker_is_waited_for_until_its_node_would_be_known_as_lost() -> None:
    of = job(running(), **NO_RESTARTS)
    bystander = said(0, "Failed", culprit=False)
    decision = decided(of, settled(of, observed(bystander)))
    assert decision.status.phase == "Restarting"
    assert "waiting for a report of worker 1" in next(
        item.message for item in decision.status.conditions if item.type == "Running"
    )
    held = job(decision.status, **NO_RESTARTS)
    assert decided(held, observed(bystander), NOW + 99).status.phase == "Restarting"
    assert decided(held, observed(bystander), NOW + 100).status.phase == "Failed"
    # The pod's report or its node's condition settles the cause.
    assert decided(held, observed(bystander, said(1, "Stopped")), NOW + 30).status.phase == "Failed"
    taken = pod(1, deleting=True, disruption="DeletionByTaintManager")
    lost = decided(held, observed(bystander, given=[pod(0), taken]), NOW + 90)
    assert (lost.status.phase, lost.status.disruptions, lost.status.restarts) == ("Restarting", 1, 0)
    assert lost.status.failures[0].reason == "NodeLost"


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (None, "PodDeleted"),
        (pod(1, uid="uid-1-new"), "PodDeleted"),
        (pod(1, deleting=True, deadline=NOW + 30), "PodDeleted"),
        (pod(1, deleting=True, disruption="PreemptionByScheduler"), "Preempted"),
        (pod(1, deleting=True, disruption="EvictionByEvictionAPI"), "Evicted"),
        (pod(1, deleting=True, disruption="DeletionByTaintManager"), "NodeLost"),
        (pod(1, phase="Failed", reason="Evicted", message="The node was low on resource: memory."), "Evicted"),
        (
            pod(1, phase="Failed", reason="Terminated", message="Pod was terminated in response to node shutdown."),
            "NodeLost",
        ),
        (pod(1, phase="Succeeded"), "PodDeleted"),
    ],
)
def test_a_lost_pod_holds_the_group_and_costs_nothing(lost: PodView | None, reason: str) -> None:
    around = observed(*all_up(), given=[pod(0), *([lost] if lost is not None else [])])
    of = job(running(restarts=6))
    decision = decided(of, around)
    status = decision.status
    assert (status.attempt, status.restarts, status.disruptions) == (2 if "new" in repr(lost) else 1, 6, 1)
    assert (status.failures[0].reason, status.failures[0].counted) == (reason, False)
    if status.attempt == 1:
        assert status.phase == "Restarting"
        assert kinds(decision)[0] == "Assign 1 Hold to bert-0"
        (shown,) = [action for action in decision.actions if isinstance(action, Assign)]
        assert shown.assignment.grace_seconds == 55


@pytest.mark.parametrize(
    ("disruption", "reason"),
    [(None, "PodDeleted"), ("DeletionByPodGC", "NodeLost"), ("EvictionByEvictionAPI", "Evicted")],
)
def test_a_pod_that_is_gone_is_reported_as_it_was_last_observed(disruption: str | None, reason: str) -> None:
    """Its last change and its deletion often arrive together."""
    around = replace(observed(given=[pod(0)]), gone={"uid-1": pod(1, disruption=disruption)})
    failure = decided(job(running()), around).status.failures[0]
    assert (failure.reason, failure.worker, failure.pod, failure.node) == (reason, 1, "bert-1", pod(1).node)


def test_a_lost_node_that_shows_late_undoes_what_its_peers_cost() -> None:
    bystander = said(0, "Failed", culprit=False, error="Connection reset by peer")
    early = decided(job(running()), observed(bystander)).status
    assert (early.attempt, early.restarts, early.failures[0].reason) == (2, 1, "PeerLost")
    lost = pod(1, deleting=True, disruption="DeletionByTaintManager")
    silent = observed(said(0, "Starting", attempt=2), given=[pod(0), lost], attempt=2)
    late = decided(job(early), silent, NOW + 60).status
    assert (late.restarts, late.disruptions) == (0, 1)
    assert [(item.attempt, item.reason) for item in late.failures] == [(2, "NodeLost")]
    # This also holds if the loss was seen while the first attempt's cause was still being settled.
    settled = decided(job(early), silent, NOW + 1).status
    assert (settled.failures[0].attempt, settled.failures[0].reason) == (1, "NodeLost")
    again = decided(job(settled), silent, NOW + 1).status
    assert (again.restarts, again.disruptions, len(again.failures)) == (0, 1, 1)
    # Worker 1 took part in the second attempt, so the first one's end had another cause.
    reported = observed(said(1, "Running", attempt=2), given=[pod(0), lost], attempt=2)
    both = decided(job(early), reported, NOW + 60).status
    assert (both.restarts, both.disruptions, len(both.failures)) == (1, 1, 2)


def test_exactly_one_attempt_opens_when_the_replacement_is_there() -> None:
    held = decided(job(running()), observed(given=[pod(0)])).status
    assert decided(job(held), observed(given=[pod(0)]), NOW + 100).status.attempt == 1
    replacement = pod(1, uid="uid-1b", phase="Pending", node=None, worker_container=None, ready=False)
    opened = decided(job(held), observed(given=[pod(0), replacement]), NOW + 100)
    assert (opened.status.phase, opened.status.attempt, opened.status.pod_uids) == ("Pending", 2, ["uid-0", "uid-1b"])
    assert kinds(opened)[0] == "Assign 2 Run to bert-0,bert-1"


RESUMED = running(phase="Restarting", failures=[])
STOPPED = running(phase="Restarting", stopping=True, next_attempt_time=to_text(NOW + 20))
LOST = decided(job(running()), observed(given=[pod(0)])).status


@pytest.mark.parametrize("held", [RESUMED, STOPPED, LOST], ids=["resumed", "restarted", "replaced"])
def test_a_later_attempt_is_pending_until_its_pods_have_nodes(held: JobStatus) -> None:
    nowhere = replace(unscheduled(1), unschedulable="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")

    def then(before: JobStatus, now: float, *given: PodView) -> JobStatus:
        return decided(job(before), observed(given=given, attempt=before.attempt), now).status

    opened = then(held, NOW + 100, pod(0, uid="new-0"), unscheduled(1))
    assert (opened.phase, opened.attempt) == ("Pending", 2)
    waiting = then(opened, NOW + 130, pod(0, uid="new-0"), nowhere)
    shown = next(each for each in waiting.conditions if each.type == "Running")
    assert (waiting.phase, waiting.attempt, shown.reason) == ("Pending", 2, "Unschedulable")
    placed = then(waiting, NOW + 140, pod(0, uid="new-0"), replace(unscheduled(1), node="node-2", unschedulable=None))
    assert (placed.phase, placed.attempt) == ("Starting", 2)
    at_once = then(held, NOW + 100, pod(0, uid="new-0"), pod(1, uid="new-1"))
    assert (at_once.phase, at_once.attempt) == ("Starting", 2)


def unscheduled(worker: int) -> PodView:
    return pod(worker, uid=f"new-{worker}", phase="Pending", node=None, worker_container=None, ready=False)


def test_a_pod_evicted_for_its_own_use_of_storage_counts() -> None:
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
    around = observed(given=[pod(0), pod(1, phase="Failed", reason="Evicted", message=message)])
    status = decided(job(running()), around).status
    assert (status.phase, status.restarts, status.failures[0].reason) == ("Restarting", 1, "LimitExceeded")


def test_a_finished_workers_pod_may_go() -> None:
    around = observed(said(0, "Running"), said(1, "Finished"), given=[pod(0)])
    assert decided(job(running()), around).status.phase == "Running"


def test_a_pod_that_is_replaced_before_the_group_was_complete_breaks_nothing() -> None:
    of = job(running(phase="Pending", pod_uids=[], pod_restart_counts=[]))
    around = observed(given=[pod(0, uid="another", node=None)])
    assert decided(of, around).status.attempt == 1


@pytest.mark.parametrize("reporter", ["uid-1-old", "uid-0"])
def test_reports_of_a_pod_that_isnt_recorded_dont_count(reporter: str) -> None:
    around = observed(said(1, "Failed", uid=reporter))
    assert decided(job(running()), around).status.attempt == 1


def test_reports_about_another_attempt_dont_count() -> None:
    of = job(running(attempt=3))
    around = observed(said(0, "Failed", attempt=2), said(1, "Failed", attempt=4), attempt=3)
    assert decided(of, around).status.attempt == 3


class TestContainersThatEndWithoutAReport:
    def test_a_container_killed_for_memory_breaks_the_attempt(self) -> None:
        dead = pod(1, worker_container=container("terminated", end=ended(137, "OOMKilled")))
        status = decided(job(running()), observed(given=pods(dead))).status
        assert (status.attempt, status.failures[0].reason, status.failures[0].exit_code) == (2, "OOMKilled", 137)
        assert status.pod_restart_counts == [0, 1]

    def test_the_same_end_doesnt_count_twice_whatever_the_nodes_clock_says(self) -> None:
        ahead = ended(137, "OOMKilled", ago=-3600)
        restarted = pod(1, worker_container=container(restarts=1, last_end=ahead))
        of = job(running(attempt=2, pod_restart_counts=[0, 1]))
        assert decided(of, observed(given=pods(restarted), attempt=2)).status.attempt == 2

    def test_an_end_that_could_be_the_attempts_before_waits_for_the_agents_report(self) -> None:
        failed_before = {"attempt": 1, "reason": "PeerLost", "failed_at": to_text(NOW - 1), "counted": True}
        of = job(running(attempt=2, phase="Starting", ago=1.0, restarts=1, failures=[failed_before]))
        dead = pod(1, worker_container=container("waiting", restarts=1, reason="CrashLoopBackOff", last_end=ended(137)))
        status = decided(of, observed(given=pods(dead), attempt=2)).status
        assert status.attempt == 2
        assert (status.failures[0].attempt, status.failures[0].reason) == (1, "AgentLost")
        shown = decided(of, observed(said(1, "Failed", 2, reason="AgentLost"), given=pods(dead), attempt=2)).status
        assert shown.failures[0].reason == "AgentLost"

    def test_the_agents_exit_code_stands_for_its_lost_message(self) -> None:
        dead = pod(1, worker_container=container("terminated", end=ended(68)))
        assert decided(job(running()), observed(given=pods(dead))).status.failures[0].reason == "Hung"

    def test_a_message_counts_as_a_report(self) -> None:
        report = said(1, "Failed", exit_code=7)
        dead = pod(1, worker_container=container("terminated", end=ended(7, report=report)))
        status = decided(job(running()), observed(given=pods(dead))).status
        assert (status.attempt, status.failures[0].exit_code) == (2, 7)


def test_a_short_lived_attempt_that_a_rule_ignores_waits_a_little() -> None:
    rules: dict[str, Any] = {"failurePolicy": {"rules": [{"exitCodes": [1], "action": "Ignore"}]}}
    quick = decided(job(running(ago=1.0), **rules), observed(said(1, "Failed")))
    assert (quick.status.phase, quick.status.restarts, quick.status.disruptions) == ("Restarting", 0, 1)
    assert quick.requeue_after == pytest.approx(5.0)
    slow = decided(job(running(ago=60.0), **rules), observed(said(1, "Failed")))
    assert (slow.status.phase, slow.status.attempt) == ("Starting", 2)


def test_only_the_newest_failures_are_kept() -> None:
    old = [{"attempt": number, "reason": "Error", "failed_at": to_text(NOW - 100)} for number in range(20, 10, -1)]
    status = decided(
        job(running(attempt=21, failures=old, restarts=3)), observed(said(0, "Failed", 21), attempt=21)
    ).status
    assert [failure.attempt for failure in status.failures] == list(range(21, 11, -1))


def test_a_clock_set_back_makes_no_negative_interval() -> None:
    of = job(running(phase="Starting", ago=-5000.0), failurePolicy={"startupSeconds": 10})
    assert decided(of, observed(*all_up())).status.phase == "Running"
    restarting = JobStatus.model_validate(running(phase="Restarting", ago=-5000.0).model_dump())
    assert decided(job(restarting), observed()).status.attempt == 2
