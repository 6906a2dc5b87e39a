"""If there are several reports about a worker in an attempt, one of them counts."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import PLAIN
from trainmaster_operator.wire.report import Report, merge


def report(state: str = "Failed", reason: str = "Error", *, at: float = 1.0, uid: str = "u") -> Report:
    return Report.parse({"attempt": 3, "worker": 1, "uid": uid, "state": state, "reason": reason, "at": at})


LOST = "AgentLost"
# The reports arrive in this order, and merge into the last one of the case.
CASES: dict[str, tuple[tuple[Report, ...], Report]] = {
    "an end outlasts what was said before it, though it comes later": (
        (report(at=5.0), report("Running", "", at=4.0)),
        report(at=5.0),
    ),
    "and what has a later time of a clock that was set back": (
        (report(at=5.0), report("Running", "", at=9.0)),
        report(at=5.0),
    ),
    "a state follows the one before": (
        (report("Starting", "", at=1.0), report("Running", "", at=2.0)),
        report("Running", "", at=2.0),
    ),
    "an agent corrects itself: a rank of it showed a better cause": (
        (report("Failed", "Error", at=1.0), report("Failed", "Signal", at=1.2)),
        report("Failed", "Signal", at=1.2),
    ),
    "the message of the container comes before the stream's older report": (
        (report("Failed", "Signal", at=1.2), report("Failed", "Error", at=1.0)),
        report("Failed", "Signal", at=1.2),
    ),
    "an agent that starts again and has lost its saved report knows less than its container's message": (
        (report("Failed", "OOMKilled", at=1.0), report("Failed", LOST, at=9.0)),
        report("Failed", "OOMKilled", at=1.0),
    ),
    "and doesn't make undone what was done": (
        (report("Finished", "", at=1.0), report("Failed", LOST, at=9.0)),
        report("Finished", "", at=1.0),
    ),
    "a leader that found a worker silent knows less than its container's message of a moment before": (
        (report("Failed", LOST, at=9.0), report("Failed", "OOMKilled", at=8.0)),
        report("Failed", "OOMKilled", at=8.0),
    ),
    "a worker that was lost, and then stops its ranks as it should, reports again": (
        (report("Failed", LOST, at=9.0), report("Stopped", "Stopped", at=10.0)),
        report("Stopped", "Stopped", at=10.0),
    ),
    "another pod's report is the newer life's": (
        (report(at=9.0), report("Starting", "", at=1.0, uid="v")),
        report("Starting", "", at=1.0, uid="v"),
    ),
}


@pytest.mark.parametrize("state", ["Waiting", "Starting", "Running", "Failed", "Finished"])
def test_a_worker_that_has_finished_stays_finished_whatever_its_next_pod_says(state: Any) -> None:
    done = report("Finished", "", at=1.0)
    assert merge(done, report(state, "", at=2.0, uid="v")) == done


@pytest.mark.parametrize(("said", "holds"), CASES.values(), ids=CASES)
def test_one_report_holds(said: tuple[Report, ...], holds: Report) -> None:
    known = None
    for one in said:
        known = merge(known, one)
    assert known == holds


ENDS = (report(at=1.0), report("Failed", "OOMKilled", at=2.0), report("Failed", LOST, at=3.0))


@pytest.mark.parametrize("order", list(permutations(ENDS)))
def test_ends_hold_in_whatever_order_they_come(order: tuple[Report, ...]) -> None:
    known = None
    for one in order:
        known = merge(known, one)
    assert known == ENDS[1]


@given(PLAIN)
def test_any_report_is_bounded_or_refused(value: Any) -> None:
    base = {"state": "Failed", "attempt": 1, "worker": 0}
    for data in (value, {**base, "error": value, "exitCode": value, "at": value, "uid": value, "rank": value}):
        found = Report.read(data)
        if found is not None:
            assert Report.read(json.loads(json.dumps(found.to_wire(), allow_nan=False))) is not None


def test_what_the_ranks_run_on_is_bounded_and_left_out_where_it_is_not_known() -> None:
    assert "environment" not in Report(1, 0, "uid", "Failed").to_wire()
    wire = Report(1, 0, "uid", "Failed", environment="x" * 400).to_wire()
    assert Report.parse(wire).environment == "x" * 300


def test_a_report_says_whether_ranks_can_continue_and_wait_to_join_only_where_they_do() -> None:
    plain = Report(1, 0, "uid", "Running").to_wire()
    assert not {"able", "ready"} & set(plain)
    found = Report.parse({**plain, "able": True, "ready": True})
    assert found.able and found.ready and Report.parse(found.to_wire()) == found
    assert not Report.parse({**plain, "able": "yes", "ready": 1}).able


def test_a_report_names_few_ranks_that_finished_and_says_that_ranks_are_alone_only_where_they_are() -> None:
    plain = Report(1, 0, "uid", "Finished").to_wire()
    assert not {"alone", "finished"} & set(plain)
    found = Report.parse({**plain, "alone": True, "finished": [1, "2", None, -3, 2**40, *range(4, 400)]})
    assert (found.alone, found.finished[:2], len(found.finished)) == (True, (1, 4), 12)
    assert Report.parse(found.to_wire()) == found
    assert Report.parse({**plain, "alone": 1, "finished": {"1": 2}}) == Report.parse(plain)


@given(st.text(max_size=3_000))
def test_a_termination_message_fits_what_the_kubelet_keeps(error: str) -> None:
    # In Kubernetes, MaxContainerTerminationMessageLength in pkg/kubelet/container/runtime.go is 4 KiB.
    made = Report(1, 0, "uid", "Failed", error=error)
    message = made.termination_message()
    assert len(message.encode()) <= 4_000
    assert error.endswith(json.loads(message)["error"])
