"""`decide` turns the observations of a job into a status, actions and events. It is pure, and answers for every input.

The policies are called in order of precedence, and the first answer decides the next status. Actions and events follow
from that status alone. So if the operator is killed between two writes, the next operator derives the missing writes
from the status.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES
from trainmaster_operator.reconciling.actions import assignments, children, stuck_pods
from trainmaster_operator.reconciling.decision import Action, Decision, DeleteJob
from trainmaster_operator.reconciling.observed.situation import UP_WITHOUT_REPORT_SECONDS, Situation, survey
from trainmaster_operator.reconciling.observed.snapshot import InvalidSpec, Job, Observed
from trainmaster_operator.reconciling.observed.spares import alone_until, saves_until
from trainmaster_operator.reconciling.policies import (
    attempts,
    backoff,
    elastic,
    joining,
    lifecycle,
    missing_workers,
    requests,
    scheduling_backoff,
    startup,
)
from trainmaster_operator.reconciling.policies.quarantine import move_workers
from trainmaster_operator.reconciling.policies.queueing import queued, workload_actions
from trainmaster_operator.reconciling.status.events import events_between
from trainmaster_operator.reconciling.status.next_status import next_status, unreadable, with_invalid_spec
from trainmaster_operator.reconciling.status.progress import progress_due_at, reports_nothing_at
from trainmaster_operator.reconciling.transition import Transition
from trainmaster_operator.rendering import Settings
from trainmaster_operator.wire.assignment import Assignment

POLICIES: tuple[Callable[[Situation], Transition | None], ...] = (
    lifecycle.success,
    lifecycle.suspend,
    queued,
    lifecycle.active_deadline,
    attempts.create,
    lifecycle.resume,
    attempts.reattribute,
    joining.leave_out,
    elastic.resize,
    attempts.fail_attempt,
    requests.stop,
    startup.unrecoverable,
    elastic.reopen_resized,
    requests.reopen_stopped,
    requests.end_back_off,
    missing_workers.stand_in,
    elastic.shrink,
    startup.deadline,
    scheduling_backoff.retry,
    scheduling_backoff.begin,
    backoff.replace,
    attempts.reopen,
    joining.fall_back,
    joining.join,
    joining.retry,
    joining.follow,
    attempts.advance,
)


def decide(job: Job, observed: Observed, now: float, settings: Settings) -> Decision:
    """Returns the decision for a job. `now` is in seconds since the epoch. `settings` are the operator's."""
    if job.deleting:
        # The garbage collector deletes the children, and the kubelet sends SIGTERM to the agents.
        return Decision(job.status)
    if job.unreadable is not None:
        status = unreadable(job, now)
        return Decision(status, events=events_between(job.status, status, None))
    if job.spec is None or (job.invalid is not None and not is_accepted(job, observed)):
        return _decide_invalid(job, job.invalid or InvalidSpec("the spec can't be read"), observed, now)

    before = survey(job, job.spec, observed, now, settings)
    status = job.status
    if not before.terminal:
        # The last policy, `advance`, always answers.
        answers = (transition for policy in POLICIES if (transition := policy(before)) is not None)
        status = next_status(before, next(answers))

    after = before.with_status(status)
    assignment = assignments.desired_assignment(after)
    return Decision(
        status,
        (*_actions(after), *requests.collect_stacks(job.status, after)),
        events_between(job.status, status, job.spec),
        requeue_after(after, assignment),
    )


def is_accepted(job: Job, observed: Observed) -> bool:
    """Returns whether an operator has accepted the job. Other jobs are new or Pending, and have no children."""
    status = job.status
    has_children = any(child.owner_uid == job.uid for child in observed.children)
    return status.attempt > 0 or status.phase not in (None, "Pending") or has_children


def _decide_invalid(job: Job, invalid: InvalidSpec, observed: Observed, now: float) -> Decision:
    status = job.status
    if status.phase not in TERMINAL_PHASES:
        status = with_invalid_spec(job, invalid, now, is_accepted=is_accepted(job, observed))
    expires = lifecycle.expires_at(dataclasses.replace(job, status=status))
    if expires is not None and now >= expires:
        return Decision(status, (DeleteJob(job.uid),))
    wait = None if expires is None else expires - now
    return Decision(status, events=events_between(job.status, status, None), requeue_after=wait)


def _actions(situation: Situation) -> Iterator[Action]:
    expires = lifecycle.expires_at(situation.job)
    if expires is not None and situation.now >= expires:
        yield DeleteJob(situation.job.uid)
        return
    yield from workload_actions(situation)
    if situation.status.attempt == 0:
        return
    yield from stuck_pods.delete_stuck_pods(situation)
    yield from stuck_pods.delete_silent_pods(situation)
    yield from move_workers(situation)
    assignment = assignments.desired_assignment(situation)
    if not children.scaled_to_zero(situation):
        yield from assignments.assign(situation, assignment)
    yield from children.apply_children(situation, assignment)
    # The template is updated before pods are deleted, because a new pod must not start the old attempt again.
    yield from backoff.replace_pods(situation)
    if children.scaled_to_zero(situation):
        yield from children.delete_pod_group(situation)
    else:
        yield from children.ensure_agent(situation)
    if situation.running:
        yield from assignments.touch(situation, assignment)


# Minimum wait in seconds. It prevents a busy loop if nothing changes at the expected time.
SHORTEST_WAIT = 0.05


def requeue_after(situation: Situation, assignment: Assignment) -> float | None:
    """Returns the seconds until the earliest time at which a policy may answer differently, or None."""
    now = situation.now
    times = (
        startup.due_at(situation),
        lifecycle.active_deadline_at(situation),
        lifecycle.expires_at(situation.job),
        stuck_pods.next_check_at(situation),
        children.next_look_at(situation),
        assignments.next_touch_at(situation, assignment) if not situation.terminal else None,
        assignments.names_first_pods_at(situation),
        backoff.restart_at(situation) if situation.held else None,
        scheduling_backoff.begins_at(situation),
        saves_until(situation) if situation.held else None,
        alone_until(situation),
        missing_workers.stands_in_at(situation),
        joining.falls_back_at(situation),
        joining.retries_at(situation),
        elastic.grow_at(situation),
        elastic.shrink_at(situation) if situation.spec.elastic is not None and not situation.terminal else None,
        _unreported_until(situation),
        progress_due_at(situation),
        reports_nothing_at(situation),
        requests.next_stacks_at(situation) if not situation.terminal else None,
    )
    due = min((at for at in times if at is not None and at > now), default=None)
    return None if due is None else max(due - now, SHORTEST_WAIT)


def _unreported_until(situation: Situation) -> float | None:
    """Returns when the next running worker without a report will count as up."""
    if situation.status.phase not in ("Pending", "Starting") or situation.observed.stream.connected:
        return None
    waits = (situation.unreported_seconds(worker) for worker in situation.workers)
    longest = max((wait for wait in waits if 0 < wait < UP_WITHOUT_REPORT_SECONDS), default=None)
    return None if longest is None else situation.now + UP_WITHOUT_REPORT_SECONDS - longest
