"""An acknowledged report whose operator is gone: it may have died before it wrote it down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainmaster.agent.assignment import from_wire
from trainmaster.agent.report import Report
from trainmaster.agent.settings import read_settings
from trainmaster.agent.worker import FORGOTTEN_SECONDS, Worker

from .test_parsers import GOOD


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """Worker 1, which has finished its attempt ten seconds ago and was acknowledged. Nothing runs."""
    made = Worker(read_settings({"TRAINMASTER_WORKER": "1", "TRAINMASTER_STATE_DIR": str(tmp_path)}), ["true"], {})
    made._assignment = from_wire(GOOD)
    made._report = Report(made._assignment.attempt, 1, "uid", "Finished", exit_code=0)
    made._ended_at = time.monotonic() - 10
    made._acked_attempt = made._assignment.attempt
    made._link.lead = 0
    return made


def follow(worker: Worker, value: bool) -> None:
    worker._link.followed = value
    worker._changed()


def test_while_an_operator_follows_it_stays(worker: Worker) -> None:
    follow(worker, True)
    assert worker._exit_delay() is None


def test_without_any_operator_it_is_made_by_exiting_after_a_while(worker: Worker) -> None:
    follow(worker, False)
    first = worker._exit_delay()
    assert first == pytest.approx(10 + FORGOTTEN_SECONDS, abs=0.5)
    follow(worker, False)
    assert worker._exit_delay() == first


def test_an_operator_that_comes_back_in_time_stops_that(worker: Worker) -> None:
    follow(worker, False)
    follow(worker, True)
    assert worker._exit_delay() is None


def test_who_says_hold_has_taken_it_in(worker: Worker) -> None:
    assert worker._assignment is not None
    worker._assignment = worker._assignment._replace(state="Hold")
    follow(worker, False)
    assert worker._exit_delay() is None
