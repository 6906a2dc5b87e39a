"""Deletes pods that would block the job forever, because their node or their agent doesn't answer.

A StatefulSet creates a new pod only after the old pod is gone, which a dead kubelet never reports. So a pod is deleted
by force if its grace period ended at least `nodes.lostAfterSeconds` ago and a live read of its node shows that the node
is lost. Processes that still run on this node can't join a later attempt, because the attempt's assignment lacks their
pod's uid. The pod of a worker that trains alone is deleted only after the deadline by which its agent has certainly
stopped the ranks.

A worker whose agent hangs, or that has lost its network, looks healthy to Kubernetes. If its peers report it as silent,
the next attempt waits for it or runs without it, and its pod is replaced after `nodes.lostAfterSeconds`.
"""

from __future__ import annotations

from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.reconciling.decision import DeletePod
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.reconciling.observed.spares import alone_until

# Seconds between two reads of the node of a stuck pod.
RECHECK_SECONDS = 10.0


def delete_stuck_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the forced deletions. Before each deletion, the executor reads the pod and its node."""
    stuck = [pod for pod in situation.pods.values() if situation.now >= _overdue_at(situation, pod)]
    return tuple(
        DeletePod(pod, f"its node {pod.node} doesn't stop it", force=True, lost_after=situation.lost_after)
        for pod in stuck
    )


def delete_silent_pods(situation: Situation) -> tuple[DeletePod, ...]:
    """Returns the deletions of pods whose agents have been silent for too long."""
    pods = [pod for pod in _absent_and_silent(situation) if situation.now >= _given_up_at(situation, pod)]
    if situation.held and situation.now >= _silent_until(situation):
        pods += [pod for pod in situation.pods.values() if pod.uid in situation.unresponsive]
    return tuple(DeletePod(pod, "its agent doesn't answer") for pod in pods)


def next_check_at(situation: Situation) -> float | None:
    """Returns when the next pod counts as stuck or silent, or must be checked again, or None."""
    times = [_overdue_at(situation, pod) for pod in situation.pods.values() if pod.deleting and pod.node]
    times += [_silent_until(situation)] if situation.unresponsive else []
    times += [_given_up_at(situation, pod) for pod in _absent_and_silent(situation)]
    return min((at if at > situation.now else situation.now + RECHECK_SECONDS for at in times), default=None)


def _silent_until(situation: Situation) -> float:
    failure = situation.last_failure
    return situation.after(failure.failed_at if failure is not None else None, situation.lost_after)


def _absent_and_silent(situation: Situation) -> list[PodView]:
    """Returns the pods of absent workers that look healthy, but whose agents don't join the leader."""
    stream, joined = situation.observed.stream, situation.joined_agents
    if not situation.running or not stream.connected:
        return []
    pods = [pod for worker, pod in situation.living.items() if worker in situation.members.absent]
    return [pod for pod in pods if pod.container_runs and pod.uid not in joined and pod.worker != stream.leader]


def _given_up_at(situation: Situation, pod: PodView) -> float:
    """Returns when a pod with a silent agent is replaced, even if new attempts open before that."""
    stream = situation.observed.stream
    lost = (to_seconds(each.failed_at) for each in situation.status.failures if each.worker == pod.worker)
    times = (pod.started_at, stream.since, stream.left.get(pod.worker), next(lost, None))
    # A time in the future comes from another machine's clock.
    silent_since = max((min(at, situation.now) for at in times if at is not None), default=situation.now)
    return silent_since + situation.lost_after


def _overdue_at(situation: Situation, pod: PodView) -> float:
    if not pod.deleting or pod.deadline is None or pod.node is None:
        return float("inf")
    due = pod.deadline + situation.lost_after
    trains_until = alone_until(situation) if pod.worker in situation.members.present else None
    return due if trains_until is None else max(due, trains_until)
