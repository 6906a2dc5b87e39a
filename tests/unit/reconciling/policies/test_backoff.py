"""If the kubelet's crash back-off delays a worker, the worker gets a new pod as part of the current restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
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
)
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.decision import Assign, Decision
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.rendering import Settings


def exited(worker: int = 1, attempt: int = 1, *, restarts: int = 1, ago: float = 1.0, **fields: Any) -> PodView:
    """Returns a pod whose container has ended with its agent's report, after so many restarts."""
    end = ended(1, ago=ago, report=said(worker, "Failed", attempt, ago=ago))
    return pod(worker, worker_container=container("terminated", **{"restarts": restarts, "end": end, **fields}))


def waiting(message: str, *, restarts: int = 1, ago: float = 1.0, reason: str = "CrashLoopBackOff") -> PodView:
    """Returns the same pod while the kubelet delays its restart."""
    end = ended(1, ago=ago, report=said(1, "Failed", ago=ago))
    view = container("waiting", restarts=restarts, last_end=end, reason=reason, message=message)
    return pod(1, worker_container=view)


def answer(*given: PodView, status: JobStatus | None = None, **policy: Any) -> Decision:
    of = job(status or running(), failurePolicy=policy) if policy else job(status or running())
    return decided(of, settled(of, observed(given=pods(*given))))


def test_the_pod_is_deleted_while_the_attempt_is_held_and_reported_once() -> None:
    decision = answer(exited())
    status = decision.status
    assert (status.phase, status.attempt, status.restarts, status.disruptions) == ("Restarting", 1, 1, 0)
    assert status.replacing_pod_uids == ["uid-1"]
    # The template comes first, because the new pod must not begin the old attempt again.
    assert kinds(decision) == ["Assign 1 Hold to bert-0", "Apply StatefulSet x2", "Delete bert-1"]
    assert happened(decision) == ["Error", "ReplacingPods"]
    (shown,) = [item for item in status.conditions if item.type == "Running"]
    assert shown.reason == "ReplacingPods"
    assert "replacing bert-1, which the kubelet's crash back-off would keep waiting" in shown.message


@pytest.mark.parametrize(
    "around",
    [
        pods(pod(1, deleting=True, deadline=NOW + 30, worker_container=exited().worker_container)),
        pods()[:1],
        pods(pod(1, uid="new", node=None, worker_container=None)),
    ],
    ids=["on its way out", "gone", "replaced"],
)
def test_its_loss_is_no_disruption_and_one_attempt_opens_when_the_new_pod_is_there(around: tuple[PodView, ...]) -> None:
    # A stronger cause could still replace the recorded one, and the operator may be another one by now.
    status = decided(job(answer(exited()).status), observed(given=around), NOW + 0.5).status
    assert (status.restarts, status.disruptions, status.failures[0].reason) == (1, 0, "Error")
    if around[-1].uid == "new":
        assert (status.phase, status.attempt, status.pod_uids) == ("Pending", 2, ["uid-0", "new"])
        assert status.replacing_pod_uids == []
    else:
        assert (status.phase, status.attempt) == ("Restarting", 1)


def test_all_that_has_exited_is_replaced_together() -> None:
    assert answer(exited(0), exited(1)).status.replacing_pod_uids == ["uid-0", "uid-1"]


@pytest.mark.parametrize(
    "view",
    [
        exited(restarts=0),
        exited(started_at=None, end=replace(ended(137), started_at=NOW - 10)),
        exited(started_at=None, end=ended(128, "StartError")),
        exited(end=ended(1, "StartError")),
        exited(end=ended(1, report=said(1, "Failed", 2))),
        exited(ago=6.0),
        waiting("back-off 5s restarting failed container=worker"),
        waiting("back-off 10s restarting failed container=worker", ago=12.0),
        waiting("", reason="ImagePullBackOff"),
        waiting("", reason="CreateContainerError"),
        pod(1, worker_container=container("running", restarts=1, last_end=ended(1, report=said(1, "Failed")))),
    ],
    ids=[
        "the first restart comes at once",
        "an agent that died by itself, soon after its start",
        "an end that was no life",
        "a container that couldn't be started",
        "a report of no attempt that is over",
        "a wait that is over sooner than a new pod is there",
        "a short wait, by the kubelet's message",
        "a wait that is over, by the kubelet's message",
        "an image",
        "a container that can't be made",
        "started again meanwhile",
    ],
)
def test_nobody_else_is_replaced(view: PodView) -> None:
    failed = said(0, "Failed")
    of = job(running())
    decision = decided(of, settled(of, observed(failed, given=pods(view))))
    assert (decision.status.replacing_pod_uids, decision.status.attempt) == ([], 2)
    assert not [kind for kind in kinds(decision) if "Delete" in kind]


def killed(restarts: int = 1, ran: float = 60.0, reason: str = "Error") -> PodView:
    """Returns a pod whose container was killed a second ago without a report, after so many seconds."""
    end = replace(ended(137, reason), started_at=NOW - 1.0 - ran)
    return pod(1, worker_container=container("terminated", started_at=None, restarts=restarts, end=end))


@pytest.mark.parametrize(
    ("view", "reported", "replaced"),
    [
        (killed(), False, True),
        (killed(reason="OOMKilled"), False, True),
        (killed(ran=10.0), False, True),
        (killed(ran=9.0), False, False),
        (killed(ran=0.5), True, True),
        (killed(restarts=0), True, False),
    ],
    ids=["long at work", "for memory", "just long enough", "not long enough", "heard of", "its first end"],
)
def test_an_agent_that_was_killed_at_work_is_not_waited_for(view: PodView, reported: bool, replaced: bool) -> None:
    reports = [said(0, "Running"), *([said(1, "Running")] if reported else [])]
    of = job(running())
    decision = decided(of, settled(of, observed(*reports, given=pods(view))))
    status = decision.status
    assert (status.restarts, status.disruptions) == (1, 0)
    assert status.replacing_pod_uids == (["uid-1"] if replaced else [])
    assert ("Delete bert-1" in kinds(decision)) is replaced


def test_a_new_pod_that_dies_by_itself_is_not_replaced_again() -> None:
    """The operator had heard from the previous pod, but not from the new one."""
    status = answer(killed()).status
    new = replace(killed(ran=0.5), uid="new")
    later = job(decided(job(status), observed(said(1, "Running"), given=pods(new)), NOW + 0.5).status)
    assert decided(later, observed(said(1, "Running"), given=pods(new)), NOW + 1.0).status.replacing_pod_uids == []


def test_the_budget_ends_a_row_of_killed_agents() -> None:
    status = answer(killed(), status=running(restarts=2), maxRestarts=2).status
    assert (status.phase, status.replacing_pod_uids) == ("Failed", [])


def test_a_pod_that_may_hold_all_that_is_left_of_the_state_is_waited_for() -> None:
    of = job(running(workers=1), workers=1)
    alone = replace(killed(), name="bert-0", uid="uid-0", worker=0)
    assert decided(of, settled(of, observed(given=(alone,)))).status.replacing_pod_uids == []


@pytest.mark.parametrize(
    ("message", "restarts", "ago", "replaced"),
    [
        ("back-off 1m20s restarting failed container=worker", 4, 60.0, True),
        ("back-off 1m20s restarting failed container=worker", 4, 76.0, False),
        ("back-off 2.5s restarting failed container=worker", 5, 1.0, False),
        ("back-off 5m0s restarting failed container=worker", 9, 200.0, True),
        ("a message that nobody knows", 3, 30.0, True),
    ],
)
def test_the_kubelets_message_says_how_long_it_waits(message: str, restarts: int, ago: float, replaced: bool) -> None:
    assert answer(waiting(message, restarts=restarts, ago=ago)).status.replacing_pod_uids == (
        ["uid-1"] if replaced else []
    )


def test_a_container_that_ran_for_ten_minutes_starts_again_at_once() -> None:
    end = replace(ended(1, ago=1.0, report=said(1, "Failed", ago=1.0)), started_at=NOW - 700)
    assert answer(exited(restarts=3, end=end)).status.replacing_pod_uids == []
    assert answer(exited(restarts=3, end=replace(end, started_at=NOW - 500))).status.replacing_pod_uids == ["uid-1"]


def test_the_jobs_own_back_off_rules_where_it_is_the_longer_one() -> None:
    longer = answer(exited(), backoff={"initialSeconds": 30}).status
    assert (longer.phase, longer.replacing_pod_uids) == ("Restarting", [])
    shorter = answer(exited(restarts=4), backoff={"initialSeconds": 30}).status
    assert (shorter.replacing_pod_uids, shorter.next_attempt_time) == (["uid-1"], to_text(NOW + 30))
    of = job(shorter, failurePolicy={"backoff": {"initialSeconds": 30}})
    early = decided(of, observed(given=pods(pod(1, uid="new"))))
    assert (early.status.phase, early.status.attempt) == ("Restarting", 1)


def test_a_job_without_a_restart_left_fails_and_replaces_nobody() -> None:
    decision = answer(exited(), maxRestarts=0)
    assert (decision.status.phase, decision.status.replacing_pod_uids) == ("Failed", [])
    assert not [kind for kind in kinds(decision) if "Delete" in kind]


def test_what_a_rule_ignores_could_go_on_for_ever_and_waits_for_the_kubelet() -> None:
    status = answer(exited(), status=running(ago=100), rules=[{"exitCodes": [1], "action": "Ignore"}]).status
    assert (status.attempt, status.replacing_pod_uids) == (2, [])


def test_checkpoints_that_would_go_with_the_pod_are_worth_the_wait() -> None:
    of = job(running(), checkpoint={"volume": {"emptyDir": True}})
    assert decided(of, settled(of, observed(given=pods(exited())))).status.replacing_pod_uids == []


@pytest.mark.parametrize(("seconds", "replaced"), [(None, False), (5.0, True), (20.0, False)])
def test_the_operators_settings_say_which_waits_are_too_long(seconds: float | None, replaced: bool) -> None:
    of = job(running())
    status = decide(of, observed(given=pods(exited())), NOW, Settings(replace_after_seconds=seconds)).status
    assert status.replacing_pod_uids == (["uid-1"] if replaced else [])


class TestExitsThatComeToLightLater:
    def test_before_the_next_attempt_is_open(self) -> None:
        status = answer(exited(1)).status
        late = decided(job(status), observed(given=pods(exited(0), pod(1, uid="new"))), NOW + 0.5)
        assert (late.status.phase, late.status.replacing_pod_uids) == ("Restarting", ["uid-1", "uid-0"])
        assert "Delete bert-0" in kinds(late) and "Delete bert-1" not in kinds(late)
        assert (late.status.restarts, late.status.disruptions) == (1, 0)
        both = decided(job(late.status), observed(given=pods(pod(0, uid="n0"), pod(1, uid="n1"))), NOW + 1)
        assert (both.status.attempt, both.status.pod_uids) == (2, ["n0", "n1"])

    def test_after_it_has_opened_with_that_pod(self) -> None:
        first = answer(exited(1, restarts=0)).status
        assert (first.phase, first.attempt) == ("Starting", 2)
        late = decided(job(first), observed(given=pods(exited(0), pod(1)), attempt=2), NOW + 0.3)
        assert (late.status.phase, late.status.attempt, late.status.replacing_pod_uids) == ("Restarting", 2, ["uid-0"])
        assert (late.status.restarts, late.status.disruptions, len(late.status.failures)) == (1, 0, 1)
        assert "Delete bert-0" in kinds(late)
        # Its ranks wait for a peer that never joins, so they have no checkpoint to save.
        (held,) = [action.assignment for action in late.actions if isinstance(action, Assign)]
        assert (held.state, held.grace_seconds) == ("Hold", 0.4)
        again = decided(job(late.status), observed(given=pods(pod(0, uid="new"), pod(1)), attempt=2), NOW + 1)
        assert (again.status.phase, again.status.attempt, again.status.restarts) == ("Starting", 3, 1)

    def test_a_report_of_the_attempt_that_runs_is_answered_as_a_failure(self) -> None:
        first = answer(exited(1, restarts=0)).status
        failed = decided(job(first), observed(given=pods(exited(0, attempt=2), pod(1)), attempt=2), NOW + 1).status
        assert (failed.restarts, failed.phase, failed.failures[0].count) == (2, "Restarting", 2)


def test_a_pod_that_has_come_back_by_itself_is_kept() -> None:
    """The operator was killed between its status and the deletion, and the kubelet was faster than the next one."""
    status = answer(exited()).status
    decision = decided(job(status), observed(), NOW + 12)
    assert (decision.status.phase, decision.status.attempt) == ("Starting", 2)
    assert not [kind for kind in kinds(decision) if "Delete" in kind]


def test_a_suspended_job_forgets_which_pods_it_was_replacing() -> None:
    status = answer(exited()).status
    of = job(status, runPolicy={"suspend": True})
    assert decided(of, observed(given=pods(exited()))).status.replacing_pod_uids == []
