"""`reconciler` logs each change of a job."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.controller.reconciler import ended_because

BOOM = Failure(
    attempt=1, reason="Error", message="worker 1 ended with exit code 7: boom", failed_at="2026-11-22T04:00:00Z"
)


def status(phase: str, attempt: int, *failures: Failure, **fields: Any) -> JobStatus:
    return JobStatus.model_validate({"phase": phase, "attempt": attempt, "failures": list(failures), **fields})


def test_a_failed_job_is_logged_with_its_reason() -> None:
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "Unschedulable",
        "message": "no node has room",
        "lastTransitionTime": "2026-11-22T04:00:00Z",
    }
    new = status("Failed", 1, conditions=[failed])
    assert ended_because(status("Starting", 1), new) == "Unschedulable: no node has room"


def test_a_restart_is_logged_with_what_ended_the_attempt_before_and_what_follows_is_not() -> None:
    restarting = status("Starting", 2, BOOM)
    assert ended_because(status("Running", 1), restarting) == "Error: worker 1 ended with exit code 7: boom"
    assert ended_because(restarting, status("Running", 2, BOOM)) == ""
    assert ended_because(status("Running", 2, BOOM), status("Succeeded", 2, BOOM)) == ""
    assert ended_because(status("Running", 2, BOOM), status("Suspended", 2, BOOM)) == ""
