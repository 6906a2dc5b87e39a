"""The desired assignment goes to the pods that don't have it; those whose agents haven't seen it are touched.

The assignment follows from the status alone, so an operator that comes back publishes the same. An annotation can be
late in a pod's file (measured: 5 of 8 pods under churn had not shown it after a minute), so pods whose agents haven't
seen the attempt are touched after TOUCH_SECONDS, and then ever more rarely.
"""

from __future__ import annotations

from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.reconciling.decision import Assign, PodRef, Touch
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import PodView, is_alive
from trainmaster_operator.reconciling.policies.opening import is_unordered
from trainmaster_operator.rendering import first_assignment, processes_by_worker, rank_grace_seconds, stable_hosts
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.ports import master_port

# Ranks of a broken attempt get this between SIGTERM and SIGKILL: the one at fault often closes its sockets before it
# has exited, and its exit code is what matters.
BROKEN_GRACE_SECONDS = 0.4
TOUCH_SECONDS = 1.25
# Seconds for which a worker has finished before the others count as training on without it.
FINISHED_SECONDS = 2.0
# An agent that hasn't seen its attempt after this long has another problem than a late file.
TOUCH_FOR_SECONDS = 60.0


def desired_assignment(situation: Situation) -> Assignment:
    """Returns the current attempt as the status has it; attempt 1 for a job that has none yet."""
    status = situation.status
    attempt = max(status.attempt, 1)
    full = first_assignment(situation.identity, situation.spec)
    if is_unordered(situation):
        # The ranks' order isn't known, and the pods need something to wait for.
        return full._replace(attempt=0, state="Hold")
    runs = status.phase is None or situation.running
    return full._replace(
        attempt=attempt,
        workers=situation.workers,
        hosts=_hosts(situation),
        uids=_uids(situation) if attempt > 1 or _names_first_pods(situation) else None,
        port=master_port(situation.job.uid, attempt),
        processes=_processes(situation),
        # What the attempt was opened with; a job of which that isn't known has none yet.
        code=situation.code_digest and (status.code_digest or situation.code_digest),
        continues=status.continues,
        absent=() if status.continues is None else situation.members.absent_ranks,
        master_place=situation.workers.index(situation.members.present[0]),
        state="Run" if runs else "Hold",
        grace_seconds=float(rank_grace_seconds(situation.spec)) if _is_planned(situation) else BROKEN_GRACE_SECONDS,
    )


def names_first_pods_at(situation: Situation) -> float | None:
    """Returns when the assignment of attempt 1 names its pods; None: it doesn't.

    It is in the template before its pods exist, so it names none at first. Once a worker has finished and others train
    on, the pod that comes in its place must not begin the attempt again. Most workers finish together: for them a
    write would be for nothing.
    """
    if situation.status.attempt != 1 or not situation.running or len(situation.worker_uids) < len(situation.workers):
        return None
    reported = [min(situation.reports[worker].at, situation.now) for worker in situation.finished]
    return min(reported) + FINISHED_SECONDS if reported else None


def _names_first_pods(situation: Situation) -> bool:
    at = names_first_pods_at(situation)
    return at is not None and at <= situation.now


def assign(situation: Situation, assignment: Assignment) -> Assign | None:
    """Returns the assignment for every living pod whose annotation differs; None where none does.

    Not one that is about to be replaced: nobody reads it, and the kubelet's answer would get in the deletion's way.
    """
    pods = [
        pod
        for pod in situation.pods.values()
        if is_alive(pod)
        and pod.uid not in situation.crash_looping | situation.displaced
        and not _has(situation, pod, assignment)
        and not is_ahead(pod.assignment, assignment)
    ]
    return Assign(assignment, _references(pods)) if pods else None


def _has(situation: Situation, pod: PodView, assignment: Assignment) -> bool:
    """Returns whether a pod has the assignment, or attempt 1 as it was before it named pods of which this is one."""
    if assignment.attempt == 1 and pod.uid in situation.status.pod_uids:
        return pod.assignment is not None and pod.assignment._replace(uids=assignment.uids) == assignment
    return pod.assignment == assignment


def is_ahead(present: Assignment | None, desired: Assignment) -> bool:
    """Returns whether an annotation is later than ours would be: our status is behind another operator's.

    Within an attempt Hold is always later than Run: an attempt that was held never goes on.
    """
    if present is None or present.attempt < desired.attempt:
        return False
    return present.attempt > desired.attempt or (present.state == "Hold" and desired.state == "Run")


def touch(situation: Situation, assignment: Assignment) -> Touch | None:
    """Returns the pods to wake whose agents should have seen the assignment by now."""
    due = [pod for pod in _unseen(situation, assignment) if touch_at(situation, pod) <= situation.now]
    return Touch(_references(due)) if due else None


def next_touch_at(situation: Situation, assignment: Assignment) -> float | None:
    """Returns when the next pod is to be touched."""
    times = (touch_at(situation, pod) for pod in _unseen(situation, assignment))
    return min((at for at in times if at > situation.now), default=None)


def touch_at(situation: Situation, pod: PodView) -> float:
    """Returns when a pod is touched next: the waits double, so the touches' own events never make a storm."""
    base = situation.assigned_since(pod)
    if pod.touched_at is None or not base <= pod.touched_at <= situation.now:
        return base + TOUCH_SECONDS
    return pod.touched_at + max(TOUCH_SECONDS, pod.touched_at - base)


def _unseen(situation: Situation, assignment: Assignment) -> list[PodView]:
    """Returns the pods with the right annotation whose agents don't show that they know of the attempt.

    Attempt 1 is written into the file before the agent starts. An agent that runs the user's code knows of an attempt
    when it has that code too, which is in such a file as well: then it has reported. A hold has its attempt's number,
    so it can't be recognized.
    """
    opened = to_seconds(situation.status.attempt_start_time)
    in_template = assignment.attempt == 1 and situation.spec.scheduling.topology is None
    if in_template or assignment.state == "Hold" or opened is None:
        return []
    if situation.now - opened > TOUCH_FOR_SECONDS:
        return []
    assigned = frozenset(situation.workers)
    stream = situation.observed.stream.workers if assignment.code is None else ()
    seen = {worker.uid for worker in stream if worker.seen >= assignment.attempt}
    return [
        pod
        for worker, pod in situation.pods.items()
        if is_alive(pod)
        and pod.uid not in seen
        and worker in assigned
        and worker not in situation.reports
        and pod.assignment == assignment
        and pod.worker_container is not None
        and pod.worker_container.state == "running"
    ]


def _hosts(situation: Situation) -> tuple[str, ...]:
    """Returns the workers' stable names. The rendering no longer has that of one that was scaled away a moment ago."""
    hosts = stable_hosts(situation.identity, situation.spec)
    name = situation.job.name
    return tuple(
        hosts[worker] if worker < len(hosts) else hosts[0].replace(f"{name}-0.", f"{name}-{worker}.", 1)
        for worker in situation.workers
    )


def _uids(situation: Situation) -> tuple[str, ...]:
    """Returns the pods that the attempt names: where all ranks of a worker are absent, whichever comes may prepare
    them."""
    uids = zip(situation.workers, situation.status.pod_uids, strict=False)
    return tuple("" if worker in situation.members.absent else uid or "" for worker, uid in uids)


def _processes(situation: Situation) -> tuple[int, ...] | None:
    """Returns the ranks of each worker; only jobs of several groups differ in it, and those aren't resized."""
    counts = processes_by_worker(situation.layout)
    if counts is None or any(worker >= len(counts) for worker in situation.workers):
        return None
    return tuple(counts[worker] for worker in situation.workers)


def _is_planned(situation: Situation) -> bool:
    """Returns whether the ranks are stopped by a plan (or a disruption that gives them time), not because one is
    broken."""
    if situation.running or situation.status.phase is None:
        return False
    failure = situation.last_failure
    broken = (
        failure is not None
        and failure.attempt == situation.status.attempt
        and known_reason(failure.reason).strength is not Strength.DISRUPTION
    )
    # An attempt that opened with a pod that has to be replaced never met.
    unmet = (
        failure is not None
        and failure.attempt < situation.status.attempt
        and not frozenset(situation.status.replacing_pod_uids).isdisjoint(situation.status.pod_uids)
    )
    return not broken and not unmet


def _references(pods: list[PodView]) -> tuple[PodRef, ...]:
    return tuple(PodRef(pod.name, pod.uid) for pod in sorted(pods, key=lambda pod: pod.worker))
