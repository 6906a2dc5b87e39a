"""A job goes through success, suspension, deadlines and deletion, and a bad spec fails it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    SETTINGS,
    UID,
    all_up,
    decided,
    happened,
    job,
    kinds,
    observed,
    pod,
    running,
    said,
    settled,
    stream,
)
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Condition, JobSpec, JobStatus
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.decision import Apply
from trainmaster_operator.reconciling.observed.snapshot import InvalidSpec, Observed

SUSPENDED: dict[str, Any] = {"runPolicy": {"suspend": True}}


def ended(phase: str = "Succeeded", ago: float = 10.0, **fields: Any) -> JobStatus:
    return running(phase=phase, completion_time=to_text(NOW - ago), **fields)


class TestSuccess:
    def test_all_workers_finished_ends_the_job_and_frees_its_pods(self) -> None:
        of = job(running())
        around = settled(of, observed(said(0, "Finished"), said(1, "Finished")))
        decision = decided(of, around)
        assert decision.status.phase == "Succeeded"
        assert decision.status.completion_time == to_text(NOW)
        assert decision.status.workers.finished == 2
        assert kinds(decision) == ["Apply StatefulSet x0"]
        assert happened(decision) == ["Finished"]

    def test_one_of_two_isnt_enough(self) -> None:
        assert decided(job(running()), observed(said(0, "Finished"))).status.phase == "Running"

    @pytest.mark.parametrize(("finished", "phase"), [(0, "Succeeded"), (1, "Running")])
    def test_rank_zero_is_enough_where_the_policy_says_so(self, finished: int, phase: str) -> None:
        of = job(running(), successPolicy="RankZero")
        around = observed(said(finished, "Finished"), said(1 - finished, "Running"))
        assert decided(of, around).status.phase == phase

    def test_reports_of_an_older_attempt_end_nothing(self) -> None:
        around = observed(said(0, "Finished", 1), said(1, "Finished", 1), attempt=2)
        assert decided(job(running(attempt=2)), around).status.phase == "Running"

    def test_ranks_that_finish_while_they_are_being_suspended_have_finished(self) -> None:
        of = job(running(phase="Suspended"), **SUSPENDED)
        assert decided(of, observed(said(0, "Finished"), said(1, "Finished"))).status.phase == "Succeeded"


class TestEnded:
    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_terminal_is_terminal(self, phase: str) -> None:
        of = job(ended(phase), failurePolicy={"maxRestarts": 9})
        for around in (
            observed(*all_up()),
            observed(said(0, "Failed")),
            Observed(),
            observed(given=[pod(0, uid="new")]),
        ):
            decision = decided(of, around)
            assert decision.status == of.status
            assert not any("Assign" in kind or "Service" in kind for kind in kinds(decision))

    def test_its_sets_are_scaled_to_zero_until_they_are(self) -> None:
        before = job(running())
        around = settled(before, observed(*all_up()))
        assert kinds(decided(job(ended()), around)) == ["Apply StatefulSet x0"]
        (scaled,) = [child for child in around.children if child.kind == "StatefulSet"]
        none = replace(around, children=(replace(scaled, replicas=0),))
        assert kinds(decided(job(ended()), none)) == []

    @pytest.mark.parametrize(
        ("keep", "phase", "kept"),
        [
            ("All", "Succeeded", True),
            ("All", "Failed", True),
            ("Failed", "Failed", True),
            ("Failed", "Succeeded", False),
            ("None", "Failed", False),
        ],
    )
    def test_pods_are_kept_where_the_job_says_so_and_never_train_again(self, keep: str, phase: str, kept: bool) -> None:
        policy: dict[str, Any] = {"runPolicy": {"keepPods": keep}}
        before = job(running(), **policy)
        decision = decided(job(ended(phase), **policy), settled(before, observed(*all_up())))
        if kept:
            assert kinds(decision) == ["Assign 1 Hold to bert-0,bert-1", "Apply StatefulSet x2"]
            (applied,) = [action for action in decision.actions if isinstance(action, Apply)]
            template = applied.manifest["spec"]["template"]["metadata"]["annotations"]
            assert '"state":"Hold"' in template["trainmaster.dev/assignment"]
        else:
            assert kinds(decision) == ["Apply StatefulSet x0"]

    def test_its_children_are_never_made_again(self) -> None:
        assert kinds(decided(job(ended()), Observed())) == []

    def test_it_is_deleted_when_its_time_to_live_is_over(self) -> None:
        of = job(ended(ago=10.0), runPolicy={"ttlSecondsAfterFinished": 60})
        waits = decided(of, Observed())
        assert kinds(waits) == []
        assert waits.requeue_after == pytest.approx(50.0)
        assert kinds(decided(of, Observed(), NOW + 50)) == ["Delete job"]
        assert kinds(decided(job(ended()), Observed(), NOW + 1e9)) == []


def suspended_since(status: JobStatus) -> Condition | None:
    return next((each for each in status.conditions if (each.type, each.status) == ("Suspended", "True")), None)


class TestSuspension:
    def test_a_job_born_suspended_makes_nothing_and_begins_when_it_may(self) -> None:
        born = decided(job(**SUSPENDED), Observed())
        assert (born.status.phase, born.status.attempt, born.status.start_time) == ("Suspended", 0, None)
        assert (kinds(born), happened(born)) == ([], ["Suspended"])
        begun = decided(job(born.status), Observed(), NOW + 50)
        assert (begun.status.phase, begun.status.attempt) == ("Pending", 1)
        assert begun.status.start_time == to_text(NOW + 50)
        assert happened(begun) == ["Resumed"]

    def test_suspending_scales_to_zero_and_resuming_opens_a_new_attempt_with_the_new_pods(self) -> None:
        of = job(running(), **SUSPENDED)
        around = settled(job(running()), observed(*all_up()))
        decision = decided(of, around)
        assert (decision.status.phase, kinds(decision)) == ("Suspending", ["Apply StatefulSet x0"])
        assert happened(decision) == ["Suspending"]
        going = [replace(pod, deleting=True) for pod in around.pods]
        away = decided(job(decision.status, **SUSPENDED), replace(around, pods=tuple(going)))
        assert away.status.attempt == 1
        assert away.status.restarts == 0
        # The user may resume the job while its pods still save a checkpoint.
        back = decided(job(away.status), replace(around, pods=tuple(going)), NOW + 100)
        assert (back.status.phase, back.status.attempt, happened(back)) == ("Restarting", 1, ["Resumed"])
        assert kinds(back) == ["Apply StatefulSet x2"]
        assert back.status.suspended_seconds == pytest.approx(100, abs=1.1)
        new = [pod(0, uid="a"), pod(1, uid="b")]
        opened = decided(job(back.status), observed(given=new), NOW + 101)
        assert (opened.status.phase, opened.status.attempt, opened.status.pod_uids) == ("Starting", 2, ["a", "b"])

    def test_a_job_is_suspended_once_its_last_pod_is_gone(self) -> None:
        of, around = job(running(), **SUSPENDED), observed(*all_up())
        saving = [replace(pod, deleting=True) for pod in around.pods]
        first = decided(of, observed(given=saving))
        assert (first.status.phase, first.status.workers.created, first.status.replicas) == ("Suspending", 2, 2)
        later = decided(job(first.status, **SUSPENDED), observed(given=saving[:1]), NOW + 20)
        assert (later.status.phase, later.status.workers.created, later.status.replicas) == ("Suspending", 1, 1)
        gone = decided(job(later.status, **SUSPENDED), observed(given=[]), NOW + 40)
        assert (gone.status.phase, gone.status.workers.created, gone.status.replicas) == ("Suspended", 0, 0)
        assert (happened(later), happened(gone)) == ([], ["Suspended"])
        # As for a batch/v1 Job, the condition is true from the beginning.
        times = {held.last_transition_time for each in (first, gone) if (held := suspended_since(each.status))}
        assert len(times) == 1
        assert gone.status.time_spent is not None and gone.status.time_spent.suspended == pytest.approx(40, abs=1)

    def test_suspended_time_isnt_active_time(self) -> None:
        limit: dict[str, Any] = {"runPolicy": {"activeDeadlineSeconds": 1100}}
        assert decided(job(running(), **limit), observed(*all_up()), NOW + 100).status.phase == "Failed"
        slept = running(suspended_seconds=500)
        assert decided(job(slept, **limit), observed(*all_up()), NOW + 100).status.phase == "Running"
        asleep = job(running(phase="Suspended"), runPolicy={"activeDeadlineSeconds": 1, "suspend": True})
        assert decided(asleep, Observed(), NOW + 1e6).status.phase == "Suspended"
        assert decided(asleep, observed(), NOW + 1e6).status.phase == "Suspending"


def test_the_active_deadline_ends_the_job() -> None:
    of = job(running(), runPolicy={"activeDeadlineSeconds": 1100})
    waits = decided(of, observed(*all_up()))
    assert waits.requeue_after == pytest.approx(100)
    over = decided(of, observed(*all_up()), NOW + 100)
    assert over.status.phase == "Failed"
    assert happened(over) == ["DeadlineExceeded"]
    assert over.status.restarts == 0


def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    of = replace(job(running()), deleting=True)
    decision = decide(of, observed(said(0, "Failed")), NOW, SETTINGS)
    assert (decision.status, decision.actions, decision.events) == (of.status, (), ())


WRONG = InvalidSpec("spec.workers: 0 is not at least 1", ttl_seconds_after_finished=60)


def accepted(status: JobStatus) -> Condition:
    return next(one for one in status.conditions if one.type == "Accepted")


class TestInvalid:
    @pytest.mark.parametrize("spec", [None, job().spec], ids=["a field is wrong", "only a rule is broken"])
    @pytest.mark.parametrize("before", [JobStatus(), JobStatus(phase="Pending")], ids=["new", "of an older operator"])
    def test_a_job_that_was_never_accepted_fails_at_once(self, spec: JobSpec | None, before: JobStatus) -> None:
        of = replace(job(before), spec=spec, invalid=WRONG)
        decision = decided(of, Observed())
        status = decision.status
        assert (status.phase, status.attempt, status.completion_time) == ("Failed", 0, to_text(NOW))
        assert decision.actions == ()
        # `kubectl get` shows the content of Running in its own columns.
        assert {one.type: one.status for one in status.conditions} == {
            "Accepted": "False",
            "Running": "False",
            "Failed": "True",
        }
        assert {(one.reason, one.message) for one in status.conditions} == {("InvalidSpec", WRONG.message)}
        # A sentence doesn't begin with a field's name.
        assert [(event.reason, event.message) for event in decision.events] == [("InvalidSpec", WRONG.message)]
        again = decided(replace(of, status=status), Observed())
        assert (again.status, again.events, again.actions) == (status, (), ())

    def test_one_that_failed_so_is_deleted_when_its_time_to_live_is_over(self) -> None:
        of = replace(job(), spec=None, invalid=WRONG)
        failed = replace(of, status=decided(of, Observed()).status)
        waits = decided(failed, Observed(), NOW + 20)
        assert (kinds(waits), waits.requeue_after) == ([], pytest.approx(40))
        assert kinds(decided(failed, Observed(), NOW + 60)) == ["Delete job"]
        forever = replace(failed, invalid=InvalidSpec("no"))
        assert kinds(decided(forever, Observed(), NOW + 1e9)) == []

    def test_one_that_failed_so_stays_failed_when_its_spec_is_corrected(self) -> None:
        status = decided(replace(job(), spec=None, invalid=WRONG), Observed()).status
        corrected = decided(job(status), Observed())
        assert (corrected.status, corrected.actions, corrected.events) == (status, (), ())

    @pytest.mark.parametrize("around", ["an attempt", "children", "suspension"])
    def test_one_that_an_older_operator_accepted_goes_on_and_a_condition_says_what_is_wrong(self, around: str) -> None:
        before = {
            "an attempt": running(),
            "children": JobStatus(),
            "suspension": JobStatus(phase="Suspended"),
        }[around]
        sound = job(before)
        seen = settled(job(running()), observed(*all_up())) if around != "suspension" else Observed()
        decision = decided(replace(sound, invalid=WRONG), seen)
        expected = decided(sound, seen)
        assert decision.actions == expected.actions
        assert decision.status.phase == expected.status.phase != "Failed"
        condition = accepted(decision.status)
        assert (condition.status, condition.reason) == ("True", "InvalidSpec")
        assert condition.message.endswith(WRONG.message)
        # A second pass doesn't fail it either, because an older operator had accepted the job.
        later = decided(replace(sound, status=decision.status, invalid=WRONG), seen)
        assert later.status.phase != "Failed"

    def test_with_a_field_that_cannot_be_read_it_is_left_alone(self) -> None:
        before = decided(job(running()), observed(*all_up())).status
        decision = decided(replace(job(before), spec=None, invalid=WRONG), observed(said(0, "Failed")))
        assert (decision.actions, decision.status.phase) == ((), "Running")
        assert {one.type: one.status for one in decision.status.conditions} == {"Accepted": "False", "Running": "True"}
        assert happened(decision) == ["InvalidSpec"]

    def test_with_a_field_that_cannot_be_read_and_no_status_the_columns_say_so(self) -> None:
        children = settled(job(running()), observed(*all_up()))
        status = decided(replace(job(), spec=None, invalid=WRONG), children).status
        assert status.phase == "Pending"
        assert {(one.type, one.status) for one in status.conditions} == {("Accepted", "False"), ("Running", "False")}


def test_of_a_job_whose_past_cannot_be_read_only_one_condition_is_written() -> None:
    of = replace(job(), unreadable="the status can't be read")
    decision = decided(of, observed(*all_up()))
    (condition,) = decision.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Accepted", "False", "Unreadable")
    assert decision.status.model_copy(update={"conditions": []}) == of.status
    assert decision.actions == ()
    assert decided(replace(of, status=decision.status), Observed()).status == decision.status


def test_the_scale_subresource_finds_the_pods() -> None:
    status = decided(job(running()), observed(*all_up())).status
    assert (status.replicas, status.selector) == (2, f"trainmaster.dev/job-uid={UID}")


def test_a_leader_that_has_just_said_hello_has_yet_to_report_who_is_up() -> None:
    """Its kept reports arrive a moment later, and a restarted operator has nothing to write because of that."""
    status = decided(job(running()), observed(*all_up())).status
    hello = replace(stream(), since=NOW - 0.01)
    between = decided(job(status), observed(stream=hello))
    assert (status.workers.running, between.status.workers.running) == (2, 2)
    assert decided(job(status), observed(stream=stream())).status.workers.running == 0
