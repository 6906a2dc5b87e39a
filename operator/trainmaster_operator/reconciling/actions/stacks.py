"""The workers of a job are asked for the stacks of their ranks in the pass that records the request."""

from __future__ import annotations

from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.situation import Situation


def collect_stacks(before: JobStatus, situation: Situation) -> CollectStacks | None:
    """Returns the question to the workers, where the status has a request that wasn't there `before`."""
    request = situation.status.stacks_request
    if request is None or request == before.stacks_request:
        return None
    return CollectStacks(request.id, situation.status.attempt, situation.members.present)
