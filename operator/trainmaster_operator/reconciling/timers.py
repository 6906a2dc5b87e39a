"""A timer says when a job has to be decided on again although no event comes for it."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.reconciling.actions import stuck_pods
from trainmaster_operator.reconciling.actions.agent_config_map import next_look_at
from trainmaster_operator.reconciling.actions.assignments import names_first_pods_at, next_touch_at
from trainmaster_operator.reconciling.observed.lineup import alone_until, saves_until
from trainmaster_operator.reconciling.observed.situation import UP_WITHOUT_REPORT_SECONDS, Situation
from trainmaster_operator.reconciling.policies import (
    attempts,
    deadlines,
    elastic,
    joining,
    scheduling_backoff,
    stand_in,
    startup,
)
from trainmaster_operator.reconciling.status.progress import progress_due_at
from trainmaster_operator.reconciling.status.stacks import next_stacks_at
from trainmaster_operator.wire.assignment import Assignment

# Never spin: a time that has passed without effect is checked again after this.
SHORTEST_WAIT = 0.05


def requeue_after(situation: Situation, assignment: Assignment) -> float | None:
    """Returns the seconds until the earliest time at which a policy could answer otherwise; None while only news can
    matter."""
    due = min(_times(situation, assignment), default=None)
    return None if due is None else max(due - situation.now, SHORTEST_WAIT)


def _times(situation: Situation, assignment: Assignment) -> Iterator[float]:
    now, status = situation.now, situation.status
    candidates = [
        startup.due_at(situation),
        deadlines.active_deadline_at(situation),
        deadlines.expires_at(situation.job),
        stuck_pods.next_check_at(situation),
        next_look_at(situation) if not situation.terminal else None,
        next_touch_at(situation, assignment) if not situation.terminal else None,
        names_first_pods_at(situation),
        attempts.restart_at(situation) if status.phase == "Restarting" else None,
        scheduling_backoff.begins_at(situation),
        saves_until(situation) if status.phase == "Restarting" else None,
        alone_until(situation),
        stand_in.stands_in_at(situation),
        joining.falls_back_at(situation),
        joining.retries_at(situation),
        elastic.grow_at(situation),
        elastic.shrink_at(situation) if situation.spec.elastic is not None and not situation.terminal else None,
        _unreported_until(situation),
        progress_due_at(situation),
        next_stacks_at(situation) if not situation.terminal else None,
    ]
    yield from (at for at in candidates if at is not None and at > now)


def _unreported_until(situation: Situation) -> float | None:
    """Returns when the next worker without a report counts as up."""
    if situation.status.phase not in ("Pending", "Starting") or situation.observed.stream.connected:
        return None
    waits = [situation.unreported_seconds(worker) for worker in situation.workers]
    left = [UP_WITHOUT_REPORT_SECONDS - wait for wait in waits if 0 < wait < UP_WITHOUT_REPORT_SECONDS]
    return situation.now + min(left) if left else None
