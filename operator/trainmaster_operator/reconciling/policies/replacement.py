"""Pods whose container the kubelet's crash back-off would keep waiting are replaced (`crash_loop_backoff` finds them).

It belongs to the restart that is under way: the attempt is held, `status.replacingPodUIDs` names the pods, they are
deleted, and the one next attempt opens when the new ones are there. It costs neither a restart nor a disruption.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.decision import DeletePod, PodRef
from trainmaster_operator.reconciling.observed.lineup import desired_workers
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.policies import crash_loop_backoff
from trainmaster_operator.reconciling.policies.attempts import restart_at
from trainmaster_operator.reconciling.transition import StatusChange, Transition


def replace(situation: Situation) -> Transition | None:
    """Replaces the pod of a worker whose exit came to light after its attempt was answered.

    While the next one isn't open, the pod is replaced with the others. Where it is open already, with that pod in it,
    its ranks wait for it in vain: it is held, and another one opens in its place.
    """
    status, failure = situation.status, situation.last_failure
    if (
        failure is None
        or failure.provisional
        or not crash_loop_backoff.is_limited(failure.reason, counted=failure.counted)
    ):
        return None
    if status.phase == "Restarting" and not (status.resizing or status.stopping or status.scheduling_backoff):
        ended, workers = status.attempt, desired_workers(situation)
    elif status.phase in ("Pending", "Starting"):
        ended, workers = status.attempt - 1, situation.workers
    else:
        return None
    found = crash_loop_backoff.outlasting(situation, workers, ended, restart_at(situation) or 0.0)
    late = [pod for pod in found if pod.uid not in status.replacing_pod_uids]
    if not late:
        return None
    message = f"attempt {ended} ended; {crash_loop_backoff.sentence(late)}"
    change = StatusChange(replacing_pod_uids=[*status.replacing_pod_uids, *(pod.uid for pod in late)])
    return Transition("Restarting", "ReplacingPods", message, change)


def replace_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the deletions of the pods whose containers still wait, and of those whose place a spare has taken; their
    StatefulSet makes new ones."""
    reasons = {
        **dict.fromkeys(situation.displaced, "a spare has taken its place"),
        **dict.fromkeys(situation.crash_looping, "the kubelet's crash back-off would keep its container waiting"),
    }
    return tuple(
        DeletePod(PodRef(pod.name, pod.uid), reasons[pod.uid]) for pod in situation.pods.values() if pod.uid in reasons
    )
