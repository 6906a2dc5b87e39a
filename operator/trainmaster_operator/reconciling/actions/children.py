"""Applies the job's children if they differ from their rendering, and checks that pods get their agent.

A child is applied if it is missing, was rendered differently (the hash differs), or was scaled by another client. A job
that runs or will run keeps all its children. If a job is suspended or finished, its StatefulSets are scaled to zero,
and the PodGroup of a gang is deleted, so that it reserves no resources. Its other children stay as they are. If an
object of the same name has another owner, the executor refuses to overwrite it.

If a pod has a node but no container, the ConfigMap with its agent may have been deleted. The kubelet retries at growing
intervals, so the operator soon checks the ConfigMap, and creates it again if it is missing.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.reconciling.actions.assignments import is_ahead
from trainmaster_operator.reconciling.decision import Apply, DeleteChild, EnsureAgent
from trainmaster_operator.reconciling.observed import gangs
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import ChildView
from trainmaster_operator.rendering import AgentConfigMap, Manifest, first_assignment, pod_group_kind, render
from trainmaster_operator.wire.assignment import Assignment

# The parameters of `render`, except the spec.
Inputs = Mapping[str, Any]
# (kind, name, hash) of each manifest.
Hashes = tuple[tuple[str, str, str], ...]


# A cache of each job's last hashes, because rendering takes milliseconds and most passes change nothing. Passes of
# large jobs run in a thread, so an entry can get lost. This costs only one rendering.
last_hashes: dict[int, deque[tuple[Inputs, Hashes]]] = {}


def hashes_of(spec: JobSpec) -> deque[tuple[Inputs, Hashes]]:
    """Returns the hashes of the last two renderings of a spec. They are dropped together with the spec object."""
    if id(spec) not in last_hashes:
        last_hashes[id(spec)] = deque(maxlen=2)
        weakref.finalize(spec, last_hashes.pop, id(spec), None)
    return last_hashes[id(spec)]


def scaled_to_zero(situation: Situation) -> bool:
    """Returns whether the job should have no pods: suspended, in scheduling backoff, or ended without keeping pods."""
    if situation.suspended or situation.status.scheduling_backoff:
        return True
    keep = situation.spec.run_policy.keep_pods
    return situation.terminal and not (keep == "All" or (keep == "Failed" and situation.status.phase == "Failed"))


def apply_children(situation: Situation, assignment: Assignment) -> tuple[Apply, ...]:
    """Returns the children to apply, in the order of the rendering."""
    replicas = _replicas(situation)
    known = {(child.kind, child.name): child for child in situation.observed.children}
    present = {child.name: child.assignment for child in _own_sets(situation)}
    ended = situation.terminal or situation.suspended
    if ended and not any(_is_off(child, replicas, assignment) for child in _own_sets(situation)):
        return ()
    inputs = _inputs(situation, assignment, replicas)
    # Use the spec as parsed, because the situation may contain a copy with the number of workers that Kueue admitted.
    spec, place = situation.job.spec or situation.spec, {"workers": situation.spec.workers, **inputs}
    hashes, manifests = next((hashes for earlier, hashes in hashes_of(spec) if earlier == place), None), None
    if hashes is None:
        manifests = render(spec=situation.spec, **inputs)
        hashes = tuple((manifest.kind, manifest.name, manifest.rendered_hash) for manifest in manifests)
        hashes_of(spec).append((place, hashes))
    needed = {
        (kind, name)
        for kind, name, rendered_hash in hashes
        if _is_needed(known.get((kind, name)), rendered_hash, replicas.get(name), kind=kind, ended=ended)
        and not is_ahead(present.get(name), assignment)
        and kind != gangs.WORKLOAD_KIND
    }
    if scaled_to_zero(situation):
        needed = {(kind, name) for kind, name in needed if kind != pod_group_kind(situation.spec)}
    elif gangs.lacks_placement(situation.job, situation.observed):
        needed = {(kind, name) for kind, name in needed if kind != "StatefulSet"}
    elif pod_group_kind(situation.spec) and ((group := _pod_group(situation)) is None or group.deleting):
        # Pods created before their PodGroup would be scheduled one by one.
        with_pods = {place for place, child in known.items() if child.replicas}
        needed = {(kind, name) for kind, name in needed if kind != "StatefulSet" or (kind, name) in with_pods}
    if not needed:
        return ()
    if manifests is None:
        manifests = render(spec=situation.spec, **inputs)
    return tuple(Apply(manifest.body) for manifest in manifests if (manifest.kind, manifest.name) in needed)


def workload_manifest(situation: Situation) -> Manifest | None:
    """Returns the job's Workload for Kueue, as the operator writes it while the Workload holds no quota."""
    assignment = first_assignment(situation.identity, situation.spec)
    manifests = render(spec=situation.spec, **_inputs(situation, assignment, _replicas(situation)))
    return next((manifest for manifest in manifests if manifest.kind == gangs.WORKLOAD_KIND), None)


def _inputs(situation: Situation, assignment: Assignment, replicas: Mapping[str, int]) -> Inputs:
    asked, observed = situation.job.spec, situation.observed
    workload = gangs.admission(situation.job, asked, observed) if asked is not None else None
    return {
        "job": situation.identity,
        "assignment": assignment,
        "replicas": replicas,
        "avoid_nodes": situation.status.avoided_nodes,
        "settings": situation.settings,
        "asked": asked.workers if asked is not None else None,
        "placements": gangs.placements(workload, observed) if workload is not None else {},
        "priority": observed.priorities.get(situation.spec.scheduling.priority_class_name or ""),
        "agent": _job_agent(situation),
    }


def _replicas(situation: Situation) -> dict[str, int]:
    none = scaled_to_zero(situation)
    return {group.set_name: 0 if none else group.pods for group in situation.layout}


def _own_sets(situation: Situation) -> list[ChildView]:
    return [
        child
        for child in situation.observed.children
        if child.kind == "StatefulSet" and child.owner_uid == situation.job.uid and not child.deleting
    ]


def _job_agent(situation: Situation) -> AgentConfigMap | None:
    return next((child.agent for child in _own_sets(situation) if child.agent is not None), None)


def _is_off(child: ChildView, replicas: Mapping[str, int], assignment: Assignment) -> bool:
    """Returns whether an ended job's StatefulSet has a wrong size, or keeps pods with an outdated assignment."""
    wanted = replicas.get(child.name, 0)
    return child.replicas != wanted or (wanted > 0 and child.assignment != assignment)


def _is_needed(child: ChildView | None, rendered_hash: str, replicas: int | None, *, kind: str, ended: bool) -> bool:
    if child is None or (ended and kind != "StatefulSet"):
        return not ended
    if child.deleting:
        # The next pass follows when the garbage collector has deleted the object.
        return False
    scaled = kind == "StatefulSet" and child.replicas != replicas
    return scaled or child.rendered_hash != rendered_hash


# Seconds from scheduling until a container should exist. If the node has the image, this takes less than a second.
CONTAINER_SECONDS = 3.0
# Seconds between two checks while an image is being pulled.
AGAIN_SECONDS = 10.0


def ensure_agent(situation: Situation) -> Iterator[EnsureAgent]:
    """Yields the check of the ConfigMap with the job's agent, if the check is due."""
    agent = _job_agent(situation)
    if agent is not None and any(wait >= CONTAINER_SECONDS for wait in _container_waits(situation)):
        yield EnsureAgent(agent.name)


def next_look_at(situation: Situation) -> float | None:
    """Returns when the ConfigMap with the agent must be checked next, or None."""
    if _job_agent(situation) is None or situation.terminal:
        return None
    waits = _container_waits(situation)
    left = [CONTAINER_SECONDS - wait if wait < CONTAINER_SECONDS else AGAIN_SECONDS for wait in waits]
    return situation.now + min(left) if left else None


def _container_waits(situation: Situation) -> list[float]:
    """Returns how long each scheduled pod has waited for its container [s]."""
    return [
        situation.now - pod.scheduled_at
        for pod in situation.living.values()
        if pod.scheduled_at is not None
        and (
            pod.worker_container is None
            or (pod.worker_container.state == "waiting" and pod.worker_container.reason == "ContainerCreating")
        )
    ]


def _pod_group(situation: Situation) -> ChildView | None:
    return gangs.own_child(situation.job, situation.observed, pod_group_kind(situation.spec))


def delete_pod_group(situation: Situation) -> Iterator[DeleteChild]:
    """Yields the deletion of the PodGroup if the job has no pods, so that the PodGroup reserves nothing."""
    group = _pod_group(situation)
    if group is not None and not group.deleting and not situation.observed.pods:
        yield DeleteChild(group.kind, group.name, group.uid)
