"""Pods that can't go because their node doesn't answer: Kubernetes keeps them, and their names, for ever.

A StatefulSet's pod is only replaced when the old one is gone, and a kubelet that doesn't answer never says so. So a pod
whose grace period has been over for `nodes.lostAfterSeconds` is deleted by force, if a live look at its node shows that
it is lost. What may still run there can't hurt: its uid isn't in any later assignment.
"""

from __future__ import annotations

from trainmaster.reconciling.decision import DeletePod, PodRef
from trainmaster.reconciling.situation import Situation
from trainmaster.reconciling.snapshot import PodView

# Between two looks at the nodes of pods that stay stuck.
LOOK_AGAIN = 10.0


def delete_stuck_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Force deletions to be tried; the executor looks at each pod and node first."""
    return tuple(
        DeletePod(
            PodRef(pod.name, pod.uid),
            f"its node {pod.node} doesn't end it",
            force=True,
            lost_after=situation.spec.failure_policy.nodes.lost_after_seconds,
        )
        for pod in situation.pods.values()
        if situation.now >= _overdue_at(situation, pod)
    )


def next_look_at(situation: Situation) -> float | None:
    """When a pod that is on its way out counts as stuck, or is looked at again."""
    times = [_overdue_at(situation, pod) for pod in situation.pods.values() if pod.deleting and pod.node]
    return min((at if at > situation.now else situation.now + LOOK_AGAIN for at in times), default=None)


def _overdue_at(situation: Situation, pod: PodView) -> float:
    if not pod.deleting or pod.deadline is None or pod.node is None:
        return float("inf")
    return pod.deadline + situation.spec.failure_policy.nodes.lost_after_seconds
