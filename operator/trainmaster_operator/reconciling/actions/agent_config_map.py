"""A pod that has a node and gets no container may wait for the ConfigMap with its agent, which somebody has deleted.

The kubelet tries again by itself, ever more rarely. So the ConfigMap is looked for, and made again where it is missing.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.actions.children import job_agent
from trainmaster_operator.reconciling.decision import EnsureAgent
from trainmaster_operator.reconciling.observed.situation import Situation, is_alive

# Seconds from a pod's node until its container should be there. With its image on the node it takes less than one.
CONTAINER_SECONDS = 3.0
# Seconds between two looks, while an image is pulled.
AGAIN_SECONDS = 10.0


def ensure_agent(situation: Situation) -> EnsureAgent | None:
    """Returns the look for the job's ConfigMap that is due."""
    agent, waits = job_agent(situation), _waits(situation)
    if agent is None or not any(wait >= CONTAINER_SECONDS for wait in waits):
        return None
    return EnsureAgent(agent.name)


def next_look_at(situation: Situation) -> float | None:
    """Returns when the next look is due."""
    if job_agent(situation) is None:
        return None
    waits = [CONTAINER_SECONDS - wait if wait < CONTAINER_SECONDS else AGAIN_SECONDS for wait in _waits(situation)]
    return situation.now + min(waits) if waits else None


def _waits(situation: Situation) -> list[float]:
    """Returns for how long each pod that has a node has waited for its container to be made [s]."""
    return [
        situation.now - pod.scheduled_at
        for pod in situation.pods.values()
        if is_alive(pod)
        and pod.scheduled_at is not None
        and (
            pod.worker_container is None
            or (pod.worker_container.state == "waiting" and pod.worker_container.reason == "ContainerCreating")
        )
    ]
