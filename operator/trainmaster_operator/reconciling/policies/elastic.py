"""An elastic job shrinks when a worker can't return, grows again when possible, and follows `spec.workers`.

Ranks are positions in the attempt's list of workers, so any worker may be missing, even worker 0. If a worker has had
no pod on a node for `nodes.lostAfterSeconds`, the worker is left out, provided that `elastic.minWorkers` remain. To
grow again, or to follow `kubectl scale`, the job makes a planned stop: every rank gets SIGTERM and the pod's grace
period to save a checkpoint. Resizing counts neither as a restart nor as a disruption.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.spares import alone_until, desired_workers, next_workers
from trainmaster_operator.reconciling.policies import startup
from trainmaster_operator.reconciling.policies.attempts import held_since
from trainmaster_operator.reconciling.policies.backoff import restart_at
from trainmaster_operator.reconciling.policies.opening import has_stopped, open_attempt, planned_stop
from trainmaster_operator.reconciling.transition import NEW_STARTUP, StatusChange, Transition

# Seconds for which an attempt runs before it is stopped to grow, so that its start wasn't wasted.
GROW_AFTER = 10.0


def resize(situation: Situation) -> Transition | None:
    """Stops the ranks, which first save a checkpoint, to change the group."""
    if situation.spec.elastic is None or not situation.running:
        return None
    current, wanted = _asked_for(situation), set(desired_workers(situation))
    if current == wanted or (current < wanted and not _can_grow(situation)):
        return None
    why = f"from {len(current)} to {len(wanted)} workers"
    return planned_stop(situation, "Resizing", why, StatusChange(resizing=True))


def reopen_resized(situation: Situation) -> Transition | None:
    """Opens the next attempt with the available workers when the ranks have stopped or their grace period is over."""
    if situation.status.phase != "Restarting" or not situation.status.resizing:
        return None
    waiting = situation.now < restart_at(situation)
    if (waiting and not has_stopped(situation)) or alone_until(situation) is not None:
        return None
    able = scheduled_workers(situation)
    return open_attempt(situation, able, "Resized", NEW_STARTUP) if is_enough(situation, able) else None


def shrink(situation: Situation) -> Transition | None:
    """Opens the next attempt with fewer workers, because a worker's pod has had no node for too long."""
    if situation.spec.elastic is None or not situation.starting or situation.is_cause_open:
        return None
    if situation.unresponsive or alone_until(situation) is not None:
        # The unresponsive worker's pod will be deleted soon. After that, the worker isn't available.
        return None
    able = scheduled_workers(situation)
    if situation.running and set(able) == set(situation.workers):
        return None
    due = max(shrink_at(situation), restart_at(situation))
    if situation.now < due or not is_enough(situation, able):
        return None
    return open_attempt(situation, able, "Shrunk", NEW_STARTUP)


def shrink_at(situation: Situation) -> float:
    """Returns when a missing worker is left out, which is never later than the time at which the job would fail."""
    due = situation.after(held_since(situation), situation.lost_after)
    fails = startup.due_at(situation)
    return due if fails is None else min(due, fails)


def grow_at(situation: Situation) -> float | None:
    """Returns when the job may be resized, or None if it has the requested workers."""
    if situation.spec.elastic is None or not situation.running:
        return None
    if _asked_for(situation) == {*desired_workers(situation)}:
        return None
    return situation.after(situation.status.attempt_start_time, GROW_AFTER)


def scheduled_workers(situation: Situation) -> tuple[int, ...]:
    """Returns the workers of the next attempt that have a living pod on a node, in rank order."""
    nowhere = frozenset(pod.uid for pod in situation.living.values() if pod.node is None)
    placed = {
        worker for worker, pod in situation.living.items() if pod.node is not None and pod.uid not in situation.leaving
    }
    return tuple(worker for worker in next_workers(situation, without=nowhere) if worker in placed)


def _can_grow(situation: Situation) -> bool:
    """Returns whether the attempt has run long enough, and every desired worker has a running container."""
    at = grow_at(situation)
    if at is None or situation.now < at or situation.status.phase != "Running":
        return False
    pods = [situation.living.get(worker) for worker in desired_workers(situation)]
    return all(pod is not None and pod.container_runs and pod.uid not in situation.leaving for pod in pods)


def _asked_for(situation: Situation) -> set[int]:
    """Returns the attempt's workers, except absent workers that the user no longer wants."""
    return set(situation.workers) - (situation.members.absent - set(desired_workers(situation)))


def is_enough(situation: Situation, able: tuple[int, ...]) -> bool:
    """Returns whether these workers are enough for an elastic job."""
    elastic = situation.spec.elastic
    return elastic is not None and len(able) >= elastic.min_workers
