"""Scheduling backoff prevents deadlocks: a job with too few nodes gives up its nodes for a while.

Without a gang scheduler, two jobs can each hold half of the accelerators, or of a ResourceQuota, forever. In two cases,
a job is scaled to zero, waits, and tries again: it holds nodes while some of its pods have had no node for a fifth of
`startupSeconds` (three minutes by default; a cluster autoscaler needs two to four), or it has some pods while a quota
prevents the creation of others. The waits grow, with jitter from the job's uid, so that the same two jobs don't collide
again. No attempt opens before all pods have nodes. Until the first attempt has had all its nodes, the phase stays
Pending. If enough workers of an elastic job have nodes, the job shrinks
instead.
"""

from __future__ import annotations

import zlib

from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.reconciling.observed.situation import Situation, is_held_before_start
from trainmaster_operator.reconciling.observed.spares import desired_workers, next_workers
from trainmaster_operator.reconciling.policies.attempts import held_since
from trainmaster_operator.reconciling.policies.backoff import restart_at
from trainmaster_operator.reconciling.policies.elastic import is_enough, scheduled_workers
from trainmaster_operator.reconciling.policies.startup import began_at, is_quota
from trainmaster_operator.reconciling.transition import StatusChange, Transition

# Share of startupSeconds for which some pods may lack a node while others hold nodes.
PATIENCE = 0.2
# Waits in seconds and as shares of startupSeconds. The shorter one applies, so a job with less time to start waits
# less.
FIRST_WAIT, LONGEST_WAIT = 15.0, 240.0
FIRST_SHARE, LONGEST_SHARE = 1 / 60, 4 / 15
# Minimum wait in seconds after a quota was exceeded. Within this time the operator touches the other job's StatefulSet,
# which then creates its pods.
QUOTA_WAIT = 10.0


def begin(situation: Situation) -> Transition | None:
    """Scales a job to zero for a while if it holds only some of the nodes or pods that it needs."""
    due = begins_at(situation)
    if due is None or situation.now < due:
        return None
    times = situation.status.scheduling_backoffs + 1
    startup = situation.spec.failure_policy.startup_seconds
    first, longest = min(FIRST_WAIT, FIRST_SHARE * startup), min(LONGEST_WAIT, LONGEST_SHARE * startup)
    unmade, of, began = _unmade(situation), len(desired_workers(situation)), began_at(situation)
    wait = min(first * 2.0 ** min(times - 1, 10), longest) * (1 + _jitter(situation, "wait", times))
    if unmade:
        wait = max(wait, QUOTA_WAIT)
        message = f"a quota keeps {len(unmade)} of {of} workers from being created; the others give up their pods"
    else:
        missing = of - len(scheduled_workers(situation))
        message = f"{missing} of {of} workers found no node; the others give up theirs"
    shown = f"{wait:.0f}" if wait >= 10 else f"{wait:.1f}"
    never_ran = situation.running and situation.status.attempt == 1 and not situation.recorded_uids
    return Transition(
        "Pending" if never_ran or is_held_before_start(situation.status) else "Restarting",
        "SchedulingBackoff",
        f"{message} for {shown} s",
        StatusChange(
            scheduling_backoff=True,
            scheduling_backoffs=times,
            startup_start_time=None if began is None else to_text(began),
            next_attempt_time=to_text(situation.now + wait),
        ),
    )


def retry(situation: Situation) -> Transition | None:
    """Requests all pods again when the wait is over."""
    phase = situation.status.phase
    if not situation.status.scheduling_backoff or phase is None:
        return None
    if situation.now < restart_at(situation):
        message = "waiting without pods before requesting nodes again"
        return Transition(phase, "SchedulingBackoff", message)
    change = StatusChange(scheduling_backoff=None)
    return Transition(phase, "SchedulingRetried", "requesting all workers again", change)


def begins_at(situation: Situation) -> float | None:
    """Returns when a job that holds only some of its nodes or pods is scaled to zero, or None."""
    status = situation.status
    if not situation.starting or situation.stops_as_planned:
        return None
    pods = [pod for worker in next_workers(situation) if (pod := situation.living.get(worker)) is not None]
    placed = scheduled_workers(situation)
    if is_enough(situation, placed):
        return None
    lacks_nodes = placed and any(pod.unschedulable and not pod.node for pod in pods)
    if not lacks_nodes and not (pods and _unmade(situation)):
        return None
    began = situation.after(held_since(situation), 0.0)
    again = to_seconds(status.next_attempt_time)
    if again is not None and again <= situation.now:
        began = max(began, again)
    patience = PATIENCE * situation.spec.failure_policy.startup_seconds
    return began + patience * (1 + _jitter(situation, "patience", status.scheduling_backoffs) / 2)


def _unmade(situation: Situation) -> list[int]:
    """Returns the workers whose pods can't be created because of a quota."""
    if not any(is_quota(problem) for problem in situation.observed.refused_writes):
        return []
    return [worker for worker in next_workers(situation) if worker not in situation.pods]


def _jitter(situation: Situation, purpose: str, times: int) -> float:
    """Returns a number from 0 to 1 that depends only on the job, the purpose and the count."""
    return zlib.crc32(f"{situation.job.uid}/{purpose}/{times}".encode()) / 0xFFFFFFFF
