"""A spare takes the place of a worker that doesn't come, where the pod isn't lost as far as Kubernetes knows.

A lost pod's place is taken when its attempt fails (`attempts`). Here is the rest: a worker whose pod has had no node
for `nodes.lostAfterSeconds`, so that the group would wait for ever, and one whose agent doesn't join the leader though
its container is said to run: on a node that is gone that is so for a minute and a half, until Kubernetes ends its pods.
"""

from __future__ import annotations

from trainmaster.reconciling.observed.situation import Situation, is_alive
from trainmaster.reconciling.policies.attempts import held_since, open_attempt, restart_at
from trainmaster.reconciling.times import since
from trainmaster.reconciling.transition import Transition

# Seconds after which an agent whose container runs has joined the leader: it tries ten times a second, and its start
# takes a fraction of one.
JOINED_WITHIN = 5.0


def stand_in(situation: Situation) -> Transition | None:
    """Opens the next attempt with spares in the places of workers that don't come."""
    status, failure = situation.status, situation.last_failure
    if not situation.has_spares or status.phase not in ("Pending", "Starting", "Restarting"):
        return None
    if status.resizing or status.scheduling_backoff or (failure is not None and failure.provisional):
        return None
    silent = _silent(situation)
    if situation.now < (restart_at(situation) or 0.0) or (not silent and situation.now < _given_up_at(situation)):
        return None
    absent = _nowhere(situation) | silent
    workers = situation.lineup(without=absent | (_unjoined(situation) if silent else frozenset()))
    if set(workers) <= {*situation.workers}:
        return None
    return open_attempt(situation, workers, "SpareStandsIn", silent) if situation.can_open(workers, absent) else None


def stands_in_at(situation: Situation) -> float | None:
    """Returns when a worker that doesn't come is given up."""
    if not situation.has_spares or situation.status.phase not in ("Pending", "Starting", "Restarting"):
        return None
    times = [_given_up_at(situation)]
    if situation.running:
        times += [
            situation.assigned_since(pod) + JOINED_WITHIN
            for worker, pod in situation.pods.items()
            if worker in situation.workers and pod.worker_container is not None
        ]
    return min((at for at in times if at > situation.now), default=None)


def _given_up_at(situation: Situation) -> float:
    waited = since(situation.now, held_since(situation))
    return situation.now - waited + situation.spec.failure_policy.nodes.lost_after_seconds


def _nowhere(situation: Situation) -> frozenset[str]:
    """Returns the pods of workers that have had no node for too long."""
    if situation.now < _given_up_at(situation):
        return frozenset()
    pods = (situation.pods.get(worker) for worker in situation.desired_workers)
    return frozenset(pod.uid for pod in pods if pod is not None and is_alive(pod) and pod.node is None)


def _silent(situation: Situation) -> frozenset[str]:
    """Returns the pods of workers whose agents should have joined the leader by now."""
    stream = situation.observed.stream
    if not situation.running or not stream.connected or stream.leader not in situation.workers:
        return frozenset()
    waited = (worker for worker in situation.workers if situation.unreported_seconds(worker) >= JOINED_WITHIN)
    return frozenset(situation.pods[worker].uid for worker in waited if worker != stream.leader) & _unjoined(situation)


def _unjoined(situation: Situation) -> frozenset[str]:
    """Returns the pods whose agents aren't connected with the leader."""
    connected = {agent.uid for agent in situation.observed.stream.workers if agent.connected}
    return frozenset(pod.uid for pod in situation.pods.values()) - connected
