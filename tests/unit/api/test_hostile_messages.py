"""Whatever pods and annotations say is parsed or refused: no parser raises anything but its own exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import HUGE, JSON, damaged, nested
from trainmaster.api.evidence import AttemptEvidence, attempt_of, clean
from trainmaster.api.parsing import InvalidJob, parse_job, parse_spec
from trainmaster.api.v1alpha1 import JobStatus
from trainmaster.wire.assignment import Assignment, parse_text
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.evidence import parse_ranks
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.report import Report
from trainmaster.wire.values import shown

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
}
PROGRESS: dict[str, Any] = {
    "step": 1,
    "totalSteps": 9,
    "epoch": 0.5,
    "loss": 0.3,
    "samplesPerSecond": 10.0,
    "stepSeconds": 0.1,
    "etaSeconds": 3,
    "section": "train",
    "message": "words",
    "result": {"accuracy": 0.9},
}
ASSIGNMENT = Assignment(
    "uid", 3, (0, 1), ("a", "b"), ("bert-0.bert.ns.svc", "bert-1.bert.ns.svc"), 28533, processes=(8, 4)
).to_wire()
EVIDENCE: dict[str, Any] = {
    "attempt": 3,
    "failure": {"reason": "Hung"},
    "workers": {"0": {"pod": "bert-0"}},
    "ranks": {"5": {"text": "stack"}},
    "logs": {"0": "words"},
}
RANKS: dict[str, Any] = {
    "5": {
        "step": 1,
        "section": "train",
        "silentSeconds": 12.3,
        "state": "S",
        "collective": 2,
        "waits": True,
        "text": "x",
    }
}
SPEC: dict[str, Any] = {
    "image": "trainer:1",
    "command": ["python", "train.py"],
    "workers": 2,
    "training": {"model": {"layers": 4}},
    "resources": {"gpus": 1, "cpu": {"request": 1, "limit": 2}, "memory": "1Gi"},
    "processesPerWorker": 2,
    "elastic": {"minWorkers": 1, "maxWorkers": 4},
    "failurePolicy": {"maxRestarts": 3, "backoff": {"initialSeconds": 1, "factor": 2.0, "maxSeconds": 60}},
    "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "worker", "env": []}]}},
}
STATUS: dict[str, Any] = {
    "phase": "Running",
    "attempt": 1,
    "conditions": [{"type": "Running", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    "podUIDs": ["a", None],
    "nodeFailures": {"n": 1},
    "progress": {"step": 1, "result": {"a": 1.0}},
}


def as_text(value: Any) -> str | None:
    """A value as it travels; None where Python itself can't write it that deep."""
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
            progress = RankProgress.parse(data)
        except ProtocolError:
            return
        json.dumps([progress.loss, progress.step, dict(progress.result), progress.message], allow_nan=False)


@given(damaged(ASSIGNMENT).map(as_text) | st.text(st.characters()) | JSON)
def test_an_assignment_is_parsed_or_refused(text: Any) -> None:
    try:
        assignment = Assignment.parse(parse_text(text))
    except ProtocolError:
        return
    # What is taken can be written again, and reads the same.
    assert Assignment.parse(assignment.to_wire()) == assignment


@given(damaged(EVIDENCE).map(as_text) | st.text(st.characters()))
def test_kept_evidence_is_read_or_passed_over(text: str | None) -> None:
    found = AttemptEvidence.parse(text or "")
    assert found is None or found.attempt >= 0


@given(damaged(RANKS))
def test_evidence_of_ranks_is_parsed_or_refused(data: Any) -> None:
    try:
        ranks = parse_ranks(data)
    except ProtocolError:
        return
    json.dumps([state.to_wire() for state in ranks.values()], allow_nan=False)


@given(JSON)
def test_texts_and_names_are_cut_and_never_fail(value: Any) -> None:
    assert len(clean(value, 100)) <= 100
    assert len(shown(value)) < 300
    assert attempt_of(str(value) if isinstance(value, str) else "") is None


@given(damaged(SPEC))
def test_a_spec_is_parsed_or_refused_in_a_sentence(data: Any) -> None:
    try:
        parse_spec(data, "bert")
    except InvalidJob as error:
        assert len(str(error)) > 10


@given(damaged({"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "a"}}))
def test_a_manifest_is_parsed_or_refused(data: Any) -> None:
    if isinstance(data, dict):
        with pytest.raises(InvalidJob):
            parse_job(data)


@given(damaged(STATUS))
def test_a_status_is_read_or_refused(data: Any) -> None:
    try:
        status = JobStatus.model_validate(data)
    except ValueError:
        return
    json.dumps(status.model_dump(mode="json", by_alias=True, exclude_none=True), allow_nan=False)


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
