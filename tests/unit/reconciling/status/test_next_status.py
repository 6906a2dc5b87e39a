"""After a pass, the status counts the workers correctly, and a damaged status breaks nothing."""

from __future__ import annotations

from tests.unit.reconciling.builders import (
    all_up,
    decided,
    job,
    observed,
    pod,
    pods,
    running,
    said,
)


class TestCounts:
    def test_workers_are_counted_by_what_they_do(self) -> None:
        around = observed(said(0, "Finished"), said(1, "Running"), said(2, "Starting"), given=[pod(0), pod(1), pod(2)])
        counts = decided(
            job(running(phase="Starting", workers=4, pod_uids=[], pod_restart_counts=[]), workers=4), around
        ).status
        assert counts.workers.model_dump() == {"desired": 4, "created": 3, "running": 1, "finished": 1, "spares": None}

    def test_a_broken_attempts_ranks_run_no_more(self) -> None:
        around = observed(said(0, "Running"), said(1, "Failed"))
        assert decided(job(running()), around).status.workers.running == 0


def test_a_status_that_somebody_spoiled_breaks_nothing() -> None:
    spoiled = running(
        attempt=2,
        pod_uids=["x"],
        attempt_start_time="soon",
        start_time="",
        next_attempt_time="?",
        pod_restart_counts=[],
    )
    assert decided(job(spoiled), observed(*all_up(2), attempt=2, given=pods())).status.attempt >= 2
