"""The attempts of a job come from the history, and where there is none from the failures that its status lists.

The status is ahead of the history by a moment, so what it says of an attempt's end counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.client.job import TrainingJob
from trainmaster_operator.api.v1alpha1.status import Failure
from trainmaster_operator.wire.values import mappings, whole

Attempt = dict[str, Any]
# A history has all of them.
MOST_ATTEMPTS = 500


def attempts_of(job: TrainingJob, recorded: Sequence[Attempt] = ()) -> list[Attempt]:
    """Returns the attempts, oldest first. What nobody knows is None."""
    found = {number: dict(one) for one in recorded if (number := whole(one.get("attempt"))) is not None}
    for failure in job.status.failures:
        ended = found.setdefault(failure.attempt, _unknown(failure.attempt))
        ended["endedAt"] = failure.failed_at
        ended["outcome"] = "Failed" if failure.counted else "Disrupted"
        ended["failure"] = failure.model_dump(by_alias=True, exclude_none=True)
    current = job.status.attempt
    if current > 0:
        failed = _failure_of(job, current)
        newest = found.setdefault(current, _unknown(current))
        newest["startedAt"] = job.status.attempt_start_time or newest["startedAt"]
        newest["trainingWith"] = job.status.training_with
        if failed is None:
            newest["outcome"] = _outcome(job)
            newest["runningAt"] = newest["runningAt"] or _running_at(job)
            newest["endedAt"] = job.status.completion_time
        progress = job.status.progress
        if progress is not None and progress.attempt == current and progress.step is not None:
            newest["lastStep"] = progress.step
    ordered = [found[number] for number in sorted(found)]
    for before, one in zip([None, *ordered], ordered, strict=False):
        if one["startedAt"] is None:
            # It began when the one before it was over, or a moment later.
            one["startedAt"] = job.status.start_time if before is None else before["endedAt"]
    return ordered


def attempts_of_record(found: Mapping[str, Any]) -> list[Attempt]:
    """Returns the attempts that a history has, the newest of them; only the last one's workers are shown."""
    attempts = [dict(one) for one in mappings(found.get("attempts"))[-MOST_ATTEMPTS:]]
    for one in attempts[:-1]:
        one["workers"] = []
    return attempts


def _failure_of(job: TrainingJob, attempt: int) -> Failure | None:
    return next((failure for failure in job.status.failures if failure.attempt == attempt), None)


def _outcome(job: TrainingJob) -> str:
    """Returns how the current attempt, of which no failure is known, ended or stands."""
    return job.phase if job.finished or job.phase == "Suspended" else "Running"


def _running_at(job: TrainingJob) -> str | None:
    """Returns since when all ranks of the current attempt are up."""
    found = (one for one in job.status.conditions if one.type == "Running" and one.status == "True")
    return next((one.last_transition_time for one in found), None)


def _unknown(attempt: int) -> Attempt:
    known = {"attempt": attempt, "outcome": "Running", "workers": []}
    missing = ("startedAt", "runningAt", "endedAt", "failure", "firstStep", "lastStep", "trainingWith")
    return {**dict.fromkeys(missing), **known}
