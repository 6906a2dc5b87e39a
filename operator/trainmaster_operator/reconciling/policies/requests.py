"""Users request a restart by new code (`spec.code.digest`) or by an annotation, and stacks by another annotation.

If ranks are running, a restart on request is a planned stop. Every rank gets SIGTERM and its full grace period to save
a checkpoint, and the next attempt opens in the same pods as soon as all ranks have stopped. A back-off ends at once,
because new code may fix the failure. A request counts neither as a restart nor as a disruption.

Everyone who can annotate a job can also request the stacks of its running ranks, at most once every few seconds. Such a
request is recorded before it is sent, so if the operator is killed between the two steps, the user must repeat the
request.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import JobStatus, Phase, StacksRequest
from trainmaster_operator.reconciling.decision import CollectStacks
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.spares import can_open, next_workers
from trainmaster_operator.reconciling.policies.backoff import restart_at
from trainmaster_operator.reconciling.policies.opening import has_stopped, open_attempt, planned_stop
from trainmaster_operator.reconciling.transition import StatusChange, Transition

# Number of a digest's characters that messages show.
SHOWN_DIGEST = 12
# Minimum seconds between two requests for the stacks of a job. Each request costs two writes: the status and the
# answers.
STACKS_INTERVAL = 5.0


def stop(situation: Situation) -> Transition | None:
    """Stops the ranks, which first save a checkpoint, because their code is old or a restart was requested."""
    asked = _asked(situation) if situation.running else None
    return None if asked is None else planned_stop(situation, *asked, StatusChange(stopping=True))


def reopen_stopped(situation: Situation) -> Transition | None:
    """Opens the next attempt when all ranks have stopped. After their grace period, `attempts.reopen` opens it."""
    if situation.status.phase != "Restarting" or not situation.status.stopping:
        return None
    workers = next_workers(situation)
    if not has_stopped(situation) or not can_open(situation, workers):
        return None
    return open_attempt(situation, workers, "AttemptOpened")


def end_back_off(situation: Situation) -> Transition | None:
    """Ends a back-off on request, if the next attempt waits only for the back-off."""
    if not situation.held or situation.stops_as_planned or situation.is_cause_open:
        return None
    asked = _asked(situation)
    if asked is None or situation.now >= restart_at(situation):
        return None
    reason, why = asked
    message = f"{why}; the next attempt opens at once"
    return Transition(situation.status.phase or "Restarting", reason, message, StatusChange(next_attempt_time=None))


def _asked(situation: Situation) -> tuple[str, str] | None:
    """Returns the reason and the message for a request that the current attempt doesn't fulfil, or None."""
    status, request = situation.status, situation.job.restart_request
    if situation.code_digest is not None and situation.code_digest != status.code_digest:
        return "CodeChanged", f"the code was changed to {situation.code_digest[:SHOWN_DIGEST]}"
    if request is not None and request != status.restart_request:
        return "RestartRequested", "a restart was requested"
    return None


def due_stacks(situation: Situation, phase: Phase | None) -> StacksRequest | None:
    """Returns the newest request for stacks that was sent or must be sent now. `phase` is the next phase."""
    at = next_stacks_at(situation)
    if at is None or at > situation.now or phase not in ("Starting", "Running"):
        return situation.status.stacks_request
    return StacksRequest(id=situation.job.stacks_request, asked_at=to_text(situation.now))


def next_stacks_at(situation: Situation) -> float | None:
    """Returns when a new request for stacks may be sent, or None if there is none."""
    asked, request = situation.status.stacks_request, situation.job.stacks_request
    if not request or not situation.observed.stream.connected or (asked is not None and asked.id == request):
        return None
    sent_at = 0.0 if asked is None else to_seconds(asked.asked_at) or 0.0
    # A time in the future comes from another machine's clock or from an edit.
    return situation.now if sent_at > situation.now else max(sent_at + STACKS_INTERVAL, situation.now)


def collect_stacks(before: JobStatus, situation: Situation) -> Iterator[CollectStacks]:
    """Yields the action for a request that is new in the status."""
    request = situation.status.stacks_request
    if request is not None and request != before.stacks_request:
        yield CollectStacks(request.id, situation.status.attempt, situation.members.present)
