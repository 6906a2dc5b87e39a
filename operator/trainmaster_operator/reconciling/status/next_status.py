"""Builds the status after a pass from the policies' changes, the counts, the conditions and the progress.

Equal observations give equal statuses, so nothing is written for an idle job.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import SUSPENDED_PHASES, TERMINAL_PHASES, Condition, JobStatus, WorkerCounts
from trainmaster_operator.reconciling.observed.situation import RUN_PHASES, Situation
from trainmaster_operator.reconciling.observed.snapshot import InvalidSpec, Job
from trainmaster_operator.reconciling.observed.spares import desired_workers, ready_spares
from trainmaster_operator.reconciling.policies.quarantine import forgive
from trainmaster_operator.reconciling.policies.repeated import has_step
from trainmaster_operator.reconciling.policies.requests import due_stacks
from trainmaster_operator.reconciling.policies.startup import gravest_problem
from trainmaster_operator.reconciling.status.doubts import with_notice
from trainmaster_operator.reconciling.status.progress import due_progress, newest_progress, with_recovery
from trainmaster_operator.reconciling.status.time_spent import book_time
from trainmaster_operator.reconciling.transition import NO_CHANGE, StatusChange, Transition, condition, with_condition
from trainmaster_operator.wire.names import JOB_UID_LABEL

INVALID_SPEC = "InvalidSpec"


def next_status(situation: Situation, transition: Transition) -> JobStatus:
    """Returns the job's status after a transition."""
    is_over = transition.phase in TERMINAL_PHASES
    spares = {index for group in situation.layout for index in group.indexes} - {*desired_workers(situation)}
    change = transition.change | forgive(situation)
    change |= StatusChange(
        phase=transition.phase,
        observed_generation=situation.job.generation,
        workers=_counts(situation, transition),
        # The pods of an ended job are being deleted, so counting them would only cause writes.
        replicas=0 if is_over else len(situation.pods.keys() - spares),
        selector=f"{JOB_UID_LABEL}={situation.job.uid}",
        progress=with_notice(situation, due_progress(situation, is_terminal=is_over), transition.phase),
        stacks_request=due_stacks(situation, transition.phase),
        conditions=_conditions(situation, transition),
    )
    if transition.phase != "Running":
        change |= StatusChange(training_with=None)
    status = change.apply(situation.status)
    failures = with_recovery(situation, status)
    is_recovery_due = bool(failures) and status.failures[0].recovery is None and failures[0].recovery is not None
    if status == situation.status and not is_recovery_due:
        return status
    # Progress and accounting don't cause a write, but every written status contains their newest values.
    newest = with_notice(situation, newest_progress(situation), transition.phase)
    news = StatusChange(progress=newest, failures=failures)
    attempt = situation.status.attempt
    is_unproven = status.unproven_since is not None and status.unproven_since <= attempt
    if is_unproven and situation.observed.progress_attempt == attempt and has_step(situation):
        news |= StatusChange(unproven_since=None)
    return book_time(situation, news.apply(status))


def with_invalid_spec(job: Job, invalid: InvalidSpec, now: float, *, is_accepted: bool) -> JobStatus:
    """Returns the status of a job whose spec is invalid.

    A job that was never accepted fails, because most of a spec can't be changed. For an accepted job, only a condition
    reports the problem. Its pods stay, and the job continues once its spec is corrected.
    """
    put = partial(with_condition, reason=INVALID_SPEC, message=invalid.message, now=now, generation=job.generation)
    conditions = put(job.status.conditions, "Accepted", "False")
    # `kubectl get` shows this condition in its columns, and the status may have been lost.
    if not is_accepted or condition(conditions, "Running") is None:
        conditions = put(conditions, "Running", "False")
    change = StatusChange(phase=job.status.phase or "Pending", observed_generation=job.generation)
    if not is_accepted:
        conditions = put(conditions, "Failed", "True")
        change |= StatusChange(phase="Failed", completion_time=to_text(now))
    return (change | StatusChange(conditions=conditions)).apply(job.status)


def unreadable(job: Job, now: float) -> JobStatus:
    """Returns the status of a job whose status can't be parsed: the same status, with a condition that reports this."""
    why = job.unreadable or ""
    conditions = with_condition(
        job.status.conditions, "Accepted", "False", "Unreadable", why, now=now, generation=job.generation
    )
    return StatusChange(conditions=conditions).apply(job.status)


def _counts(situation: Situation, transition: Transition) -> WorkerCounts:
    change = transition.change
    opened = "attempt" in change.model_fields_set and change.attempt != situation.status.attempt
    if opened and change.continues is not None:
        # The remaining workers keep training.
        return _counts(situation.with_status(change.apply(situation.status)), replace(transition, change=NO_CHANGE))
    is_held = transition.phase == "Pending" and change.apply(situation.status).scheduling_backoffs > 0
    alive = situation.living.keys()
    # Pods that still save a checkpoint exist, and hold their resources.
    created = situation.pods.keys() if transition.phase == "Suspending" else alive
    finished = frozenset() if opened else situation.finished
    up = frozenset() if opened else situation.up - finished
    failed = {worker for worker, report in situation.reports.items() if report.state in ("Failed", "Stopped")}
    # The other ready spares become workers of the next attempt.
    spares = [spare for spare in ready_spares(situation) if spare not in transition.change.worker_order]
    return WorkerCounts(
        desired=len(desired_workers(situation)),
        created=len(created & {*desired_workers(situation)}),
        running=len(alive & (up - failed)) if transition.phase in RUN_PHASES and not is_held else 0,
        finished=len(finished),
        spares=min(len(spares), sum(group.spares for group in situation.layout)) if situation.has_spares else None,
    )


def _conditions(situation: Situation, transition: Transition) -> list[Condition]:
    put = partial(with_condition, now=situation.now, generation=situation.job.generation)
    reason, message, invalid = "SpecAccepted", "the spec can be run", situation.job.invalid
    if invalid is not None:
        reason = INVALID_SPEC
        message = f"accepted earlier, so the job keeps running; a new job like this would be refused: {invalid.message}"
    conditions = put(situation.status.conditions, "Accepted", "True", reason, message)
    conditions = put(
        conditions, "Running", "True" if transition.phase == "Running" else "False", *_why(situation, transition)
    )
    if transition.phase in SUSPENDED_PHASES:
        conditions = put(conditions, "Suspended", "True", transition.reason, transition.message)
    elif condition(conditions, "Suspended") is not None:
        conditions = put(conditions, "Suspended", "False", "Resumed", "")
    if transition.phase in TERMINAL_PHASES:
        conditions = put(conditions, transition.phase, "True", transition.reason, transition.message)
    return conditions


def _why(situation: Situation, transition: Transition) -> tuple[str, str]:
    """Returns the reason and the message of the Running condition. A startup problem has precedence."""
    before = condition(situation.status.conditions, "Running")
    waits = transition.phase in ("Pending", "Starting", "Restarting") or transition.reason == "Queued"
    problem = gravest_problem(situation) if waits else None
    if problem is not None:
        if before is not None and before.reason == problem.reason:
            # The kubelet's message changes with every try, so the first message is kept.
            return before.reason, before.message
        return problem.reason, problem.message
    if transition.reason:
        return transition.reason, transition.message
    if before is None or (before.reason in REASONS and transition.phase != "Running"):
        return transition.phase, f"attempt {situation.status.attempt}: waiting for the workers"
    return before.reason, before.message
