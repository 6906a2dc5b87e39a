"""How long the way back from the newest failure took: each part up to the slowest worker, in the failure's record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import NOW, all_up, decided, job, observed, running, said
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus, Progress, RecoveryTimes
from trainmaster_operator.reconciling.observed.snapshot import Observed
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import Recovery

FAST = Recovery(detected=0.0, assigned=0.1, stopped=0.05, launched=0.12, joined=0.2, restored=0.25, first_step=0.4)
SLOW = Recovery(detected=0.0, assigned=0.11, stopped=0.3, launched=0.31, joined=0.35, restored=0.36, first_step=0.41)


def status(attempt: int = 2, failed: int = 1, **fields: Any) -> JobStatus:
    failure = Failure(attempt=failed, reason="Signal", failed_at=to_text(NOW - 100), **{"step": 112, **fields})
    return running(attempt, failures=[failure])


def progressing(recoveries: dict[int, Recovery], attempt: int = 2, start: int | None = 100) -> Observed:
    progress = {worker: {worker: RankProgress(step=101, start_step=start)} for worker in range(2)}
    return observed(
        *all_up(attempt),
        attempt=attempt,
        progress=progress,
        progress_attempt=attempt,
        progress_at=NOW,
        recoveries=recoveries,
    )


def recovery_of(before: JobStatus, seen: Observed) -> RecoveryTimes | None:
    return decided(job(before), seen).status.failures[0].recovery


def test_each_part_is_up_to_the_slowest_worker_and_they_follow_each_other() -> None:
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW})) == RecoveryTimes(
        seconds=0.41,
        repeated_steps=12,
        detected=0.0,
        assigned=0.11,
        stopped=0.19,
        launched=0.01,
        joined=0.04,
        restored=0.01,
        first_step=0.05,
    )


def test_a_part_that_a_worker_does_not_know_is_in_the_next_one() -> None:
    times = recovery_of(status(), progressing({0: FAST, 1: SLOW._replace(joined=None)}))
    assert times is not None
    assert (times.joined, times.restored, times.seconds) == (None, 0.05, 0.41)


def test_it_is_recorded_when_all_workers_that_time_their_way_are_through() -> None:
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW._replace(first_step=None)})) is None
    assert recovery_of(status(), progressing({0: FAST})) is not None, "worker 1's pod is a new one"


def test_it_is_recorded_once_and_is_worth_a_write() -> None:
    # Progress is young, so nothing else is due.
    before = decided(job(status()), progressing({})).status
    after = decided(job(before), progressing({0: FAST, 1: SLOW}))
    assert after.status.failures[0].recovery is not None
    again = decided(job(after.status), progressing({0: FAST, 1: SLOW._replace(first_step=0.5)}))
    assert again.status == after.status


def test_it_belongs_to_the_failure_that_led_to_the_attempt() -> None:
    assert recovery_of(status(attempt=3), progressing({0: FAST, 1: SLOW}, 3)) is None, "a resize was in between"
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW}, 1)) is None, "of the attempt before"


def test_it_is_no_new_failure() -> None:
    before = decided(job(status()), progressing({})).status
    assert decided(job(before), progressing({0: FAST, 1: SLOW})).events == ()


@pytest.mark.parametrize(
    ("failed", "start", "repeated"),
    [
        (112, 100, 12),
        (100, 100, 0),
        # What a survivor kept is newer than its last report.
        (98, 100, 0),
        # The script says no start: 101 is the first step that was seen.
        (112, None, 12),
        # No attempt had reported a step.
        (None, 100, 0),
    ],
)
def test_it_says_how_many_steps_are_repeated(failed: int | None, start: int | None, repeated: int) -> None:
    times = recovery_of(status(step=failed), progressing({0: FAST, 1: SLOW}, start=start))
    assert times is not None and times.repeated_steps == repeated


@pytest.mark.parametrize(
    ("published", "reported", "attempt", "step"),
    [
        # The agent of the rank that failed has reported its last step; what is published is seconds old.
        ({"attempt": 1, "step": 90, "furthest_step": 90}, 97, 1, 97),
        ({"attempt": 1, "step": 90, "furthest_step": 300}, 97, 1, 300),
        ({"attempt": 1, "step": 90, "furthest_step": 90}, 97, 0, 90),
        ({}, 97, 1, 97),
    ],
)
def test_a_failure_has_the_furthest_step_of_any_attempt(
    published: dict[str, Any], reported: int, attempt: int, step: int
) -> None:
    before = running(1, progress=Progress(**published) if published else None)
    seen = observed(
        said(0, "Running"),
        said(1, "Failed"),
        progress={0: {0: RankProgress(step=reported - 1)}, 1: {1: RankProgress(step=reported)}},
        progress_attempt=attempt,
        progress_at=NOW,
    )
    failure = decided(job(before), seen).status.failures[0]
    assert (failure.attempt, failure.step) == (1, step)
