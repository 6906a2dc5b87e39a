"""A spare takes the place of a missing worker whose pod isn't lost as far as Kubernetes knows.

When an attempt fails because of a lost pod, `attempts` puts a spare in its place. This policy covers two other cases: a
pod has had no node for `nodes.lostAfterSeconds`, or an agent doesn't join the leader although its container seems to
run. In the second case, the node or its network has failed, and Kubernetes needs a minute and a half to end the node's
pods.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.spares import can_open, desired_workers, next_workers
from trainmaster_operator.reconciling.policies.attempts import end_attempt, held_since
from trainmaster_operator.reconciling.policies.attribution import lost
from trainmaster_operator.reconciling.policies.backoff import restart_at
from trainmaster_operator.reconciling.policies.opening import open_attempt
from trainmaster_operator.reconciling.transition import Transition

# Seconds within which an agent joins the leader after its container started. The agent tries ten times a second.
JOINED_WITHIN = 5.0


def stand_in(situation: Situation) -> Transition | None:
    """Opens the next attempt with spares in the places of missing workers."""
    if not (situation.has_spares and situation.starting) or situation.stops_as_planned or situation.is_cause_open:
        return None
    return _for_silent(situation) or _for_nowhere(situation)


def stands_in_at(situation: Situation) -> float | None:
    """Returns when a missing worker is replaced by a spare."""
    if not (situation.has_spares and situation.starting):
        return None
    times = [_given_up_at(situation)]
    if situation.running:
        times += [
            situation.assigned_since(pod) + JOINED_WITHIN
            for worker, pod in situation.pods.items()
            if worker in situation.workers and pod.worker_container is not None
        ]
    return min((at for at in times if at > situation.now), default=None)


def _for_silent(situation: Situation) -> Transition | None:
    """Ends an attempt that a worker's agent hasn't joined, if a spare with a connected agent can replace the worker."""
    stream, joined = situation.observed.stream, situation.joined_agents
    if not situation.running or not stream.connected or stream.leader not in situation.workers:
        return None
    late = (worker for worker in situation.workers if situation.unreported_seconds(worker) >= JOINED_WITHIN)
    silent = [pod for worker in late if worker != stream.leader and (pod := situation.pods[worker]).uid not in joined]
    uids = frozenset(pod.uid for pod in silent)
    unjoined = frozenset(pod.uid for pod in situation.pods.values()) - joined
    workers = next_workers(situation, without=uids | unjoined)
    if not silent or not can_open(situation, workers, without=uids):
        return None
    pod, attempt = silent[0], situation.status.attempt
    message = (
        f"pod {pod.name} of worker {pod.worker} on node {pod.node} doesn't answer: its agent hasn't joined "
        f"attempt {attempt}, and Kubernetes doesn't report its end"
    )
    return end_attempt(situation, lost(situation, attempt, pod, "NodeLost", message), going=uids)


def _for_nowhere(situation: Situation) -> Transition | None:
    """Opens the next attempt without workers whose pods have lacked a node for too long."""
    if situation.now < max(_given_up_at(situation), restart_at(situation)):
        return None
    desired = desired_workers(situation)
    nowhere = frozenset(pod.uid for worker, pod in situation.living.items() if worker in desired and pod.node is None)
    workers = next_workers(situation, without=nowhere)
    if set(workers) <= {*situation.workers} or not can_open(situation, workers, without=nowhere):
        return None
    return open_attempt(situation, workers, "SpareStandsIn")


def _given_up_at(situation: Situation) -> float:
    return situation.after(held_since(situation), situation.lost_after)
