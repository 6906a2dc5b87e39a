"""A half-started job lets go of its nodes for a while (scheduling backoff), so that no two jobs wait for each other.

Without a gang scheduler each pod is made and scheduled by itself: two jobs can each hold half of the accelerators, or
of a ResourceQuota, for ever. So a job that holds nodes but has had pods without one for a fifth of `startupSeconds`
(three minutes by default: a cluster autoscaler needs two to four for a node) is scaled to zero, waits, and tries again.
So is one that holds pods while a quota keeps others from being made. The waits grow, and both they and the patience are
jittered by the job's uid, so that the same two jobs don't collide again. `startupSeconds` goes on all the while, and no
attempt opens before all pods have nodes: one without ranks is none.

An elastic job that can do with the workers that have nodes isn't half-started: it gives up nothing, and shrinks.
"""

from __future__ import annotations

import zlib

from trainmaster_operator.api.times import since, to_seconds, to_text
from trainmaster_operator.reconciling.observed.lineup import desired_workers, next_workers
from trainmaster_operator.reconciling.observed.situation import Situation, is_alive
from trainmaster_operator.reconciling.policies.attempts import held_since, restart_at
from trainmaster_operator.reconciling.policies.elastic import is_enough, scheduled_workers
from trainmaster_operator.reconciling.policies.startup import began_at, is_quota
from trainmaster_operator.reconciling.transition import StatusChange, Transition

# Share of startupSeconds that pods may be without a node while others hold theirs.
PATIENCE = 0.2
# Seconds, and shares of startupSeconds: a job that has less time to start also waits less.
FIRST_WAIT, LONGEST_WAIT = 15.0, 240.0
FIRST_SHARE, LONGEST_SHARE = 1 / 60, 4 / 15
# Seconds; within this the other job's set is touched (controller/lookups.py) and has made its pods.
QUOTA_WAIT = 10.0


def begin(situation: Situation) -> Transition | None:
    """Scales a job to zero that holds only some of its nodes, and waits."""
    due = begins_at(situation)
    if due is None or situation.now < due:
        return None
    times = situation.status.scheduling_backoffs + 1
    startup = situation.spec.failure_policy.startup_seconds
    first, longest = min(FIRST_WAIT, FIRST_SHARE * startup), min(LONGEST_WAIT, LONGEST_SHARE * startup)
    unmade = _unmade(situation)
    wait = min(first * 2.0 ** min(times - 1, 10), longest) * (1 + _jitter(situation, "wait", times))
    if unmade:
        wait = max(wait, QUOTA_WAIT)
    shown = f"{wait:.0f}" if wait >= 10 else f"{wait:.1f}"
    of = len(desired_workers(situation))
    if unmade:
        message = f"a quota keeps {len(unmade)} of {of} workers from being made; the others leave for {shown} s"
    else:
        missing = of - len(scheduled_workers(situation))
        message = f"{missing} of {of} workers found no node; the others leave theirs for {shown} s"
    until = to_text(situation.now + wait)
    began = began_at(situation)
    return Transition(
        "Restarting",
        "SchedulingBackoff",
        message,
        StatusChange(
            scheduling_backoff=True,
            scheduling_backoffs=times,
            startup_start_time=None if began is None else to_text(began),
            next_attempt_time=until,
        ),
    )


def retry(situation: Situation) -> Transition | None:
    """Asks for all pods once more when the wait is over."""
    if not situation.status.scheduling_backoff:
        return None
    if situation.now < (restart_at(situation) or 0.0):
        message = "waiting without pods before asking for nodes again"
        return Transition("Restarting", "SchedulingBackoff", message)
    change = StatusChange(scheduling_backoff=None)
    return Transition("Restarting", "SchedulingRetried", "asking for all workers once more", change)


def begins_at(situation: Situation) -> float | None:
    """Returns when a job that holds some of its nodes is scaled to zero."""
    status = situation.status
    if status.phase not in ("Pending", "Starting", "Restarting"):
        return None
    if status.scheduling_backoff or status.resizing or status.stopping:
        return None
    pods = [pod for worker in next_workers(situation) if (pod := situation.pods.get(worker)) and is_alive(pod)]
    placed = scheduled_workers(situation)
    if is_enough(situation, placed):
        return None
    lacks_nodes = placed and any(pod.unschedulable and not pod.node for pod in pods)
    if not lacks_nodes and not (pods and _unmade(situation)):
        return None
    began = situation.now - since(situation.now, held_since(situation))
    again = to_seconds(status.next_attempt_time)
    if again is not None and again <= situation.now:
        began = max(began, again)
    patience = PATIENCE * situation.spec.failure_policy.startup_seconds
    return began + patience * (1 + _jitter(situation, "patience", status.scheduling_backoffs) / 2)


def _unmade(situation: Situation) -> list[int]:
    """Returns the workers whose pods a quota keeps from being made."""
    if not any(is_quota(problem) for problem in situation.observed.refused_writes):
        return []
    return [worker for worker in next_workers(situation) if worker not in situation.pods]


def _jitter(situation: Situation, purpose: str, times: int) -> float:
    """Returns a number from 0 to 1 that is always the same for a job, a purpose and a count."""
    return zlib.crc32(f"{situation.job.uid}/{purpose}/{times}".encode()) / 0xFFFFFFFF
