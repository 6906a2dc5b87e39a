"""A job has succeeded when all workers ended with 0, or (`successPolicy: RankZero`) the one with rank 0."""

from __future__ import annotations

from trainmaster_operator.api.times import to_text
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.policies.continuing import has_formed, was_about_to_join
from trainmaster_operator.reconciling.transition import NO_WAIT, StatusChange, Transition


def success(situation: Situation) -> Transition | None:
    """Ends the job when the attempt is done, also while it is being stopped: ended with 0 is ended with 0."""
    if situation.status.attempt == 0 or not situation.workers:
        return None
    finished = situation.finished
    present = situation.members.present
    if not has_formed(situation):
        # The others had finished before these could join them.
        present = tuple(worker for worker in present if not was_about_to_join(situation, worker)) or present
    if situation.spec.success_policy == "RankZero":
        # In a continued attempt the lowest rank that is left does what rank 0 did.
        if present[0] not in finished:
            return None
        message = f"the worker with rank {situation.members.present_ranks(present[0])[0]} finished in attempt "
        message += str(situation.status.attempt)
    else:
        if not finished >= set(present):
            return None
        message = f"all workers finished in attempt {situation.status.attempt}"
    change = NO_WAIT | StatusChange(completion_time=to_text(situation.now))
    return Transition("Succeeded", "Finished", message, change)
