"""A job's owner sets its time and its end: a deadline over a suspension, pods that are kept, whose success counts.

The jobs spend most of their time waiting, so they all wait together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.scenarios import SECONDS, Scenario, Stage, train

# Rank 1 fails once; the next time it finishes first, and rank 0 only later.
RANK_ZERO_LATER = """
if rank == 1: sys.exit(0 if last else 5)
time.sleep(1.5 if last else 600)
world = 1
"""


@pytest.fixture(scope="module")
def jobs(stage: Stage) -> Iterator[dict[str, Scenario]]:
    specs: dict[str, dict[str, Any]] = {
        "deadline": {"script": train(faults=9)},
        "all kept": {"script": train(faults=0), "runPolicy": {"keepPods": "All"}},
        "failed kept": {
            "script": train(faults=9, together="if rank == 1: sys.exit(7)"),
            "failurePolicy": {"maxRestarts": 0},
            "runPolicy": {"keepPods": "Failed"},
        },
        "only failed kept": {"script": train(faults=0), "runPolicy": {"keepPods": "Failed"}},
        "rank zero": {"script": train(first=RANK_ZERO_LATER), "successPolicy": "RankZero"},
    }
    with ExitStack() as stack:
        made = {name: stack.enter_context(stage.scenario()) for name in specs}
        for name, spec in specs.items():
            made[name].apply(**spec)
        yield made


@pytest.fixture(scope="module")
def suspended_at(jobs: dict[str, Scenario]) -> datetime:
    """Suspends the job with the deadline, and returns when; it stays suspended during the other tests."""
    job = jobs["deadline"]
    job.until_training()
    job.patch('{"runPolicy": {"suspend": true}}')
    job.until_phase("Suspended")
    return at(job.why("Suspended")["lastTransitionTime"])


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.usefixtures("suspended_at")
def test_pods_that_are_kept_show_their_logs_and_never_train_again(jobs: dict[str, Scenario]) -> None:
    job = jobs["all kept"]
    job.until_phase("Succeeded")
    before = job.uids()
    assert sorted(before) == [f"{job.name}-0", f"{job.name}-1"]
    # An agent whose report wasn't acknowledged in time exits with it: its output is the previous container's.
    kept = f"{job.name}-1"
    job.until(lambda: "rank 1 is done." in job.log(kept, previous=True) + job.log(kept), "its last line")
    # A pod that is recreated, for instance after a drain, must not start the finished attempt.
    job.cluster.delete("pod", f"{job.name}-1", wait=False)
    job.until(
        lambda: job.uids().get(f"{job.name}-1", before[f"{job.name}-1"]) != before[f"{job.name}-1"], "another pod"
    )
    job.until(lambda: _is_ready(job, 1), "its agent runs")
    assert job.starts() == [start for start in job.starts() if start.rank == 0]
    assert job.accounts == (1, 0, 0)
    assert job.status["phase"] == "Succeeded"


def test_pods_of_a_failed_job_are_kept_where_it_says_failed(jobs: dict[str, Scenario]) -> None:
    job = jobs["failed kept"]
    job.until_phase("Failed")
    assert sorted(job.pods()) == [f"{job.name}-0", f"{job.name}-1"]
    job.until(lambda: {start.rank for start in job.starts()} == {0, 1}, "what they said")
    assert {start.attempt for start in job.starts()} == {1}
    assert job.why("Failed")["reason"] == "MaxRestartsExceeded"


def test_pods_of_a_job_that_succeeded_go_where_only_failed_ones_are_kept(jobs: dict[str, Scenario]) -> None:
    job = jobs["only failed kept"]
    job.until_phase("Succeeded")
    job.until(lambda: not job.pods(), "pods gone")


def test_with_rank_zero_as_success_others_may_fail_and_finish_and_the_job_goes_on(jobs: dict[str, Scenario]) -> None:
    """An error of another rank still costs a restart; its success ends nothing."""
    job = jobs["rank zero"]
    job.succeeds(attempt=2, restarts=1)
    assert [(item["rank"], item["exitCode"]) for item in job.failures] == [(1, 5)]
    assert "the worker with rank 0 finished in attempt 2" in job.why("Succeeded")["message"]
    assert "rank 0 is done." in job.kept_log(0)


def test_the_deadline_counts_no_second_of_a_suspension(jobs: dict[str, Scenario], suspended_at: datetime) -> None:
    """The job has one to two seconds left when it is resumed, and was suspended for longer than that."""
    job, left, slept = jobs["deadline"], 1, 2.5
    started = at(job.status["startTime"])
    limit = int((suspended_at - started).total_seconds()) + 1 + left
    job.patch(json.dumps({"runPolicy": {"activeDeadlineSeconds": limit}}))
    time.sleep(max(slept - (datetime.now(UTC) - suspended_at).total_seconds(), 0.0))
    job.until(lambda: job.status["observedGeneration"] == 3, "the operator has seen the deadline")
    assert job.status["phase"] == "Suspended"
    job.patch('{"runPolicy": {"suspend": false}}')
    job.until_phase("Failed")
    why = job.why("Failed")
    assert why["reason"] == "DeadlineExceeded"
    assert f"active for {limit} s (runPolicy.activeDeadlineSeconds)" in why["message"]
    status = job.status
    slept_for, lasted = status["suspendedSeconds"], (at(status["completionTime"]) - started).total_seconds()
    assert slept_for >= slept > left + 1, "counted, it would have been over when it was resumed"
    assert limit <= lasted - slept_for < limit + SECONDS
    job.until(lambda: not job.pods(), "pods gone")


def _is_ready(job: Scenario, worker: int) -> bool:
    pod = job.pods().get(f"{job.name}-{worker}")
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
    return any("running" in status["state"] for status in statuses)
