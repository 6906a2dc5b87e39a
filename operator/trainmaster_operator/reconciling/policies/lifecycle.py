"""Handles success, deadlines (`activeDeadlineSeconds`, `ttlSecondsAfterFinished`) and suspension of a job.

To suspend a job (`runPolicy.suspend`), its StatefulSets are scaled to zero. Every pod gets SIGTERM and its full grace
period, so the ranks can save a checkpoint. The phase is Suspending until the last pod is gone, and then Suspended. As
for a batch/v1 Job, the condition Suspended is True from the beginning, and the time from then on is suspended time. To
resume, the pods are created again. When all pods exist, a new attempt opens.
"""

from __future__ import annotations

from trainmaster_operator.api.times import since, to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES, Phase
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.reconciling.policies.attempts import fail
from trainmaster_operator.reconciling.policies.continuing import has_formed, was_about_to_join
from trainmaster_operator.reconciling.transition import NEW_STARTUP, NO_WAIT, StatusChange, Transition, condition


def active_deadline(situation: Situation) -> Transition | None:
    """Fails a job that was active for too long. Suspended time doesn't count."""
    limit = situation.spec.run_policy.active_deadline_seconds
    if limit is None or situation.suspended or _active_seconds(situation) < limit:
        return None
    return fail(situation, "DeadlineExceeded", f"the job was active for {limit} s (runPolicy.activeDeadlineSeconds)")


def active_deadline_at(situation: Situation) -> float | None:
    """Returns when the deadline passes if the job isn't suspended before."""
    limit = situation.spec.run_policy.active_deadline_seconds
    status = situation.status
    if limit is None or situation.suspended or status.start_time is None or situation.terminal:
        return None
    return situation.now + max(limit - _active_seconds(situation), 0.0)


def _active_seconds(situation: Situation) -> float:
    status = situation.status
    return max(since(situation.now, status.start_time) - status.suspended_seconds, 0.0)


def expires_at(job: Job) -> float | None:
    """Returns when a finished job must be deleted, or None."""
    policy = job.spec.run_policy if job.spec is not None else job.invalid
    ttl = None if policy is None else policy.ttl_seconds_after_finished
    ended = to_seconds(job.status.completion_time)
    if ttl is None or ended is None or job.status.phase not in TERMINAL_PHASES:
        return None
    return ended + ttl


def success(situation: Situation) -> Transition | None:
    """Ends the job when the required workers have exited with 0, even while the attempt is being stopped."""
    if situation.status.attempt == 0 or not situation.workers:
        return None
    present = situation.members.present
    if not has_formed(situation):
        # Workers that could no longer join, because the others have finished, don't count.
        present = tuple(worker for worker in present if not was_about_to_join(situation, worker)) or present
    if situation.spec.success_policy == "RankZero":
        # In a continued attempt the lowest remaining rank has the role of rank 0.
        needed, who = present[:1], f"the worker with rank {situation.members.present_ranks(present[0])[0]}"
    else:
        needed, who = present, "all workers"
    if not situation.finished >= {*needed}:
        return None
    change = NO_WAIT | StatusChange(completion_time=to_text(situation.now))
    return Transition("Succeeded", "Finished", f"{who} finished in attempt {situation.status.attempt}", change)


def suspend(situation: Situation) -> Transition | None:
    """Keeps the job suspended while `runPolicy.suspend` is true."""
    if not situation.spec.run_policy.suspend:
        return None
    return suspended(situation, "Suspended", "runPolicy.suspend is true; set it to false to continue")


def suspended(situation: Situation, reason: str, message: str) -> Transition:
    """Returns the transition to a job without pods, or to one whose pods still save and stop."""
    phase: Phase = "Suspending" if situation.observed.pods else "Suspended"
    return Transition(phase, reason, message, NO_WAIT | StatusChange(replacing_pod_uids=[]))


def resume(situation: Situation) -> Transition | None:
    """Resumes a suspended job. A job that was suspended before it ran starts like a new job."""
    status = situation.status
    if not situation.suspended or status.attempt == 0:
        return None
    held = condition(status.conditions, "Suspended")
    began = held.last_transition_time if held is not None and held.status == "True" else None
    suspended = status.suspended_seconds + since(situation.now, began)
    return Transition(
        "Restarting",
        "Resumed",
        "resumed; waiting for the pods of all workers",
        NEW_STARTUP
        | StatusChange(
            suspended_seconds=round(suspended, 3),
            attempt_start_time=to_text(situation.now),
            # The user may have mended what the program lacked.
            unproven_since=None if status.unproven_since is None else status.attempt + 1,
        ),
    )
