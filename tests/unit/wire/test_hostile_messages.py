"""Any message is parsed or refused, and a parser raises only its own exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import HUGE, JSON, damaged, nested
from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.limits import MAX_TERMINATION_BYTES
from trainmaster_operator.wire.ranks import RankProgress, parse_rank_progress, parse_rank_states
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.values import ProtocolError

REPORT: dict[str, Any] = {
    "attempt": 3,
    "worker": 1,
    "uid": "u",
    "rank": 5,
    "state": "Failed",
    "exitCode": 1,
    "signal": None,
    "reason": "Error",
    "error": "words",
    "at": 1763700000.123,
    "culprit": True,
    "node": "gpu-7",
    "able": True,
    "ready": True,
}
PROGRESS: dict[str, Any] = {
    "step": 1,
    "totalSteps": 9,
    "epoch": 0.5,
    "loss": 0.3,
    "gradNorm": 1.5,
    "learningRate": 0.01,
    "samplesPerSecond": 10.0,
    "stepSeconds": 0.1,
    "computeSeconds": 0.05,
    "etaSeconds": 3,
    "section": "train",
    "message": "words",
    "result": {"accuracy": 0.9},
    "continuing": "able",
    "group": 4,
    "cannotContinue": "words",
}
ASSIGNMENT = Assignment(
    "uid",
    3,
    (0, 1),
    ("a", "b"),
    ("bert-0.bert.ns.svc", "bert-1.bert.ns.svc"),
    28533,
    processes=(8, 4),
    continues=2,
    absent=tuple(range(8)),
    master_place=1,
).to_wire()
RANKS: dict[str, Any] = {
    "5": {
        "step": 1,
        "section": "train",
        "silentSeconds": 12.3,
        "state": "S",
        "collective": 2,
        "waits": "collective",
        "pending": True,
        "unreported": 3,
        "text": "x",
    }
}


def as_text(value: Any) -> str | None:
    """Returns a value as JSON text, or None if it is too deep for Python to write."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return None


@given(damaged(REPORT))
def test_a_report_is_parsed_or_refused(data: Any) -> None:
    if isinstance(data, dict):
        try:
            report = Report.parse(data)
        except ProtocolError:
            return
        json.dumps([report.at, report.uid, report.error], allow_nan=False)
        assert 0 <= report.attempt < 2**53
        assert len(report.error) <= 2_000


@given(damaged(PROGRESS))
def test_progress_is_parsed_or_refused(data: Any) -> None:
    if isinstance(data, dict):
        try:
            found = RankProgress.parse(data)
        except ProtocolError:
            return
        json.dumps(found.to_wire(), allow_nan=False)


@given(damaged(ASSIGNMENT).map(as_text) | st.text(st.characters()) | JSON)
def test_an_assignment_is_parsed_or_refused(text: Any) -> None:
    try:
        assignment = Assignment.parse(parse_text(text))
    except ProtocolError as error:
        assert len(str(error)) < 300
        return
    # An accepted message can be written again, and reads the same.
    assert Assignment.parse(assignment.to_wire()) == assignment


@given(damaged(RANKS))
def test_evidence_of_ranks_is_parsed_or_refused(data: Any) -> None:
    try:
        ranks = parse_rank_states(data)
    except ProtocolError:
        return
    json.dumps([state.to_wire() for state in ranks.values()], allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        '{"attempt": Infinity}',
        '{"attempt": 1e999}',
        '{"attempt": ' + "9" * 400 + "}",
        '{"attempt": ' + "9" * 5_000 + "}",
        '{"attempt": ' + "[" * 1_100 + "]" * 1_100 + "}",
        "[" * 100_000,
        json.dumps({**ASSIGNMENT, "hosts": []}),
        json.dumps({**ASSIGNMENT, "graceSeconds": 10**400}),
        json.dumps({**ASSIGNMENT, "workers": [True, 1]}),
    ],
)
def test_an_annotation_that_broke_the_operator_is_no_assignment(text: str) -> None:
    with pytest.raises(ProtocolError):
        Assignment.parse(parse_text(text))


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", HUGE), ("loss", 1e300), ("etaSeconds", float("inf")), ("step", HUGE), ("loss", nested(1_100))],
)
def test_progress_that_is_no_plausible_number_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"^{field}: "):
        RankProgress.parse({field: value})


@pytest.mark.parametrize(
    "value",
    [nested(5_000), 10**5_000, float("inf"), "\ud800" * 300, [nested(5_000)] * 2],
    ids=["deep", "of many digits", "infinite", "no Unicode", "deep items"],
)
@pytest.mark.parametrize("field", sorted(ASSIGNMENT))
def test_no_value_of_an_assignment_ends_an_agent(field: str, value: Any) -> None:
    with pytest.raises(ProtocolError):
        Assignment.parse({**ASSIGNMENT, field: value})


@given(damaged(REPORT))
def test_a_report_is_bounded(data: Any) -> None:
    found = Report.read(data)
    if found is not None:
        assert len(found.termination_message().encode()) <= MAX_TERMINATION_BYTES
        json.dumps(found.to_wire(), allow_nan=False)


@given(damaged({"5": PROGRESS}))
def test_progress_is_bounded(data: Any) -> None:
    try:
        found = parse_rank_progress(data)
    except ProtocolError:
        return
    json.dumps([ranks.to_wire() for ranks in found.values()], allow_nan=False).encode()
