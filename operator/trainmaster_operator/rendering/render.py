"""Renders a job's children in the order in which they are applied.

A template defines a manifest. Only two steps follow. First, the user's podTemplate (`api.merge`) and then the
operator's overlay are merged over the pod template of a StatefulSet. Second, every manifest gets an annotation with its
hash (`manifest.finish`).

The overlay (`pod-overlay.yaml.j2`) must override podTemplate, so it is applied last. It contains the pods' gang, the
flavors that Kueue has admitted, and the nodes to avoid. Maps are merged, and items are only added to lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.v1alpha1 import JobIdentity, JobSpec
from trainmaster_operator.rendering import gang_scheduling
from trainmaster_operator.rendering.agent_source import AgentConfigMap
from trainmaster_operator.rendering.engine import render_template, training_text
from trainmaster_operator.rendering.layout import worker_layout
from trainmaster_operator.rendering.manifest import Manifest, child, finish, training_name
from trainmaster_operator.rendering.settings import Settings
from trainmaster_operator.rendering.stateful_set import stateful_set
from trainmaster_operator.wire.assignment import Assignment


def render(
    job: JobIdentity,
    spec: JobSpec,
    assignment: Assignment,
    *,
    replicas: Mapping[str, int] | None = None,
    avoid_nodes: Sequence[str] = (),
    placements: Mapping[str, Placement] | None = None,
    asked: int | None = None,
    priority: int | None = None,
    agent: AgentConfigMap | None = None,
    settings: Settings | None = None,
) -> tuple[Manifest, ...]:
    """Returns the manifests of a job's children.

    They are the Service, ConfigMap (for `training`), NetworkPolicy (if the settings contain peers), PodGroup or
    Workload (for a gang), and a StatefulSet for each group.

    `assignment` is written into the pod template. `replicas` overrides the number of pods by StatefulSet name, for
    example with 0 for a suspended job. Pods use `avoid_nodes` only if no other node fits. `agent` is the agent with
    which the job started. `spec` must come from `api.parsing`. The other parameters are for Kueue: `placements` by
    group, the user's number of workers (`asked`) if `spec` contains the admitted number, and the value of the priority
    class (`priority`).
    """
    settings = settings or Settings()
    scheduler, scheduling = gang_scheduling.scheduler_of(spec), spec.scheduling
    children = [child("service.yaml.j2", job, job.name)]
    if spec.training is not None:
        text = training_text(spec.training.value())
        children.append(child("configmap.yaml.j2", job, training_name(job), training=text))
    layout = worker_layout(job, spec)
    sets = []
    for group in layout:
        count = (replicas or {}).get(group.set_name, group.pods)
        sets.append(stateful_set(job, spec, group, assignment, count, settings, agent))
    pods = [body["spec"]["template"]["spec"] for body in sets]
    if settings.network_peers is not None and not spec.interconnect.host_network:
        # No NetworkPolicy applies to pods in their node's network.
        children.append(child("networkpolicy.yaml.j2", job, job.name, peers=settings.network_peers))
    if gang_scheduling.pod_group_kind(spec) is not None:
        values = gang_scheduling.pod_group_values(spec, zip((group.count for group in layout), pods, strict=True))
        children.append(child(f"podgroup-{scheduler}.yaml.j2", job, job.name, scheduling=scheduling, **values))
    elif scheduler == "kueue":
        # Quota covers all pods, including spares.
        counts = [(group.count if asked is None else asked) + group.spares for group in layout]
        names = [group.name for group in layout]
        pod_sets = gang_scheduling.workload_pod_sets(spec, zip(names, counts, pods, strict=True))
        known = priority if scheduling.priority_class_name is not None else None
        children.append(
            child("workload.yaml.j2", job, job.name, scheduling=scheduling, priority=known, pod_sets=pod_sets)
        )
    for group, body in zip(layout, sets, strict=True):
        placement = (placements or {}).get(group.name, Placement())
        added = overlay(job.name, scheduler, placement, avoid_nodes)
        body["spec"]["template"] = lay_over(body["spec"]["template"], added)
    return tuple(map(finish, [*children, *sets]))


@dataclass(frozen=True)
class Placement:
    """Placement contains the fields that Kueue's admission or a flavor adds to a pod template."""

    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


def overlay(
    job_name: str, scheduler: gang_scheduling.GangScheduler | None, placement: Placement, avoided_nodes: Sequence[str]
) -> dict[str, Any]:
    """Returns the fields that the operator adds to a group's pods. A job's PodGroup has the job's name."""
    if scheduler in (None, "kueue") and not avoided_nodes and placement == Placement():
        return {}
    return render_template(
        "pod-overlay.yaml.j2",
        job_name=job_name,
        scheduler=scheduler,
        placement=placement,
        avoided_nodes=avoided_nodes,
    )


def lay_over(original: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the original with the overlay. Maps are merged, missing list items are added, and nulls are ignored."""
    merged = dict(original)
    for name, value in overlay.items():
        old = merged.get(name)
        if value is None:
            continue
        if isinstance(value, Mapping):
            merged[name] = lay_over(old or {}, value)
        elif isinstance(value, list):
            merged[name] = [*(old or []), *(item for item in value if item not in (old or []))]
        else:
            merged[name] = value
    return merged
