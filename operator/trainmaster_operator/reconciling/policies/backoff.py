"""Back-off decides how long a restart waits, and replaces pods that the kubelet's own back-off would delay longer.

**Restarts.** `delay` computes the wait of a counted restart from `failurePolicy.backoff`. `restart_at` returns when the
next attempt may open.

**The kubelet's crash back-off** delays some containers for longer than a new pod takes. The kubelet restarts a
container at once the first time, then 10, 20, 40 … 300 s after its end (kubernetes: pkg/kubelet/kuberuntime,
doBackOff). The kubelet counts the restarts of each pod uid, and starts from zero after a run of ten minutes.

So `replace` replaces such pods during a restart, and counts neither another restart nor a disruption. The attempt is
held, the pods are deleted, and the next attempt opens when the new pods exist. This applies in two cases: an agent
exited to report an attempt that is over, or an agent was killed, so that its container ended without a report after it
had worked. If a container never reported and hadn't run for WORKED_SECONDS, its image or command may be wrong, so the
back-off stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from trainmaster_operator.api.printable import listed
from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import Failure, JobSpec
from trainmaster_operator.reconciling.decision import DeletePod
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import START_FAILURES, PodView
from trainmaster_operator.reconciling.observed.spares import desired_workers
from trainmaster_operator.reconciling.transition import StatusChange, Transition
from trainmaster_operator.rendering import rank_grace_seconds

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
# After a container has run for this many seconds, the kubelet restarts it at once.
FORGIVEN_AFTER = 600.0
# After a container has run for this many seconds, it counts as working, even if no stream shows it.
WORKED_SECONDS = 10.0
# Messages such as `back-off 1m20s restarting failed container=worker pod=...`, where the wait is a Go duration.
_MESSAGE = re.compile(r"back-off (?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)? restarting", re.IGNORECASE)


def outlasting(situation: Situation, workers: Iterable[int], ended: int, begins: float) -> tuple[PodView, ...]:
    """Returns the pods of `workers` whose containers would restart later than a new pod would be ready.

    `settings.replace_after_seconds` is the time that a new pod takes. `ended` is the newest attempt that is over.
    Reports on later attempts don't count. `begins` is the earliest time at which the next attempt may open.
    """
    checkpoint, patience = situation.spec.checkpoint, situation.settings.replace_after_seconds
    if patience is None or (checkpoint is not None and checkpoint.volume.empty_dir):
        # An emptyDir with checkpoints would be lost with the pod.
        return ()
    overtaken = max(situation.now + patience, begins)
    pods = [pod for worker in workers if (pod := situation.living.get(worker)) is not None and not pod.container_runs]
    return tuple(
        pod
        for pod in pods
        if (_has_reported(pod, ended) or _was_killed_at_work(situation, pod))
        and _starts_at(pod, situation.now) > overtaken
    )


def is_limited(reason: str, *, counted: bool) -> bool:
    """Returns whether failures of this kind can't repeat forever, because they count or are disruptions.

    A failure that a rule ignores could repeat forever, so the kubelet's back-off stays.
    """
    return counted or known_reason(reason).strength is Strength.DISRUPTION


def sentence(pods: Iterable[PodView]) -> str:
    """Returns the part of a message that names the replaced pods."""
    return f"replacing {listed([pod.name for pod in pods])}, which the kubelet's crash back-off would keep waiting"


def _has_reported(pod: PodView, ended: int) -> bool:
    """Returns whether the pod's container waits because its agent exited to report an attempt that is over."""
    report = pod.latest_end.report if pod.latest_end is not None else None
    return report is not None and report.attempt <= ended and report.uid in ("", pod.uid)


def _was_killed_at_work(situation: Situation, pod: PodView) -> bool:
    """Returns whether the pod's container waits because it had worked and then ended without a report.

    Returns False if no other worker runs, because the memory of this pod may be the only copy of the job's state.
    """
    end = pod.latest_end
    if end is None or end.report is not None or end.reason in START_FAILURES:
        return False
    # Spares have no state in memory.
    others = (other for worker, other in situation.living.items() if worker in situation.workers)
    if not any(other.container_runs for other in others if other.uid != pod.uid):
        return False
    ran = end.started_at is not None and (end.finished_at or situation.now) - end.started_at >= WORKED_SECONDS
    return ran or any(report.uid == pod.uid for report in situation.observed.reports)


def _starts_at(pod: PodView, now: float) -> float:
    """Returns when the kubelet restarts a container, according to its message, or else to the number of restarts.

    The kubelet shows CrashLoopBackOff only when it next syncs the pod, which is often when the wait is almost over
    (recorded on Kubernetes 1.36, local/tests/data/kubernetes-pods.jsonl).
    """
    container, end = pod.worker_container, pod.latest_end
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
    """Replaces a worker's pod if its exit is observed only after the response to the end of its attempt.

    If the next attempt isn't open yet, the pod is replaced together with the others. If the next attempt is open and
    contains the pod, the other ranks wait in vain. So that attempt is held and another one opens.
    """
    status, failure = situation.status, situation.last_failure
    if failure is None or failure.provisional or not is_limited(failure.reason, counted=failure.counted):
        return None
    if situation.held and not situation.stops_as_planned:
        ended, workers = status.attempt, desired_workers(situation)
    elif status.phase in ("Pending", "Starting"):
        ended, workers = status.attempt - 1, situation.workers
    else:
        return None
    found = outlasting(situation, workers, ended, restart_at(situation))
    late = [pod for pod in found if pod.uid not in status.replacing_pod_uids]
    if not late:
        return None
    message = f"attempt {ended} ended; {sentence(late)}"
    change = StatusChange(replacing_pod_uids=[*status.replacing_pod_uids, *(pod.uid for pod in late)])
    return Transition("Restarting", "ReplacingPods", message, change)


def replace_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the deletions of pods whose containers still wait, and of pods that spares have replaced.

    The StatefulSet creates new pods.
    """
    reasons = {
        **dict.fromkeys(situation.displaced, "a spare has taken its place"),
        **dict.fromkeys(situation.crash_looping, "the kubelet's crash back-off would keep its container waiting"),
    }
    return tuple(DeletePod(pod, reasons[pod.uid]) for pod in situation.pods.values() if pod.uid in reasons)


# Seconds until the watch has confirmed the cause (measured: 1 to 2 s).
SETTLE_SECONDS = 2.0
# Seconds until a silent node counts as unreachable (kube-controller-manager: node-monitor-grace-period, 50 s).
NODE_MONITOR_SECONDS = 60.0
# Longest wait in seconds that other policies request.
LONGEST_OTHER_WAIT = 600.0


def restart_at(situation: Situation) -> float:
    """Returns when a waiting restart may begin, or 0. A clock that was set back doesn't lengthen the wait."""
    failure = situation.last_failure
    if failure is not None and failure.provisional:
        return situation.after(failure.failed_at, settling_seconds(situation, failure.attempt))
    at = to_seconds(situation.status.next_attempt_time) or 0.0
    waits = (SETTLE_SECONDS, PAUSE_AFTER_SHORT_LIFE, LONGEST_OTHER_WAIT, float(rank_grace_seconds(situation.spec)))
    longest = max(situation.spec.failure_policy.backoff.max_seconds, *waits)
    return at if at - situation.now <= longest else situation.now


def settling_seconds(situation: Situation, attempt: int) -> float:
    """Returns the seconds to wait for the cause before a bystander's report ends the job."""
    return NODE_MONITOR_SECONDS + situation.lost_after if silent(situation, attempt) else SETTLE_SECONDS


def silent(situation: Situation, attempt: int) -> list[int]:
    """Returns the workers that haven't reported the end of the attempt."""
    reported = {worker for worker, report in situation.reports_of(attempt).items() if report.ended}
    return sorted(set(situation.worker_uids) - reported)


# Ignored failures could repeat forever, so if an attempt was shorter than this many seconds, the next attempt waits.
SHORT_LIFE = 10.0
PAUSE_AFTER_SHORT_LIFE = 5.0


def delay(spec: JobSpec, answer: Literal["Restart", "Ignore"], *, cause: Failure, restarts: int, lived: float) -> float:
    """Returns the seconds to wait before the next attempt. `restarts` includes this restart.

    The wait of counted restarts follows `failurePolicy.backoff`. If an agent was stopped, they wait at least until the
    watch would show that its pod is deleted, because the agent's stream can be faster. Uncounted restarts begin at
    once, unless the attempt was short and a rule ignores its failure.
    """
    if answer == "Ignore":
        ignored = known_reason(cause.reason).strength is not Strength.DISRUPTION
        return PAUSE_AFTER_SHORT_LIFE if ignored and lived < SHORT_LIFE else 0.0
    backoff = spec.failure_policy.backoff
    # The exponent is limited because 2.0 ** 1024 overflows. No wait exceeds maxSeconds anyway.
    exponent = min(max(restarts - 1, 0), 64)
    wait = min(backoff.initial_seconds * min(backoff.factor, 1e4) ** exponent, backoff.max_seconds)
    return max(wait, SETTLE_SECONDS) if cause.reason == "Stopped" else wait
