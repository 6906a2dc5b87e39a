"""How long the way back from the newest failure took, by its parts, as the workers of the next attempt timed it."""

from __future__ import annotations

from trainmaster.api.v1alpha1 import Failure, JobStatus, RecoveryTimes
from trainmaster.reconciling.observed.situation import Situation
from trainmaster.wire.recovery import Recovery


def with_recovery(situation: Situation, status: JobStatus) -> list[Failure]:
    """Returns a status's failures, the newest with its recovery once all workers that have timed theirs are through.

    A worker whose pod wasn't there when the attempt before ended times nothing.
    """
    failures, observed = status.failures, situation.observed
    is_current = observed.progress_attempt == status.attempt == situation.status.attempt
    if not failures or not is_current or failures[0].attempt != status.attempt - 1:
        return failures
    known = [recovery for worker, recovery in observed.recoveries.items() if worker in situation.workers]
    if not known or any(recovery.first_step is None for recovery in known):
        return failures
    return [failures[0].model_copy(update={"recovery": _times(known)}), *failures[1:]]


def _times(recoveries: list[Recovery]) -> RecoveryTimes:
    """Returns the parts of the way, each up to the slowest worker."""
    reached = 0.0
    parts: dict[str, float] = {}
    for part in Recovery._fields:
        moments = [at for recovery in recoveries if (at := getattr(recovery, part)) is not None]
        if len(moments) == len(recoveries):
            slowest = max(reached, *moments)
            parts[part] = round(slowest - reached, 3)
            reached = slowest
    return RecoveryTimes(seconds=round(reached, 3), **parts)
