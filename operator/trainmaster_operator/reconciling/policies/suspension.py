"""A job is suspended and resumed by `runPolicy.suspend`.

Suspending scales to zero: every pod gets SIGTERM and its whole grace period, in which the ranks save a checkpoint.
Resuming brings the pods back and, when all are there, opens a new attempt.
"""

from __future__ import annotations

from trainmaster_operator.api.times import since, to_text
from trainmaster_operator.reconciling.observed.situation import Situation, suspended_since
from trainmaster_operator.reconciling.transition import NEW_STARTUP, NO_WAIT, StatusChange, Transition


def suspend(situation: Situation) -> Transition | None:
    """Suspends the job while `runPolicy.suspend` is true."""
    if not situation.spec.run_policy.suspend:
        return None
    message = "runPolicy.suspend is true; set it to false to go on"
    return Transition("Suspended", "Suspended", message, NO_WAIT | StatusChange(replacing_pod_uids=[]))


def resume(situation: Situation) -> Transition | None:
    """Resumes a suspended job. One that never ran is created as any other."""
    status = situation.status
    if status.phase != "Suspended" or status.attempt == 0:
        return None
    suspended = status.suspended_seconds + since(situation.now, suspended_since(status))
    return Transition(
        "Restarting",
        "Resumed",
        "resumed; waiting for the pods of all workers",
        NEW_STARTUP | StatusChange(suspended_seconds=round(suspended, 3), attempt_start_time=to_text(situation.now)),
    )
