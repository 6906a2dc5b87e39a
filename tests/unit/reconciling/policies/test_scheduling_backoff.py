"""If only a part of a job finds nodes, the job gives them up and tries again until its startup time is over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.reconciling.builders import NOW, decided, happened, job, observed, pod, pods, running
from tests.unit.reconciling.world import World
from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus
from trainmaster_operator.reconciling.decision import Apply
from trainmaster_operator.reconciling.observed.snapshot import Observed, PodView, RefusedWrite

STARTUP = 25.0
# The message of the simulated world's scheduler.
ITS_WORDS = "0/1 nodes are available"
WITHOUT_NODE: dict[str, Any] = {"phase": "Pending", "node": None, "worker_container": None, "unschedulable": ITS_WORDS}
FRESH: dict[str, Any] = {"phase": "Pending", "pod_uids": [], "pod_restart_counts": []}
POLICY: dict[str, Any] = {"failurePolicy": {"startupSeconds": STARTUP}}
ELASTIC: dict[str, Any] = {**POLICY, "elastic": {"minWorkers": 1, "maxWorkers": 2}}


def shown(status: JobStatus, name: str = "Running") -> Condition:
    return next(one for one in status.conditions if one.type == name)


def half_started(ago: float, **fields: Any) -> tuple[JobStatus, Observed]:
    status = running(ago=ago, **{**FRESH, **fields})
    return status, observed(given=pods(pod(1, **WITHOUT_NODE)))


def waiting(worker: int) -> PodView:
    return pod(worker, **{**WITHOUT_NODE, "unschedulable": None})


@given(
    rounds=st.lists(
        st.tuples(st.sampled_from([0.2, 0.5, 3.0]), st.sets(st.integers(0, 1)), st.sampled_from([0, 0, 0, 1])),
        min_size=1,
        max_size=30,
    )
)
def test_no_history_of_backoffs_postpones_the_end_of_startup_seconds(
    rounds: list[tuple[float, set[int], int]],
) -> None:
    """Worker 2 never finds a node, the others sometimes do, and operators come and go."""
    world = World(3, **POLICY)
    world.round(0.1)
    began = world.now
    position = 0
    while world.now < began + STARTUP:
        assert world.status.phase != "Failed"
        assert (world.status.attempt, world.status.restarts, world.status.disruptions) == (1, 0, 0)
        # A job that never ran isn't restarting.
        assert world.status.phase in (None, "Pending")
        seconds, without_room, restarts = rounds[position % len(rounds)]
        world.without_room = {2, *without_room}
        if restarts:
            world.restart_operator()
        world.round(min(seconds, began + STARTUP - world.now + 0.001))
        position += 1
    assert (world.status.phase, world.status.attempt) == ("Failed", 1)


def test_a_job_of_which_a_part_never_fits_fails_in_time_and_says_why_all_along() -> None:
    world = World(3, **POLICY)
    world.without_room = {2}
    reasons: list[str] = []
    while world.now < 1_795_233_600.0 + 2 * STARTUP and world.status.phase != "Failed":
        world.round()
        if world.status.phase != "Failed" and world.status.conditions:
            reasons.append(shown(world.status).reason)
    assert world.status.scheduling_backoffs >= 2
    first = reasons.index("Unschedulable")
    assert set(reasons[first:]) == {"Unschedulable"}
    ended = shown(world.status, "Failed")
    assert ended.reason == "Unschedulable"
    assert ended.message.startswith(
        "not all ranks were up within 25 s (startupSeconds): pod bert-2 can't be scheduled: "
    )
    assert world.now - 1_795_233_600.0 == pytest.approx(STARTUP, abs=2.0)


def test_room_that_comes_in_time_is_used_and_the_attempts_number_shows_no_backoff() -> None:
    world = World(3, failurePolicy={"startupSeconds": 60})
    world.without_room = {2}
    for _ in range(80):
        world.round()
    assert (world.status.scheduling_backoffs >= 2, world.status.attempt) == (True, 1)
    world.without_room = set()
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)
    assert (world.status.restarts, world.status.disruptions) == (0, 0)
    assert (world.status.scheduling_backoffs, world.status.startup_start_time) == (0, None)


def test_the_event_names_the_scheduler_s_reason_and_until_when() -> None:
    status, around = half_started(ago=10.0)
    decision = decided(job(status, **POLICY), around)
    assert (decision.status.phase, decision.status.scheduling_backoff) == ("Pending", True)
    assert decision.status.startup_start_time == status.attempt_start_time
    assert "SchedulingBackoff" in happened(decision)
    (message,) = [event.message for event in decision.events if event.reason == "SchedulingBackoff"]
    assert str(decision.status.next_attempt_time) in message
    assert ITS_WORDS in message


def test_until_all_its_pods_have_nodes_a_job_that_never_ran_is_pending_and_held() -> None:
    status, around = half_started(ago=10.0)
    gave_up = decided(job(status, **POLICY), around).status
    assert gave_up.next_attempt_time is not None
    later = (to_seconds(gave_up.next_attempt_time) or 0.0) + 1
    again = decided(job(gave_up, **POLICY), observed(given=[]), later)
    assert (again.status.phase, again.status.scheduling_backoff, again.status.attempt) == ("Pending", None, 1)
    manifests = [each.manifest for each in again.actions if isinstance(each, Apply)]
    (applied,) = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    assert applied["spec"]["replicas"] == 2
    assert '"state":"Hold"' in applied["spec"]["template"]["metadata"]["annotations"]["trainmaster.dev/assignment"]
    opened = decided(job(again.status, **POLICY), observed(), later + 1)
    assert (opened.status.phase, opened.status.attempt) == ("Starting", 2)
    assert opened.status.time_spent is not None
    spent = opened.status.time_spent.model_dump(exclude_none=True, exclude={"until"})
    assert "restart" not in spent and "recompute" not in spent


FULL = 'pods "bert-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=4, limited: pods=4'


def short_of_quota(ago: float, *made: PodView, message: str = FULL, **fields: Any) -> tuple[JobStatus, Observed]:
    refused = RefusedWrite("create the pods of StatefulSet bert", "FailedCreate", message, NOW)
    return running(ago=ago, **{**FRESH, **fields}), observed(given=made, refused_writes=(refused,))


def test_a_job_that_a_quota_lets_make_only_some_pods_gives_them_up_for_a_while() -> None:
    status, around = short_of_quota(10.0, pod(0))
    decision = decided(job(status, **POLICY), around)
    assert decision.status.scheduling_backoff and decision.status.next_attempt_time is not None
    # The wait is long enough that another job's set is touched meanwhile, and makes its pods.
    assert to_seconds(decision.status.next_attempt_time) >= NOW + 10
    (message,) = [event.message for event in decision.events if event.reason == "SchedulingBackoff"]
    assert message.startswith("The job gives up its pods until ") and "exceeded quota: few" in message
    assert shown(decision.status).reason == "QuotaExceeded"


@pytest.mark.parametrize(
    "situation",
    [
        short_of_quota(1.0, pod(0)),
        short_of_quota(10.0),
        short_of_quota(10.0, pod(0), pod(1)),
        short_of_quota(10.0, pod(0), message="no service account"),
        short_of_quota(10.0, pod(0), phase="Running"),
    ],
    ids=["it has patience", "it holds nothing", "all are made", "it is no quota", "it runs"],
)
def test_without_a_quota_between_it_and_the_rest_of_its_pods_it_keeps_them(
    situation: tuple[JobStatus, Observed],
) -> None:
    status, around = situation
    assert not decided(job(status, **POLICY), around).status.scheduling_backoff


def test_what_a_new_failure_leads_to_has_all_of_startup_seconds() -> None:
    status = running(phase="Starting", attempt=2, ago=20.0, scheduling_backoffs=3, startup_start_time=to_text(NOW - 24))
    lost = decided(job(status, **POLICY), observed(given=[pod(0)], attempt=2))
    assert lost.status.phase == "Restarting"
    assert decided(job(lost.status, **POLICY), observed(given=[pod(0)]), NOW + 24).status.phase == "Restarting"
    over = decided(job(lost.status, **POLICY), observed(given=[pod(0)]), NOW + 25)
    assert over.status.phase == "Failed"


class TestElastic:
    """A job that can run with fewer workers gives up nothing as long as those have nodes."""

    def test_it_keeps_its_nodes_and_starts_with_what_it_has_before_it_would_fail(self) -> None:
        status, around = half_started(ago=15.0, worker_order=[0, 1])
        waits = decided(job(status, **ELASTIC), around)
        assert (waits.status.phase, waits.status.scheduling_backoff) == ("Pending", None)
        due = decided(job(waits.status, **ELASTIC), around, NOW + 10)
        assert (due.status.phase, due.status.attempt, due.status.worker_order) == ("Starting", 2, [0])
        assert happened(due)[-1:] != ["Unschedulable"]

    def test_too_few_for_it_fail_as_any_other_job_does(self) -> None:
        few: dict[str, Any] = {**ELASTIC, "elastic": {"minWorkers": 2, "maxWorkers": 2}}
        status, around = half_started(ago=15.0, worker_order=[0, 1])
        left = decided(job(status, **few), around)
        assert left.status.scheduling_backoff
        over = decided(job(left.status, **few), observed(given=[]), NOW + 10)
        assert shown(over.status, "Failed").reason == "Unschedulable"

    def test_with_fewer_workers_it_starts_anew(self) -> None:
        """The startup time of the larger group was over."""
        status = running(
            phase="Restarting",
            ago=30.0,
            scheduling_backoffs=2,
            startup_start_time=to_text(NOW - 25),
            worker_order=[0, 1],
        )
        shrunk = decided(job(status, **ELASTIC), observed(given=pods(waiting(1))))
        assert (shrunk.status.phase, shrunk.status.attempt, shrunk.status.scheduling_backoffs) == ("Starting", 2, 0)
