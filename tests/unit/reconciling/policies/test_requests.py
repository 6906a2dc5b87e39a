"""New code and requested restarts cause a planned stop and one more attempt in the same pods; nothing is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    all_up,
    container,
    decided,
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
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.reconciling.decision import Assign, Decision
from trainmaster_operator.reconciling.observed.snapshot import Job

OLD, NEW = "a" * 64, "b" * 64


def pushed(status: JobStatus, **spec: Any) -> Job:
    """Returns a job whose attempt has OLD, and whose spec names NEW."""
    return job(status.model_copy(update={"code_digest": OLD}), code={"digest": NEW, "configMap": "bert-code"}, **spec)


def assigned(decision: Decision) -> Assign:
    return next(action for action in decision.actions if isinstance(action, Assign))


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Running"])
def test_new_code_stops_the_ranks_with_their_whole_grace(phase: str) -> None:
    of = pushed(running(phase=phase))
    decision = decided(of, settled(of, observed(*all_up())))
    status = decision.status
    assert (status.phase, status.stopping, status.attempt, status.code_digest) == ("Restarting", True, 1, OLD)
    assert (status.restarts, status.disruptions, status.failures) == (0, 0, [])
    assert happened(decision)[0] == "CodeChanged"
    hold = assigned(decision).assignment
    assert (hold.state, hold.grace_seconds, hold.code) == ("Hold", 55.0, OLD)


def test_a_restart_is_requested_by_any_new_value() -> None:
    of = replace(job(running(restart_request="1")), restart_request="2")
    decision = decided(of, observed(*all_up()))
    assert (decision.status.phase, decision.status.stopping) == ("Restarting", True)
    assert happened(decision)[0] == "RestartRequested"
    for same in ("1", None):
        assert decided(replace(of, restart_request=same), observed(*all_up())).status.phase == "Running"


def test_the_next_attempt_opens_in_place_when_all_ranks_have_left() -> None:
    held = running(phase="Restarting", stopping=True, next_attempt_time=to_text(NOW + 20))
    of = replace(pushed(held), restart_request="2")
    assert decided(of, observed(said(0, "Stopped"), said(1, "Running"))).status.phase == "Restarting"
    decision = decided(of, settled(of, observed(said(0, "Stopped"), said(1, "Stopped"))))
    status = decision.status
    assert (status.phase, status.attempt, status.stopping, status.code_digest) == ("Starting", 2, None, NEW)
    assert (status.restart_request, status.restarts, status.disruptions) == ("2", 0, 0)
    run = assigned(decision).assignment
    assert (run.state, run.attempt, run.code) == ("Run", 2, NEW)
    assert "Apply StatefulSet x2" in kinds(decision)


def test_ranks_that_had_their_time_are_not_waited_for() -> None:
    held = running(phase="Restarting", stopping=True, next_attempt_time=to_text(NOW - 1))
    assert decided(pushed(held), observed(said(0, "Stopped"), said(1, "Running"))).status.attempt == 2


def test_who_never_began_is_not_waited_for() -> None:
    held = running(phase="Restarting", stopping=True, next_attempt_time=to_text(NOW + 20), pod_uids=[])
    waiting = pod(0, node=None, worker_container=None)
    around = observed(said(1, "Waiting"), given=pods(waiting))
    assert decided(pushed(held), around).status.attempt == 2
    silent = observed(said(1, "Waiting"), given=pods(pod(0, worker_container=container())))
    assert decided(pushed(held), silent).status.attempt == 1


def test_a_rank_that_failed_is_answered_as_a_failure_and_takes_the_new_code_with_it() -> None:
    of = pushed(running())
    status = decided(of, observed(said(0, "Failed"), said(1, "Running"))).status
    assert (status.attempt, status.restarts, status.code_digest) == (2, 1, NEW)


def test_a_back_off_ends_at_once() -> None:
    failure = Failure(attempt=1, reason="Error", failed_at=to_text(NOW - 5))
    held = running(phase="Restarting", failures=[failure], restarts=1, next_attempt_time=to_text(NOW + 60))
    around = observed(said(0, "Failed", ago=5.0), said(1, "Stopped", ago=5.0))
    of = pushed(held, failurePolicy={"backoff": {"initialSeconds": 60}})
    first = decided(of, around).status
    assert (first.phase, first.next_attempt_time) == ("Restarting", None)
    status = decided(replace(of, status=first), around).status
    assert (status.attempt, status.restarts, status.code_digest) == (2, 1, NEW)
    same = replace(of, status=held.model_copy(update={"code_digest": NEW}))
    assert decided(same, around).status.next_attempt_time is not None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_job_that_has_ended_stays_so(phase: str) -> None:
    of = replace(pushed(running(phase=phase, completion_time=to_text(NOW - 1))), restart_request="2")
    assert decided(of, observed(*all_up())).status == of.status


def test_a_suspended_job_takes_the_code_when_it_goes_on() -> None:
    of = pushed(running(phase="Suspended"), runPolicy={"suspend": True})
    assert decided(of, observed(given=[])).status.phase == "Suspended"


def test_a_pod_counts_as_having_seen_an_attempt_only_when_it_has_reported() -> None:
    """An agent that waits for its code has seen the assignment, but its volume may be late."""
    of = job(running(2, phase="Starting", ago=2.0, code_digest=NEW), code={"digest": NEW, "configMap": "bert-code"})
    around = settled(of, observed(said(0, "Starting", 2), attempt=2, stream=stream(2)))
    assert kinds(decided(of, around)) == ["Touch bert-1"]
