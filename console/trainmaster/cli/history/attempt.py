"""What was kept of one attempt: the failure, its evidence, and of the last attempt the ends of the workers' logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.cli.evidence import evidence_lines
from trainmaster_operator.api.evidence import AttemptEvidence

TAIL_LINES = 20


def evidence_of(answer: Mapping[str, Any], attempt: int) -> AttemptEvidence | None:
    """Returns an attempt's evidence of a checked EvidenceList; None where none was kept, or none that can be read."""
    for item in answer["items"]:
        if item["attempt"] == attempt:
            return AttemptEvidence.parse(json.dumps(item))
    return None


def attempt_lines(evidence: AttemptEvidence | None, attempt: Mapping[str, Any]) -> Iterator[str]:
    """Yields the evidence; where there is none, how the attempt ended, as its job's status had it."""
    number = attempt["attempt"]
    if evidence is None and attempt["failure"] is not None:
        evidence = AttemptEvidence(attempt=number, failure=attempt["failure"])
    if evidence is None:
        yield f"Attempt {number}: {attempt['outcome'] or 'nothing is known of its end'}"
        return
    yield from evidence_lines([evidence], None)


def log_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields the ends of the workers' logs of a checked LogList."""
    for item in answer["items"]:
        yield f"  The log of worker {item['worker']} ends:"
        yield from (f"    {line}" for line in item["lines"][-TAIL_LINES:])
