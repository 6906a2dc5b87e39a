"""`decide` answers whatever the ranks' reports and the job's status contain, and writes valid JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import damaged
from tests.unit.reconciling.builders import (
    NOW,
    SETTINGS,
    all_up,
    container,
    ended,
    job,
    observed,
    pod,
    pods,
    running,
    said,
)
from trainmaster_operator.api.times import to_seconds, to_text, to_whole_text
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.observed.snapshot import Job, Observed
from trainmaster_operator.reconciling.policies.backoff import delay
from trainmaster_operator.wire.ranks import RankProgress

FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1.7e308, -1.7e308, 5e-324])
NUMBERS = ("epoch", "loss", "samples_per_second", "step_seconds", "eta_seconds")
WAITS = ("data_seconds", "checkpoint_seconds", "evaluate_seconds")
RANK = st.builds(
    RankProgress,
    **dict.fromkeys(("step", "total_steps", "start_step"), st.none() | st.integers(0, 2**53 - 1)),
    **dict.fromkeys((*NUMBERS, *WAITS), st.none() | FINITE),
    section=st.sampled_from([None, "train", "evaluate", "checkpoint"]),
    section_seconds=st.none(),
    message=st.just(""),
    result=st.just(()),
)
STATUS: dict[str, Any] = {
    **running(2, restarts=1).model_dump(mode="json", by_alias=True, exclude_none=True),
    "nextAttemptTime": to_text(NOW + 5),
    "continues": 1,
    "absentRanks": [1],
    "trainingWith": "1 of 2 workers",
    "completionTime": None,
    "nodeFailures": {"node-0": 1},
    "schedulingBackoffs": 1,
    "suspendedSeconds": 1.5,
    "progress": {
        "attempt": 2,
        "step": 3,
        "furthestStep": 3,
        "dataSeconds": 0.5,
        "reportedAt": to_text(NOW - 20),
        "samplesPerSecond": 1.0,
    },
    "timeSpent": {"until": to_text(NOW - 20), "productive": 3.5},
    "failures": [{"attempt": 1, "reason": "Error", "worker": 0, "failedAt": to_text(NOW - 200), "counted": True}],
}


def check(of: Job, around: Observed, now: float) -> JobStatus:
    status = decide(of, around, now, SETTINGS).status
    json.dumps(status.model_dump(mode="json", by_alias=True, exclude_none=True), allow_nan=False)
    return status


@given(st.lists(RANK, min_size=1, max_size=4), st.booleans())
def test_no_progress_makes_a_status_that_is_no_json(ranks: list[RankProgress], finished: bool) -> None:
    progress = {0: dict(enumerate(ranks))}
    reports = all_up() if not finished else tuple(said(worker, "Finished") for worker in range(2))
    around = observed(*reports, progress=progress, progress_attempt=1, progress_at=NOW)
    status = check(job(running()), around, NOW)
    assert status.progress is not None
    later = replace(around, progress_at=NOW + 30)
    check(job(status), later, NOW + 30)


def test_a_sum_and_a_product_beyond_a_floats_range_are_left_out() -> None:
    rank = RankProgress(step=1, total_steps=2**52, step_seconds=1e300, samples_per_second=1.7e308)
    around = observed(*all_up(), progress={0: {0: rank, 1: rank}}, progress_attempt=1, progress_at=NOW)
    status = check(job(running()), around, NOW)
    assert status.progress is not None
    assert (status.progress.samples_per_second, status.progress.eta_seconds) == (None, None)


@given(damaged(STATUS), st.sampled_from(["up", "failed", "gone"]), st.sampled_from([NOW, 0.0, 1e12]))
def test_no_status_keeps_decide_from_answering(raw: Any, what: str, now: float) -> None:
    try:
        # The API server would refuse numbers beyond a float's range.
        json.dumps(raw, allow_nan=False)
        status = JobStatus.model_validate(raw)
    except (ValueError, RecursionError):
        return
    around = {
        "up": observed(*all_up(2), progress={0: {0: RankProgress(step=5)}}, progress_attempt=2, progress_at=NOW),
        "failed": observed(
            said(0, "Failed", 2), given=pods(pod(0, worker_container=container("terminated", end=ended(1))))
        ),
        "gone": observed(given=[pod(1)]),
    }[what]
    check(job(status), around, now)


@given(st.floats())
def test_every_number_is_written_as_some_time(seconds: float) -> None:
    for text in (to_text(seconds), to_whole_text(seconds)):
        assert to_seconds(text) is not None
    if 0 <= seconds < 1e10:
        assert abs((to_seconds(to_text(seconds)) or 0.0) - seconds) < 0.002


@pytest.mark.parametrize("restarts", [1, 100, 1_025, 1_000_000])
def test_the_back_off_of_a_job_that_restarts_for_a_year_is_its_longest(restarts: int) -> None:
    of = job(
        failurePolicy={"maxRestarts": 1_000_000, "backoff": {"initialSeconds": 1, "factor": 100, "maxSeconds": 60}}
    )
    assert of.spec is not None
    cause = Failure(attempt=1, reason="Error", failed_at=to_text(NOW))
    assert delay(of.spec, "Restart", cause=cause, restarts=restarts, lived=1.0) == min(
        100.0 ** min(restarts - 1, 9), 60.0
    )


@pytest.mark.parametrize("times", [1, 1_025, 525_600])
def test_counters_of_a_year_are_no_reason_to_fail(times: int) -> None:
    status = running(
        times, restarts=times, disruptions=times, scheduling_backoffs=times, scheduling_backoff=True, phase="Restarting"
    )
    waiting = container(
        "waiting", restarts=times, reason="CrashLoopBackOff", last_end=ended(1, report=said(0, "Failed", 1))
    )
    for around in (observed(given=[]), observed(given=pods(pod(0, worker_container=waiting)), attempt=times)):
        wait = decide(job(status), around, NOW, SETTINGS).requeue_after
        assert wait is None or math.isfinite(wait)
