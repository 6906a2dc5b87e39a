"""A job has succeeded when all workers ended with 0, or (`successPolicy: RankZero`) the one with rank 0."""

from __future__ import annotations

from trainmaster.reconciling.observed.situation import Situation
from trainmaster.reconciling.times import to_text
from trainmaster.reconciling.transition import NO_WAIT, StatusChange, Transition


def success(situation: Situation) -> Transition | None:
    """Ends the job when the attempt is done, also while it is being stopped: ended with 0 is ended with 0."""
    if situation.status.attempt == 0 or not situation.workers:
        return None
    finished = situation.finished
    if situation.spec.success_policy == "RankZero":
        if situation.workers[0] not in finished:
            return None
        message = f"the worker with rank 0 finished in attempt {situation.status.attempt}"
    else:
        if not finished >= set(situation.workers):
            return None
        message = f"all workers finished in attempt {situation.status.attempt}"
    change = NO_WAIT | StatusChange(completion_time=to_text(situation.now))
    return Transition("Succeeded", "Finished", message, change)
