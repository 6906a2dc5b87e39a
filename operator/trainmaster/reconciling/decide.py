"""`decide` turns what was observed of a job into what is done and reported. It is pure and total.

The policies are asked in the order in which they outrank each other, and the first that answers decides
the next status. Actions and events follow from that status, not from how it came about: an operator that was killed
between any two writes, decides the rest again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainmaster.reconciling.actions.assignments import assign, desired_assignment, touch
from trainmaster.reconciling.actions.children import apply_children, scaled_to_zero
from trainmaster.reconciling.actions.pod_group import delete_pod_group
from trainmaster.reconciling.actions.stuck_pods import delete_silent_pods, delete_stuck_pods
from trainmaster.reconciling.decision import Action, Decision, DeleteJob
from trainmaster.reconciling.observed.situation import Situation, survey
from trainmaster.reconciling.observed.snapshot import Job, Observed
from trainmaster.reconciling.policies import attempts, deadlines, elastic, scheduling_backoff, startup
from trainmaster.reconciling.policies.quarantine import move_workers
from trainmaster.reconciling.policies.queueing import queued, workload_actions
from trainmaster.reconciling.policies.replacement import replace, replace_pods
from trainmaster.reconciling.policies.success import success
from trainmaster.reconciling.policies.suspension import resume, suspend
from trainmaster.reconciling.status.events import events_between
from trainmaster.reconciling.status.next_status import next_status, rejected, unreadable
from trainmaster.reconciling.timers import requeue_after
from trainmaster.reconciling.transition import Transition
from trainmaster.rendering import Settings

POLICIES: tuple[Callable[[Situation], Transition | None], ...] = (
    success,
    suspend,
    queued,
    deadlines.active_deadline,
    attempts.create,
    resume,
    attempts.reattribute,
    elastic.resize,
    attempts.fail_attempt,
    startup.unrecoverable,
    elastic.reopen_resized,
    elastic.shrink,
    startup.deadline,
    scheduling_backoff.retry,
    scheduling_backoff.begin,
    replace,
    attempts.reopen,
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
    if job.spec is None:
        status = rejected(job, now)
        return Decision(status, events=events_between(job.status, status, None))

    before = survey(job, job.spec, observed, now, settings)
    status = job.status if before.terminal else next_status(before, _next(before))

    after = before.with_status(status)
    assignment = desired_assignment(after)
    return Decision(
        status,
        tuple(_actions(after)),
        events_between(job.status, status, job.spec),
        requeue_after(after, assignment),
    )


def _next(situation: Situation) -> Transition:
    """Returns the first policy's answer; `advance`, the last, always has one."""
    return next(transition for policy in POLICIES if (transition := policy(situation)) is not None)


def _actions(situation: Situation) -> Iterator[Action]:
    expires = deadlines.expires_at(situation)
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
    if situation.running:
        woken = touch(situation, assignment)
        if woken is not None:
            yield woken
