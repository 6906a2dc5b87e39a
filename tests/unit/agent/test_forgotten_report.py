"""An acknowledged report whose operator is gone: it may have died before it wrote it down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainmaster.agent.loop import Loop
from trainmaster.agent.planner.leaving import FORGOTTEN_SECONDS, PATIENCE_SECONDS, Leaving, Standing
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.report import Report

from .test_parsers import GOOD

ASSIGNMENT = Assignment.parse(GOOD)
FINISHED = Report(ASSIGNMENT.attempt, 1, "uid", "Finished", exit_code=0)
FAILED = Report(ASSIGNMENT.attempt, 1, "uid", "Failed", exit_code=1, reason="Error", culprit=False)


class Worker:
    """Worker 1, which has finished its attempt ten seconds ago and was acknowledged. Nothing runs."""

    def __init__(self, termination_log: Path) -> None:
        self.assignment: Assignment = ASSIGNMENT
        self.report = FINISHED
        self.followed = False
        self.leaving = Leaving(Loop(), str(termination_log), self.standing, lambda report: None, pytest.fail)
        self.leaving.ended()
        self.leaving._ended_at = time.monotonic() - 10
        self.leaving.acknowledged(ASSIGNMENT.attempt)

    def standing(self) -> Standing:
        return Standing(self.report, self.assignment, 0, self.followed, True)

    def follow(self, value: bool) -> None:
        self.followed = value
        self.leaving.followers_changed()

    def exit_delay(self) -> float | None:
        return self.leaving.exit_delay(self.standing())


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path / "termination-log")


def test_while_an_operator_follows_it_stays(worker: Worker) -> None:
    worker.follow(True)
    assert worker.exit_delay() is None


def test_without_any_operator_it_is_made_by_exiting_after_a_while(worker: Worker) -> None:
    worker.follow(False)
    first = worker.exit_delay()
    assert first == pytest.approx(10 + FORGOTTEN_SECONDS, abs=0.5)
    worker.follow(False)
    assert worker.exit_delay() == first


def test_an_operator_that_comes_back_in_time_stops_that(worker: Worker) -> None:
    worker.follow(False)
    worker.follow(True)
    assert worker.exit_delay() is None


def test_who_says_hold_has_taken_it_in(worker: Worker) -> None:
    worker.assignment = ASSIGNMENT._replace(state="Hold")
    worker.follow(False)
    assert worker.exit_delay() is None


@pytest.mark.parametrize(
    ("report", "state", "seconds"),
    [
        (FAILED, "Run", PATIENCE_SECONDS),
        (FAILED, "Hold", FORGOTTEN_SECONDS),
        (FAILED._replace(culprit=True), "Hold", 0.0),
    ],
    ids=["nobody has answered", "the attempt is held", "the culprit's own word"],
)
def test_a_bystander_waits_for_the_next_attempt_longer_where_the_operator_says_hold(
    worker: Worker, report: Report, state: str, seconds: float
) -> None:
    """It may be waiting for another worker's new pod, and each exit is one nearer to the kubelet's back-off."""
    worker.report, worker.assignment = report, ASSIGNMENT._replace(state=state)
    worker.leaving.ended()
    worker.leaving._new_lead_until = 0.0
    assert worker.exit_delay() == seconds
