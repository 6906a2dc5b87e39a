"""Sends the desired assignment to pods that lack it, and touches pods whose agents haven't seen it.

The assignment follows from the status alone, so a restarted operator publishes the same one. The kubelet can be late in
copying an annotation into a pod's file (measured: under churn, 5 of 8 files were older than a minute). So pods whose
agents haven't seen the attempt are touched after TOUCH_SECONDS, and then at growing intervals.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.reconciling.decision import Assign, Touch
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.reconciling.policies.opening import is_unordered
from trainmaster_operator.rendering import first_assignment, processes_by_worker, rank_grace_seconds, stable_hosts
from trainmaster_operator.wire.assignment import Assignment, master_port, newer

# Seconds between SIGTERM and SIGKILL for ranks of a failed attempt. The culprit often closes its sockets before it
# exits, and its exit code matters.
BROKEN_GRACE_SECONDS = 0.4
TOUCH_SECONDS = 1.25
# If the other workers still run this many seconds after a worker has finished, they count as training without it.
FINISHED_SECONDS = 2.0
# If an agent hasn't seen its attempt after this many seconds, a late file isn't the reason, so touching stops.
TOUCH_FOR_SECONDS = 60.0


def desired_assignment(situation: Situation) -> Assignment:
    """Returns the assignment of the current attempt, or of attempt 1 if none has been opened."""
    status = situation.status
    attempt = max(status.attempt, 1)
    full = first_assignment(situation.identity, situation.spec)
    if is_unordered(situation):
        # The order of the ranks isn't known yet. This assignment makes the pods wait for it.
        return full._replace(attempt=0, state="Hold")
    runs = status.phase is None or situation.running
    return full._replace(
        attempt=attempt,
        workers=situation.workers,
        hosts=_hosts(situation),
        uids=_uids(situation),
        port=master_port(situation.job.uid, attempt),
        processes=_processes(situation),
        # The code of the open attempt. If the status contains no digest, no attempt has been opened yet.
        code=situation.code_digest and (status.code_digest or situation.code_digest),
        continues=status.continues,
        absent=() if status.continues is None else situation.members.absent_ranks,
        master_place=situation.workers.index(situation.members.present[0]),
        state="Run" if runs else "Hold",
        grace_seconds=float(rank_grace_seconds(situation.spec)) if _is_planned(situation) else BROKEN_GRACE_SECONDS,
    )


def names_first_pods_at(situation: Situation) -> float | None:
    """Returns when the pods' uids are added to the assignment of attempt 1, or None.

    At first the assignment contains no uids, because the template is written before the pods exist. The uids are added
    after a worker has finished, so that a new pod with its index can't start the attempt again. If all workers finish
    within FINISHED_SECONDS, this write isn't needed.
    """
    if situation.status.attempt != 1 or not situation.running or len(situation.worker_uids) < len(situation.workers):
        return None
    reported = [min(situation.reports[worker].at, situation.now) for worker in situation.finished]
    return min(reported) + FINISHED_SECONDS if reported else None


def assign(situation: Situation, assignment: Assignment) -> Iterator[Assign]:
    """Yields the assignment for all living pods whose annotation differs, if there are any.

    Pods that are about to be replaced are left out, because the kubelet's status would conflict with the deletion.
    """
    replaced = situation.crash_looping | situation.displaced
    pods = [pod for pod in situation.living.values() if pod.uid not in replaced]
    pods = [pod for pod in pods if not (_has(situation, pod, assignment) or is_ahead(pod.assignment, assignment))]
    if pods:
        yield Assign(assignment, tuple(pods))


def _has(situation: Situation, pod: PodView, assignment: Assignment) -> bool:
    """Returns whether a pod's annotation contains the assignment, or attempt 1 without the pods' uids."""
    if assignment.attempt == 1 and pod.uid in situation.status.pod_uids:
        return pod.assignment is not None and pod.assignment._replace(uids=assignment.uids) == assignment
    return pod.assignment == assignment


def is_ahead(present: Assignment | None, desired: Assignment) -> bool:
    """Returns whether an annotation is newer than the desired assignment, because another operator wrote it."""
    return present is not None and newer(desired, present)


def touch(situation: Situation, assignment: Assignment) -> Iterator[Touch]:
    """Yields a touch of the pods whose agents should have seen the assignment by now, but haven't."""
    due = [pod for pod in _unseen(situation, assignment) if touch_at(situation, pod) <= situation.now]
    if due:
        yield Touch(tuple(due))


def next_touch_at(situation: Situation, assignment: Assignment) -> float | None:
    """Returns when the next pod must be touched."""
    times = (touch_at(situation, pod) for pod in _unseen(situation, assignment))
    return min((at for at in times if at > situation.now), default=None)


def touch_at(situation: Situation, pod: PodView) -> float:
    """Returns when a pod must be touched next. The intervals double, so that touches cause few events."""
    base = situation.assigned_since(pod)
    if pod.touched_at is None or not base <= pod.touched_at <= situation.now:
        return base + TOUCH_SECONDS
    return pod.touched_at + max(TOUCH_SECONDS, pod.touched_at - base)


def _unseen(situation: Situation, assignment: Assignment) -> list[PodView]:
    """Returns the pods whose annotation is right, but whose agents don't seem to know the attempt.

    Attempt 1 is in the file before the agent starts, so the agent always sees it. If the user's code is in a file too,
    only reports count, because an agent reports only after it has found the code. A hold repeats its attempt's number,
    so nothing shows whether an agent has seen the hold.
    """
    opened = to_seconds(situation.status.attempt_start_time)
    in_template = assignment.attempt == 1 and situation.spec.scheduling.topology is None
    if in_template or assignment.state == "Hold" or opened is None or situation.now - opened > TOUCH_FOR_SECONDS:
        return []
    assigned = frozenset(situation.workers)
    stream = situation.observed.stream.workers if assignment.code is None else ()
    seen = {worker.uid for worker in stream if worker.seen >= assignment.attempt}
    return [
        pod
        for worker, pod in situation.living.items()
        if pod.uid not in seen
        and worker in assigned
        and worker not in situation.reports
        and pod.assignment == assignment
        and pod.container_runs
    ]


def _hosts(situation: Situation) -> tuple[str, ...]:
    """Returns the workers' stable host names, even of workers that were just removed by scaling and aren't rendered."""
    hosts = stable_hosts(situation.identity, situation.spec)
    name = situation.job.name
    return tuple(
        hosts[worker] if worker < len(hosts) else hosts[0].replace(f"{name}-0.", f"{name}-{worker}.", 1)
        for worker in situation.workers
    )


def _uids(situation: Situation) -> tuple[str, ...] | None:
    """Returns the uids of the attempt's pods, or None while the assignment contains none.

    The uid of an absent worker is "", so that any pod can prepare its ranks.
    """
    names_at = names_first_pods_at(situation)
    if situation.status.attempt <= 1 and (names_at is None or names_at > situation.now):
        return None
    uids = zip(situation.workers, situation.status.pod_uids, strict=False)
    return tuple("" if worker in situation.members.absent else uid or "" for worker, uid in uids)


def _processes(situation: Situation) -> tuple[int, ...] | None:
    """Returns each worker's number of ranks, or None if all are equal. Jobs with several groups can't be resized."""
    counts = processes_by_worker(situation.layout)
    if counts is None or any(worker >= len(counts) for worker in situation.workers):
        return None
    return tuple(counts[worker] for worker in situation.workers)


def _is_planned(situation: Situation) -> bool:
    """Returns whether the ranks stop because of a plan, or of a disruption that leaves them time to save."""
    if situation.running or situation.status.phase is None:
        return False
    failure, status = situation.last_failure, situation.status
    if failure is None:
        return True
    if failure.attempt == status.attempt:
        return known_reason(failure.reason).strength is Strength.DISRUPTION
    # If one of the attempt's pods must be replaced, the attempt's ranks never formed a group.
    return failure.attempt > status.attempt or {*status.replacing_pod_uids}.isdisjoint(status.pod_uids)
