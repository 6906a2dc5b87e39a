"""`decide` turns what was observed of a job into what is done and reported. It is pure and total.

The policies are asked in the order in which they outrank each other, and the first that answers decides
the next status. Actions and events follow from that status, not from how it came about: an operator that was killed
between any two writes, decides the rest again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES
from trainmaster_operator.reconciling.actions.agent_config_map import ensure_agent
from trainmaster_operator.reconciling.actions.assignments import assign, desired_assignment, touch
from trainmaster_operator.reconciling.actions.children import apply_children, scaled_to_zero
from trainmaster_operator.reconciling.actions.pod_group import delete_pod_group
from trainmaster_operator.reconciling.actions.stacks import collect_stacks
from trainmaster_operator.reconciling.actions.stuck_pods import delete_silent_pods, delete_stuck_pods
from trainmaster_operator.reconciling.decision import Action, Decision, DeleteJob
from trainmaster_operator.reconciling.observed.situation import Situation, survey
from trainmaster_operator.reconciling.observed.snapshot import InvalidSpec, Job, Observed
from trainmaster_operator.reconciling.policies import (
    attempts,
    deadlines,
    elastic,
    joining,
    requests,
    scheduling_backoff,
    startup,
)
from trainmaster_operator.reconciling.policies.quarantine import move_workers
from trainmaster_operator.reconciling.policies.queueing import queued, workload_actions
from trainmaster_operator.reconciling.policies.replacement import replace, replace_pods
from trainmaster_operator.reconciling.policies.stand_in import stand_in
from trainmaster_operator.reconciling.policies.success import success
from trainmaster_operator.reconciling.policies.suspension import resume, suspend
from trainmaster_operator.reconciling.status.events import events_between
from trainmaster_operator.reconciling.status.next_status import failed_at_once, left_alone, next_status, unreadable
from trainmaster_operator.reconciling.timers import requeue_after
from trainmaster_operator.reconciling.transition import Transition
from trainmaster_operator.rendering import Settings

POLICIES: tuple[Callable[[Situation], Transition | None], ...] = (
    success,
    suspend,
    queued,
    deadlines.active_deadline,
    attempts.create,
    resume,
    attempts.reattribute,
    joining.leave_out,
    elastic.resize,
    attempts.fail_attempt,
    requests.stop,
    startup.unrecoverable,
    elastic.reopen_resized,
    requests.reopen_stopped,
    requests.end_back_off,
    stand_in,
    elastic.shrink,
    startup.deadline,
    scheduling_backoff.retry,
    scheduling_backoff.begin,
    replace,
    attempts.reopen,
    joining.fall_back,
    joining.join,
    joining.retry,
    joining.follow,
    attempts.advance,
)


def decide(job: Job, observed: Observed, now: float, settings: Settings) -> Decision:
    """Returns what to do for a job. `now`: seconds since the epoch; `settings`: the operator's own choices."""
    if job.deleting:
        # Owner references do the rest; agents get SIGTERM from the kubelet.
        return Decision(job.status)
    if job.unreadable is not None:
        status = unreadable(job, now)
        return Decision(status, events=events_between(job.status, status, None))
    if job.spec is None or (job.invalid is not None and not is_accepted(job, observed)):
        return _decide_invalid(job, job.invalid or InvalidSpec("the spec can't be read"), observed, now)

    before = survey(job, job.spec, observed, now, settings)
    status = job.status if before.terminal else next_status(before, _next(before))

    after = before.with_status(status)
    assignment = desired_assignment(after)
    asked = collect_stacks(job.status, after)
    return Decision(
        status,
        (*_actions(after), *(() if asked is None else (asked,))),
        events_between(job.status, status, job.spec),
        requeue_after(after, assignment),
    )


def is_accepted(job: Job, observed: Observed) -> bool:
    """Returns whether an operator has accepted the job: one that was never is Pending or new, and has nothing."""
    status = job.status
    has_children = any(child.owner_uid == job.uid for child in observed.children)
    return status.attempt > 0 or status.phase not in (None, "Pending") or has_children


def _decide_invalid(job: Job, invalid: InvalidSpec, observed: Observed, now: float) -> Decision:
    """Decides on a job whose spec can't be run, or not be read."""
    status = job.status
    if status.phase not in TERMINAL_PHASES:
        status = (left_alone if is_accepted(job, observed) else failed_at_once)(job, invalid, now)
    expires = deadlines.expires_at(dataclasses.replace(job, status=status))
    if expires is not None and now >= expires:
        return Decision(status, (DeleteJob(job.uid),))
    wait = None if expires is None else expires - now
    return Decision(status, events=events_between(job.status, status, None), requeue_after=wait)


def _next(situation: Situation) -> Transition:
    """Returns the first policy's answer; `advance`, the last, always has one."""
    return next(transition for policy in POLICIES if (transition := policy(situation)) is not None)


def _actions(situation: Situation) -> Iterator[Action]:
    expires = deadlines.expires_at(situation.job)
    if expires is not None and situation.now >= expires:
        yield DeleteJob(situation.job.uid)
        return
    yield from workload_actions(situation)
    if situation.status.attempt == 0:
        return
    yield from delete_stuck_pods(situation)
    yield from delete_silent_pods(situation)
    yield from move_workers(situation)
    assignment = desired_assignment(situation)
    if not scaled_to_zero(situation):
        assigned = assign(situation, assignment)
        if assigned is not None:
            yield assigned
    yield from apply_children(situation, assignment)
    # When the template holds the attempt: what comes in a pod's place must not begin it again.
    yield from replace_pods(situation)
    if scaled_to_zero(situation):
        released = delete_pod_group(situation)
        if released is not None:
            yield released
    elif (looked_for := ensure_agent(situation)) is not None:
        yield looked_for
    if situation.running:
        woken = touch(situation, assignment)
        if woken is not None:
            yield woken
