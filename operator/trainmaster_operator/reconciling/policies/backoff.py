"""Back-off decides how long a restart waits, and replaces pods that the kubelet's own back-off would delay longer.

**A restart** that counts waits by `failurePolicy.backoff` (`delay`); `restart_at` is when the next attempt may open.

**The kubelet's crash back-off** delays some containers for longer than a new pod takes. Without a stream, every failure
is reported by a container's exit. The kubelet restarts a container at once the first time, then 10, 20, 40 … 300 s
after its end (kubernetes: pkg/kubelet/kuberuntime, doBackOff), and forgets that after ten minutes of running. It counts
by the pod's uid and the container, so a new pod starts from zero.

So `replace` replaces pods within a restart: the attempt is held, `status.replacingPodUIDs` lists the pods, they are
deleted, and the next attempt opens when the new ones exist. That costs neither a restart nor a disruption. It applies
to exits that report an attempt that is over, and to ends without a report of containers that had worked (the agent was
killed). A container that never reported and hadn't run for WORKED_SECONDS fails by itself, as an image or a command
may; that back-off stays. A new pod has to show again that it works, and each such end costs a restart, so the budget
limits them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from trainmaster_operator.api.printable import listed
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import Failure, JobSpec
from trainmaster_operator.reconciling.decision import DeletePod, PodRef
from trainmaster_operator.reconciling.observed.lineup import desired_workers
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import (
    START_FAILURES,
    ContainerView,
    PodView,
    is_alive,
    latest_end,
)
from trainmaster_operator.reconciling.transition import StatusChange, Transition
from trainmaster_operator.rendering import rank_grace_seconds

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
# After running this long, a container restarts at once.
FORGIVEN_AFTER = 600.0
# After running this long, a container had worked, even if no stream shows it.
WORKED_SECONDS = 10.0
# `back-off 1m20s restarting failed container=worker pod=...`: Go's durations.
_MESSAGE = re.compile(r"back-off (?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)? restarting", re.IGNORECASE)


def outlasting(situation: Situation, workers: Iterable[int], ended: int, begins: float) -> tuple[PodView, ...]:
    """Returns the pods of `workers` that new pods would overtake (`settings.replace_after_seconds`).

    `ended` is the newest attempt that is over: only reports up to it count. `begins`: the earliest time at which the
    next attempt may open.
    """
    checkpoint, patience = situation.spec.checkpoint, situation.settings.replace_after_seconds
    if patience is None or (checkpoint is not None and checkpoint.volume.empty_dir):
        # Such a volume would be lost with the pod.
        return ()
    overtaken = max(situation.now + patience, begins)
    pods = (situation.pods.get(worker) for worker in workers)
    return tuple(
        pod
        for pod in pods
        if pod is not None
        and (_has_reported(pod, ended) or _was_killed_at_work(situation, pod))
        and _starts_at(pod.worker_container, situation.now) > overtaken
    )


def is_limited(reason: str, *, counted: bool) -> bool:
    """Returns whether such failures can't repeat forever: they count, or they aren't the job's fault.

    Failures that a rule ignores could repeat forever, so the kubelet's back-off stays for them.
    """
    return counted or known_reason(reason).strength is Strength.DISRUPTION


def sentence(pods: Iterable[PodView]) -> str:
    """Returns the part of a message that lists the pods that are replaced."""
    return f"replacing {listed([pod.name for pod in pods])}, which the kubelet's crash back-off would keep waiting"


def _has_reported(pod: PodView, ended: int) -> bool:
    """Returns whether the pod's container waits because its agent exited to report an attempt that is over."""
    container = pod.worker_container
    if container is None or container.state == "running" or not is_alive(pod):
        return False
    end = latest_end(container)
    report = end.report if end is not None else None
    return report is not None and report.attempt <= ended and report.uid in ("", pod.uid)


def _was_killed_at_work(situation: Situation, pod: PodView) -> bool:
    """Returns whether the pod's container waits because it ended without a report after it had worked.

    False if no other worker runs, because the memory of this pod may be the only copy of the job's state.
    """
    container = pod.worker_container
    end = latest_end(container)
    if container is None or container.state == "running" or not is_alive(pod):
        return False
    if end is None or end.report is not None or end.reason in START_FAILURES:
        return False
    # Spares have no state in memory.
    others = (other for worker, other in situation.pods.items() if worker in situation.workers)
    if not any(_runs(other) for other in others if other.uid != pod.uid):
        return False
    ran = end.started_at is not None and (end.finished_at or situation.now) - end.started_at >= WORKED_SECONDS
    return ran or any(report.uid == pod.uid for report in situation.observed.reports)


def _runs(pod: PodView) -> bool:
    return is_alive(pod) and pod.container_runs


def _starts_at(container: ContainerView | None, now: float) -> float:
    """Returns when the kubelet restarts a container, by its message or else by its rules.

    It shows CrashLoopBackOff only at its next sync of the pod, often when the wait is almost over (recorded on
    Kubernetes 1.36, local/tests/data/kubernetes-pods.jsonl), so until then the number of restarts has to suffice.
    """
    end = latest_end(container)
    if container is None or end is None or container.restarts == 0:
        return now
    finished = min(end.finished_at if end.finished_at is not None else now, now)
    if container.state == "waiting":
        if container.reason != "CrashLoopBackOff":
            return now
        shown = _MESSAGE.search(container.message)
        if shown is not None:
            hours, minutes, seconds = (float(part or 0) for part in shown.groups())
            return finished + 3600 * hours + 60 * minutes + seconds
    if end.started_at is not None and finished - end.started_at >= FORGIVEN_AFTER:
        return now
    return finished + min(FIRST_SECONDS * 2.0 ** min(container.restarts - 1, 10), LONGEST_SECONDS)


def replace(situation: Situation) -> Transition | None:
    """Replaces the pod of a worker whose exit appears after its attempt was answered.

    If the next attempt isn't open yet, the pod is replaced with the others. If it is open with that pod, its ranks wait
    in vain, so it is held and another one opens.
    """
    status, failure = situation.status, situation.last_failure
    if failure is None or failure.provisional or not is_limited(failure.reason, counted=failure.counted):
        return None
    if status.phase == "Restarting" and not (status.resizing or status.stopping or status.scheduling_backoff):
        ended, workers = status.attempt, desired_workers(situation)
    elif status.phase in ("Pending", "Starting"):
        ended, workers = status.attempt - 1, situation.workers
    else:
        return None
    found = outlasting(situation, workers, ended, restart_at(situation) or 0.0)
    late = [pod for pod in found if pod.uid not in status.replacing_pod_uids]
    if not late:
        return None
    message = f"attempt {ended} ended; {sentence(late)}"
    change = StatusChange(replacing_pod_uids=[*status.replacing_pod_uids, *(pod.uid for pod in late)])
    return Transition("Restarting", "ReplacingPods", message, change)


def replace_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the deletions of pods whose containers still wait, and of pods that spares have replaced.

    Their StatefulSet creates new ones.
    """
    reasons = {
        **dict.fromkeys(situation.displaced, "a spare has taken its place"),
        **dict.fromkeys(situation.crash_looping, "the kubelet's crash back-off would keep its container waiting"),
    }
    return tuple(
        DeletePod(PodRef(pod.name, pod.uid), reasons[pod.uid]) for pod in situation.pods.values() if pod.uid in reasons
    )


# By then the watch has confirmed the cause (measured: 1 to 2 s).
SETTLE_SECONDS = 2.0
# A silent node counts as unreachable after this (kube-controller-manager: node-monitor-grace-period, 50 s).
NODE_MONITOR_SECONDS = 60.0
# Longest wait that other policies request.
LONGEST_OTHER_WAIT = 600.0


def restart_at(situation: Situation) -> float | None:
    """Returns when a waiting restart may begin. If a clock was set back, no job waits longer than intended."""
    failure = situation.last_failure
    if failure is not None and failure.provisional:
        wait = settling_seconds(situation, failure.attempt)
        return min((to_seconds(failure.failed_at) or situation.now) + wait, situation.now + wait)
    at = to_seconds(situation.status.next_attempt_time)
    if at is None:
        return None
    waits = (SETTLE_SECONDS, PAUSE_AFTER_SHORT_LIFE, LONGEST_OTHER_WAIT, float(rank_grace_seconds(situation.spec)))
    longest = max(situation.spec.failure_policy.backoff.max_seconds, *waits)
    return at if at - situation.now <= longest else situation.now


def settling_seconds(situation: Situation, attempt: int) -> float:
    """Returns how long a bystander's report alone doesn't end the job: lost nodes are detected late."""
    if not silent(situation, attempt):
        return SETTLE_SECONDS
    return NODE_MONITOR_SECONDS + situation.spec.failure_policy.nodes.lost_after_seconds


def silent(situation: Situation, attempt: int) -> list[int]:
    """Returns the workers that haven't reported the end of the attempt."""
    reported = {worker for worker, report in situation.reports_of(attempt).items() if report.ended}
    return sorted(set(situation.worker_uids) - reported)


# A restart without cost could repeat forever, so the next attempt waits if one was shorter than this.
SHORT_LIFE = 10.0
PAUSE_AFTER_SHORT_LIFE = 5.0


def delay(spec: JobSpec, answer: Literal["Restart", "Ignore"], *, cause: Failure, restarts: int, lived: float) -> float:
    """Returns the seconds to wait before the next attempt; `restarts` includes that one.

    Counted restarts wait by `failurePolicy.backoff`. Others begin at once, except after a short attempt that a rule
    ignores.
    """
    if answer == "Ignore":
        ignored = known_reason(cause.reason).strength is not Strength.DISRUPTION
        return PAUSE_AFTER_SHORT_LIFE if ignored and lived < SHORT_LIFE else 0.0
    backoff = spec.failure_policy.backoff
    # 2.0 ** 1024 overflows; nothing waits longer than maxSeconds anyway.
    exponent = min(max(restarts - 1, 0), 64)
    return min(backoff.initial_seconds * min(backoff.factor, 1e4) ** exponent, backoff.max_seconds)
