"""Renders a job's children in the order in which they are applied.

A template defines a manifest. Only two steps follow. First, the user's podTemplate (`api.merge`) and then the
operator's overlay are merged over the pod template of a StatefulSet. Second, an annotation with its hash is added to
every manifest (`manifest.finish`).

The overlay (`pod-overlay.yaml.j2`) must override podTemplate, so it is applied last. It contains the pods' gang, the
flavors that Kueue has admitted, and the nodes to avoid. Maps are merged, and items are only added to lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.merge import merge
from trainmaster_operator.api.v1alpha1 import JobIdentity, JobSpec, PodTemplate
from trainmaster_operator.rendering.agent_source import AgentConfigMap
from trainmaster_operator.rendering.engine import render_template, training_text
from trainmaster_operator.rendering.gang_scheduling import (
    GangScheduler,
    has_pod_group,
    pod_group_context,
    scheduler_of,
    workload_context,
)
from trainmaster_operator.rendering.layout import GroupLayout, worker_layout
from trainmaster_operator.rendering.manifest import Manifest, child_context, finish, training_name
from trainmaster_operator.rendering.settings import NetworkPeers, Settings
from trainmaster_operator.rendering.stateful_set import set_context
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import AGENT_PORT, JOB_UID_LABEL


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
    manifests = [_service(job)]
    if spec.training is not None:
        manifests.append(_training(job, spec.training.value()))
    layout = worker_layout(job, spec)
    bodies = []
    for group in layout:
        count = (replicas or {}).get(group.set_name, group.pods)
        bodies.append(_stateful_set(job, spec, group, assignment, count, settings, agent))
    pods = [body["spec"]["template"]["spec"] for body in bodies]
    if settings.network_peers is not None and not spec.interconnect.host_network:
        # No NetworkPolicy applies to pods in their node's network.
        manifests.append(_network_policy(job, settings.network_peers))
    if has_pod_group(spec):
        context = pod_group_context(spec, zip((group.count for group in layout), pods, strict=True))
        template = f"podgroup-{scheduler_of(spec)}.yaml.j2"
        manifests.append(finish(render_template(template, child=child_context(job, job.name), gang=context)))
    elif scheduler_of(spec) == "kueue":
        # Quota covers all pods, including spares.
        counts = [(group.count if asked is None else asked) + group.spares for group in layout]
        names = [group.name for group in layout]
        workload = workload_context(spec, zip(names, counts, pods, strict=True), priority)
        manifests.append(
            finish(render_template("workload.yaml.j2", child=child_context(job, job.name), workload=workload))
        )
    for group, body in zip(layout, bodies, strict=True):
        placement = (placements or {}).get(group.name, Placement())
        overlay = overlay_context(job.name, scheduler_of(spec), placement, avoid_nodes)
        manifests.append(finish(_with_overlay(body, overlay)))
    return tuple(manifests)


def _service(job: JobIdentity) -> Manifest:
    child = child_context(job, job.name)
    return finish(
        render_template("service.yaml.j2", child=child, selector={JOB_UID_LABEL: job.uid}, agent_port=AGENT_PORT)
    )


def _network_policy(job: JobIdentity, peers: NetworkPeers) -> Manifest:
    child, selector = child_context(job, job.name), {JOB_UID_LABEL: job.uid}
    return finish(
        render_template("networkpolicy.yaml.j2", child=child, selector=selector, peers=peers, agent_port=AGENT_PORT)
    )


def _training(job: JobIdentity, training: dict[str, Any]) -> Manifest:
    text = training_text(training)
    return finish(render_template("configmap.yaml.j2", child=child_context(job, training_name(job)), training=text))


def _stateful_set(
    job: JobIdentity,
    spec: JobSpec,
    group: GroupLayout,
    assignment: Assignment,
    replicas: int,
    settings: Settings,
    agent: AgentConfigMap | None,
) -> dict[str, Any]:
    """Returns the StatefulSet with the user's podTemplate merged over the pod template."""
    context = set_context(job, spec, group, assignment, replicas, settings, agent)
    body = render_template("statefulset.yaml.j2", child=context.child, set=context)
    if spec.pod_template is not None:
        body["spec"]["template"] = merge(body["spec"]["template"], _patch(spec.pod_template))
    return body


def _with_overlay(body: dict[str, Any], overlay: OverlayContext) -> dict[str, Any]:
    if overlay.is_empty:
        return body
    template = lay_over(body["spec"]["template"], render_template("pod-overlay.yaml.j2", overlay=overlay))
    return {**body, "spec": {**body["spec"], "template": template}}


def _patch(template: PodTemplate) -> dict[str, Any]:
    """Returns the user's patch without absent fields. Nulls are kept, because they delete fields."""
    patch: dict[str, Any] = {}
    if template.metadata is not None:
        patch["metadata"] = template.metadata.model_dump(exclude_none=True)
    if template.spec is not None:
        patch["spec"] = template.spec.value()
    return patch


@dataclass(frozen=True)
class Placement:
    """Placement is what Kueue's admission or a flavor adds to a pod template."""

    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class OverlayContext:
    """OverlayContext contains the values for the template of the overlay."""

    group_name: str
    gang_scheduler: GangScheduler | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]
    avoided_nodes: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """Returns whether the overlay adds nothing, so that it needn't be rendered."""
        admitted = self.labels or self.annotations or self.node_selector or self.tolerations
        return not admitted and not self.avoided_nodes and self.gang_scheduler in (None, "kueue")


def overlay_context(
    group_name: str, gang_scheduler: GangScheduler | None, placement: Placement, avoided_nodes: Sequence[str]
) -> OverlayContext:
    """Returns the context of a group's overlay. `group_name` is the name of the job's PodGroup, if there is one."""
    return OverlayContext(
        group_name=group_name,
        gang_scheduler=gang_scheduler,
        labels=dict(placement.labels),
        annotations=dict(placement.annotations),
        node_selector=dict(placement.node_selector),
        tolerations=placement.tolerations,
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
