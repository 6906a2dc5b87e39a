"""Forwards requests for the stacks of all ranks to the running workers, at most once every few seconds.

Everyone who can annotate a job can request stacks. A request is recorded before it is sent, so it is sent at most once.
If the operator ends between the two steps, the user must repeat the request.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.api.times import since, to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import JobStatus, StacksRequest
from trainmaster_operator.api.v1alpha1.names import Phase
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.situation import Situation

# Seconds between two requests for a job. Each request costs two writes: the status and the answers.
INTERVAL = 5.0


def due_stacks(situation: Situation, phase: Phase | None) -> StacksRequest | None:
    """Returns the newest request that was sent or must be sent now. `phase` is the next phase."""
    asked = situation.status.stacks_request
    if not _is_new_request(situation) or phase not in ("Starting", "Running") or _wait_for_stacks(situation) > 0:
        return asked
    return StacksRequest(id=situation.job.stacks_request, asked_at=to_text(situation.now))


def next_stacks_at(situation: Situation) -> float | None:
    """Returns when a request can be sent that came too soon after the previous request."""
    wait = _wait_for_stacks(situation) if _is_new_request(situation) else 0.0
    return situation.now + wait if wait > 0 else None


def _is_new_request(situation: Situation) -> bool:
    asked = situation.status.stacks_request
    request = situation.job.stacks_request
    return bool(request) and situation.observed.stream.connected and (asked is None or asked.id != request)


def _wait_for_stacks(situation: Situation) -> float:
    asked = situation.status.stacks_request
    if asked is None or (to_seconds(asked.asked_at) or 0.0) > situation.now:
        # A time in the future comes from another machine's clock or from an edit.
        return 0.0
    return max(INTERVAL - since(situation.now, asked.asked_at), 0.0)


def collect_stacks(before: JobStatus, situation: Situation) -> Iterator[CollectStacks]:
    """Yields the action for a request that is new in the status."""
    request = situation.status.stacks_request
    if request is not None and request != before.stacks_request:
        yield CollectStacks(request.id, situation.status.attempt, situation.members.present)
