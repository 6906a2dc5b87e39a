"""The job has limits of time of its own: `runPolicy.activeDeadlineSeconds` and `ttlSecondsAfterFinished`."""

from __future__ import annotations

from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES
from trainmaster_operator.reconciling.observed.situation import Situation, active_seconds
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.reconciling.policies.attempts import fail
from trainmaster_operator.reconciling.transition import Transition


def active_deadline(situation: Situation) -> Transition | None:
    """Fails a job that was active for too long; suspended time doesn't count."""
    limit = situation.spec.run_policy.active_deadline_seconds
    if limit is None or situation.status.phase == "Suspended" or active_seconds(situation) < limit:
        return None
    return fail(situation, "DeadlineExceeded", f"the job was active for {limit} s (runPolicy.activeDeadlineSeconds)")


def active_deadline_at(situation: Situation) -> float | None:
    """Returns when the deadline passes if nothing changes."""
    limit = situation.spec.run_policy.active_deadline_seconds
    status = situation.status
    if limit is None or status.phase == "Suspended" or status.start_time is None or situation.terminal:
        return None
    return situation.now + max(limit - active_seconds(situation), 0.0)


def expires_at(job: Job) -> float | None:
    """Returns when a finished job is to be deleted; None if never."""
    ttl = None
    if job.spec is not None:
        ttl = job.spec.run_policy.ttl_seconds_after_finished
    elif job.invalid is not None:
        ttl = job.invalid.ttl_seconds_after_finished
    ended = to_seconds(job.status.completion_time)
    if ttl is None or ended is None or job.status.phase not in TERMINAL_PHASES:
        return None
    return ended + ttl
