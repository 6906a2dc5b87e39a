"""Applies the job's children if they differ from their rendering, and checks that pods get their agent.

A child is applied if it is missing, was rendered differently (the hash differs), or was scaled by another client. All
children of a job that runs or will run are kept. For a suspended or finished job, the StatefulSets are scaled to zero
and nothing else changes. If another owner has an object of the same name, the executor refuses to overwrite it.

If a pod has a node but no container, the ConfigMap with its agent may have been deleted. The kubelet retries at growing
intervals, so the operator soon checks the ConfigMap, and creates it again if it is missing.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.api.v1alpha1.names import JobIdentity
from trainmaster_operator.reconciling.actions.assignments import is_ahead
from trainmaster_operator.reconciling.decision import Apply, DeleteChild, EnsureAgent
from trainmaster_operator.reconciling.observed.gangs import (
    WORKLOAD_KIND,
    admission,
    lacks_placement,
    lacks_pod_group,
    placements,
    pod_group,
    pod_group_kind,
)
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import ChildView, is_alive
from trainmaster_operator.rendering import (
    AgentConfigMap,
    Manifest,
    Placement,
    Settings,
    first_assignment,
    render,
    worker_layout,
)
from trainmaster_operator.wire.assignment import Assignment

# Number of renderings remembered for each job: the current one and the next.
REMEMBERED_RENDERINGS = 2

# (kind, name, hash) of each manifest.
Hashes = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class _Rendering:
    """All inputs of a rendering, except the spec."""

    job: JobIdentity
    assignment: Assignment
    replicas: tuple[tuple[str, int], ...]
    avoid_nodes: tuple[str, ...]
    settings: Settings
    workers: int | None
    asked: int | None
    placements: tuple[tuple[str, Placement], ...]
    priority: int | None
    agent: AgentConfigMap | None

    def manifests(self, spec: JobSpec) -> tuple[Manifest, ...]:
        return render(
            self.job,
            spec,
            self.assignment,
            replicas=dict(self.replicas),
            avoid_nodes=self.avoid_nodes,
            placements=dict(self.placements),
            asked=self.asked,
            priority=self.priority,
            agent=self.agent,
            settings=self.settings,
        )


class RememberedHashes:
    """Caches each job's last hashes, because rendering takes milliseconds and most passes change nothing.

    The key is the identity of the parsed spec, which is held by a weak reference. Passes of large jobs run in a thread,
    and if an entry is lost, this costs one rendering.
    """

    def __init__(self) -> None:
        self._by_spec: dict[int, tuple[weakref.ref[JobSpec], dict[_Rendering, Hashes]]] = {}

    def __len__(self) -> int:
        return len(self._by_spec)

    def get(self, spec: JobSpec, rendering: _Rendering) -> Hashes | None:
        entry = self._by_spec.get(id(spec))
        return entry[1].get(rendering) if entry is not None and entry[0]() is spec else None

    def put(self, spec: JobSpec, rendering: _Rendering, hashes: Hashes) -> None:
        place = id(spec)
        entry = self._by_spec.get(place)
        if entry is None or entry[0]() is not spec:
            entry = weakref.ref(spec, lambda gone: self._forget(place, gone)), {}
        others = {key: value for key, value in entry[1].items() if key != rendering}
        kept = dict(list(others.items())[1 - REMEMBERED_RENDERINGS :])
        self._by_spec[place] = entry[0], {**kept, rendering: hashes}

    def _forget(self, place: int, gone: weakref.ref[JobSpec]) -> None:
        entry = self._by_spec.get(place)
        if entry is not None and entry[0] is gone:
            del self._by_spec[place]


_remembered = RememberedHashes()


def scaled_to_zero(situation: Situation) -> bool:
    """Returns whether the job should have no pods: suspended, in scheduling backoff, or finished and cleaned up."""
    if situation.status.phase == "Suspended" or situation.status.scheduling_backoff:
        return True
    keep = situation.spec.run_policy.keep_pods
    return situation.terminal and not (keep == "All" or (keep == "Failed" and situation.status.phase == "Failed"))


def apply_children(situation: Situation, assignment: Assignment) -> tuple[Apply, ...]:
    """Returns the children to apply, in the order of the rendering."""
    replicas = _replicas(situation)
    known = {(child.kind, child.name): child for child in situation.observed.children}
    present = {child.name: child.assignment for child in own_sets(situation)}
    ended = situation.terminal or situation.status.phase == "Suspended"
    if ended and not any(_is_off(child, replicas, assignment) for child in own_sets(situation)):
        return ()
    rendering = _rendering(situation, assignment, replicas)
    # Use the original parsed spec; the situation may contain a copy with the number of workers that Kueue admitted.
    spec = situation.job.spec or situation.spec
    hashes, manifests = _remembered.get(spec, rendering), None
    if hashes is None:
        manifests = rendering.manifests(situation.spec)
        hashes = tuple((manifest.kind, manifest.name, manifest.rendered_hash) for manifest in manifests)
        _remembered.put(spec, rendering, hashes)
    needed = {
        (kind, name)
        for kind, name, rendered_hash in hashes
        if _is_needed(known.get((kind, name)), rendered_hash, replicas.get(name), kind=kind, ended=ended)
        and not is_ahead(present.get(name), assignment)
        and kind != WORKLOAD_KIND
    }
    if scaled_to_zero(situation):
        needed = {(kind, name) for kind, name in needed if kind != pod_group_kind(situation)}
    elif lacks_placement(situation.job, situation.observed):
        needed = {(kind, name) for kind, name in needed if kind != "StatefulSet"}
    elif lacks_pod_group(situation):
        # Pods created before their PodGroup would be scheduled one by one.
        needed = {(kind, name) for kind, name in needed if kind != "StatefulSet" or _has_pods(known.get((kind, name)))}
    if not needed:
        return ()
    if manifests is None:
        manifests = rendering.manifests(situation.spec)
    return tuple(Apply(manifest.body) for manifest in manifests if (manifest.kind, manifest.name) in needed)


def workload_manifest(situation: Situation) -> Manifest | None:
    """Returns the job's Workload for Kueue, as it is written while it holds no quota."""
    rendering = _rendering(situation, first_assignment(situation.identity, situation.spec), _replicas(situation))
    manifests = rendering.manifests(situation.spec)
    return next((manifest for manifest in manifests if manifest.kind == WORKLOAD_KIND), None)


def _rendering(situation: Situation, assignment: Assignment, replicas: Mapping[str, int]) -> _Rendering:
    asked, observed = situation.asked, situation.observed
    workload = admission(situation.job, asked, observed) if asked is not None else None
    return _Rendering(
        situation.identity,
        assignment,
        tuple(replicas.items()),
        tuple(situation.status.avoided_nodes),
        situation.settings,
        situation.spec.workers,
        asked.workers if asked is not None else None,
        placements(workload, observed) if workload is not None else (),
        observed.priorities.get(situation.spec.scheduling.priority_class_name or ""),
        job_agent(situation),
    )


def _replicas(situation: Situation) -> dict[str, int]:
    none = scaled_to_zero(situation)
    layout = worker_layout(situation.identity, situation.spec)
    return {group.set_name: 0 if none else group.pods for group in layout}


def own_sets(situation: Situation) -> list[ChildView]:
    """Returns the job's StatefulSets that aren't being deleted."""
    return [
        child
        for child in situation.observed.children
        if child.kind == "StatefulSet" and child.owner_uid == situation.job.uid and not child.deleting
    ]


def job_agent(situation: Situation) -> AgentConfigMap | None:
    """Returns the agent with which the job has started, or None."""
    return next((child.agent for child in own_sets(situation) if child.agent is not None), None)


def _has_pods(child: ChildView | None) -> bool:
    return child is not None and bool(child.replicas)


def _is_off(child: ChildView, replicas: Mapping[str, int], assignment: Assignment) -> bool:
    """Returns whether an ended job's StatefulSet has a wrong size, or kept pods that could still train."""
    wanted = replicas.get(child.name, 0)
    return child.replicas != wanted or (wanted > 0 and child.assignment != assignment)


def _is_needed(child: ChildView | None, rendered_hash: str, replicas: int | None, *, kind: str, ended: bool) -> bool:
    if ended and (kind != "StatefulSet" or child is None):
        return False
    if child is None:
        return True
    if child.deleting:
        # The next pass follows when the garbage collector has deleted the object.
        return False
    scaled = kind == "StatefulSet" and child.replicas != replicas
    return scaled or child.rendered_hash != rendered_hash


# Seconds from scheduling until a container should exist. With the image on the node, it takes less than a second.
CONTAINER_SECONDS = 3.0
# Seconds between two checks while an image is being pulled.
AGAIN_SECONDS = 10.0


def ensure_agent(situation: Situation) -> EnsureAgent | None:
    """Returns the check of the ConfigMap with the job's agent, if the check is due."""
    agent, waits = job_agent(situation), _container_waits(situation)
    if agent is None or not any(wait >= CONTAINER_SECONDS for wait in waits):
        return None
    return EnsureAgent(agent.name)


def next_look_at(situation: Situation) -> float | None:
    """Returns when the next check is due."""
    if job_agent(situation) is None:
        return None
    waits = [
        CONTAINER_SECONDS - wait if wait < CONTAINER_SECONDS else AGAIN_SECONDS for wait in _container_waits(situation)
    ]
    return situation.now + min(waits) if waits else None


def _container_waits(situation: Situation) -> list[float]:
    """Returns how long each scheduled pod has waited for its container [s]."""
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


def delete_pod_group(situation: Situation) -> DeleteChild | None:
    """Returns the deletion of the PodGroup if the job has no pods, so that the PodGroup reserves nothing."""
    group = pod_group(situation)
    if group is None or group.deleting or situation.observed.pods:
        return None
    return DeleteChild(group.kind, group.name, group.uid)
