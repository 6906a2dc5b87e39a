"""What the newest failure cost: the way back, as the workers of the next attempt timed it, and the steps done again."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.v1alpha1 import Failure, JobStatus, RecoveryTimes
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.wire.stream import Recovery


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
    times = _times(known, _repeated_steps(situation, failures[0]))
    return [failures[0].model_copy(update={"recovery": times}), *failures[1:]]


def _repeated_steps(situation: Situation, failure: Failure) -> int | None:
    """Returns how many steps the attempt after a failure does again; None where its ranks report no steps."""
    ranks = (rank for ranks in situation.observed.progress.values() for rank in ranks.values())
    begun = [
        rank.start_step if rank.start_step is not None else rank.step - 1 for rank in ranks if rank.step is not None
    ]
    return max((failure.step or 0) - min(begun), 0) if begun else None


def _times(recoveries: list[Recovery], repeated_steps: int | None) -> RecoveryTimes:
    """Returns the parts of the way, each up to the slowest worker."""
    reached = 0.0
    parts: dict[str, Any] = {}
    for part in Recovery._fields:
        moments = [at for recovery in recoveries if (at := getattr(recovery, part)) is not None]
        if len(moments) == len(recoveries):
            slowest = max(reached, *moments)
            parts[part] = round(slowest - reached, 3)
            reached = slowest
    return RecoveryTimes(seconds=round(reached, 3), repeated_steps=repeated_steps, **parts)
