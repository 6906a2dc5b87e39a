"""Any content of jobs, statuses and kept evidence is parsed, or refused with the parser's own exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import JSON, damaged
from trainmaster_operator.api.evidence import AttemptEvidence, attempt_of, clean
from trainmaster_operator.api.parsing import InvalidJob, parse_job, parse_spec
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.wire.values import shown

EVIDENCE: dict[str, Any] = {
    "attempt": 3,
    "failure": {"reason": "Hung"},
    "workers": {"0": {"pod": "bert-0"}},
    "ranks": {"5": {"text": "stack"}},
    "logs": {"0": "words"},
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
    """Returns a value as JSON text, or None if it is too deep for Python to write."""
    try:
        return json.dumps(value)
    except (RecursionError, ValueError):
        return None


@given(damaged(EVIDENCE).map(as_text) | st.text(st.characters()))
def test_kept_evidence_is_read_or_passed_over(text: str | None) -> None:
    found = AttemptEvidence.parse(text or "")
    assert found is None or found.attempt >= 0


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
