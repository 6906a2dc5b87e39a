"""A user asks for new ranks: by new code (`spec.code.digest`), or by a new value of the restart annotation.

Where ranks run it is a planned stop: every rank gets SIGTERM and its whole grace period, to save a checkpoint, and the
next attempt opens in the same pods as soon as all have left. Where none run, the next attempt takes what is asked for
with it, and one that only waits out a back-off opens at once: new code is an answer to the failure.

The status says which code and which request the current attempt has (`codeDigest`, `restartRequest`). Neither is
anybody's failure: it counts neither as a restart nor as a disruption.
"""

from __future__ import annotations

from trainmaster_operator.api.times import to_text
from trainmaster_operator.reconciling.observed.lineup import can_open, next_workers
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.policies.backoff import restart_at
from trainmaster_operator.reconciling.policies.opening import open_attempt
from trainmaster_operator.reconciling.transition import StatusChange, Transition
from trainmaster_operator.rendering import rank_grace_seconds

# Characters by which a person knows a digest.
SHOWN_DIGEST = 12


def stop(situation: Situation) -> Transition | None:
    """Stops the ranks with a checkpoint, because they have old code or a restart was requested."""
    asked = _asked(situation) if situation.running else None
    if asked is None:
        return None
    reason, why = asked
    until = to_text(situation.now + rank_grace_seconds(situation.spec))
    message = f"{why}; the ranks save a checkpoint and stop"
    return Transition("Restarting", reason, message, StatusChange(stopping=True, next_attempt_time=until))


def reopen_stopped(situation: Situation) -> Transition | None:
    """Opens the next attempt when all ranks have left; when they had their time `attempts.reopen` does."""
    if situation.status.phase != "Restarting" or not situation.status.stopping:
        return None
    if not all(_has_left(situation, worker) for worker in situation.members.present):
        return None
    workers = next_workers(situation)
    return open_attempt(situation, workers, "AttemptOpened") if can_open(situation, workers) else None


def end_back_off(situation: Situation) -> Transition | None:
    """Ends the wait after a failure, where that is all that the next attempt waits for."""
    status, failure = situation.status, situation.last_failure
    if status.phase != "Restarting" or status.resizing or status.stopping or status.scheduling_backoff:
        return None
    if situation.now >= (restart_at(situation) or 0.0) or (failure is not None and failure.provisional):
        return None
    asked = _asked(situation)
    if asked is None:
        return None
    reason, why = asked
    return Transition(
        "Restarting", reason, f"{why}; the next attempt opens at once", StatusChange(next_attempt_time=None)
    )


def _asked(situation: Situation) -> tuple[str, str] | None:
    """Returns the reason and the words for what the current attempt doesn't have; None where it has all."""
    status, request = situation.status, situation.job.restart_request
    if situation.code_digest is not None and situation.code_digest != status.code_digest:
        return "CodeChanged", f"the code was changed to {situation.code_digest[:SHOWN_DIGEST]}"
    if request is not None and request != status.restart_request:
        return "RestartRequested", "a restart was requested"
    return None


def _has_left(situation: Situation, worker: int) -> bool:
    """Returns whether a worker's ranks have ended, or never begun: its agent says so, or doesn't run."""
    report, pod = situation.reports.get(worker), situation.pods.get(worker)
    if report is not None and (report.ended or report.state == "Waiting"):
        return True
    return pod is None or pod.worker_container is None or pod.worker_container.state != "running"
