"""`policies.requests` decides which request for stacks to pass on, and when, and passes it on once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.reconciling.builders import NOW, all_up, decided, job, observed, running
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import JobStatus, StacksRequest
from trainmaster_operator.reconciling.decision import CollectStacks, Decision
from trainmaster_operator.reconciling.observed.snapshot import Observed, StreamView
from trainmaster_operator.reconciling.policies.requests import STACKS_INTERVAL


def asked(decision: Decision) -> list[CollectStacks]:
    return [action for action in decision.actions if isinstance(action, CollectStacks)]


def decide(request: str, status: JobStatus, around: Observed | None = None, now: float = NOW) -> Decision:
    of = replace(job(status), stacks_request=request)
    return decided(of, observed(*all_up()) if around is None else around, now)


def settled() -> JobStatus:
    """Returns a running job's status without a request for stacks."""
    return decide("", running()).status


def answered(request: str, ago: float) -> JobStatus:
    return settled().model_copy(update={"stacks_request": StacksRequest(id=request, asked_at=to_text(NOW - ago))})


def test_a_new_request_is_recorded_and_the_workers_of_the_attempt_are_asked_once() -> None:
    decision = decide("one", settled())
    assert decision.status.stacks_request == StacksRequest(id="one", asked_at=to_text(NOW))
    assert asked(decision) == [CollectStacks("one", 1, (0, 1))]
    again = decide("one", decision.status)
    assert again.status == decision.status and asked(again) == []


def test_who_asks_for_nothing_gets_nothing() -> None:
    assert asked(decide("", answered("one", 1.0))) == [] == asked(decide("", settled()))


def test_an_operator_that_comes_back_does_not_ask_again() -> None:
    assert asked(decide("one", answered("one", 3_600.0))) == []


def test_requests_that_follow_each_other_closely_wait_for_their_turn() -> None:
    status = answered("one", 2.0)
    early = decide("two", status)
    assert early.status == status and asked(early) == []
    assert early.requeue_after == pytest.approx(STACKS_INTERVAL - 2.0, abs=0.01)
    assert asked(decide("two", status, now=NOW + STACKS_INTERVAL)) == [CollectStacks("two", 1, (0, 1))]


def test_a_time_of_another_clock_holds_nothing_up() -> None:
    assert asked(decide("two", answered("one", -3_600.0)))


def test_nobody_is_asked_without_a_leader_or_without_ranks() -> None:
    unwatched = observed(*all_up(), stream=StreamView())
    assert asked(decide("one", settled(), unwatched)) == []
    for phase in ("Suspended", "Succeeded", "Failed"):
        assert asked(decide("one", running(phase=phase))) == []
