"""A job becomes its children, in the order in which they are applied.

A template says what a manifest is. Only two things are done to what it gives: the pods' template of a StatefulSet gets
the user's podTemplate (`api.merge`) and then the operator's overlay (`pod_overlay`), and every manifest gets an
annotation with its own hash (`manifest.finish`), which no template can know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster_operator.api.merge import merge
from trainmaster_operator.api.v1alpha1 import JobSpec, PodTemplate
from trainmaster_operator.rendering.agent_source import AgentConfigMap
from trainmaster_operator.rendering.child import child_context, training_name
from trainmaster_operator.rendering.engine import render_template
from trainmaster_operator.rendering.layout import GroupLayout, JobIdentity, worker_layout
from trainmaster_operator.rendering.manifest import Manifest, finish
from trainmaster_operator.rendering.pod_group import has_pod_group, pod_group_context, scheduler_of
from trainmaster_operator.rendering.pod_overlay import OverlayContext, Placement, lay_over, overlay_context
from trainmaster_operator.rendering.settings import NetworkPeers, Settings
from trainmaster_operator.rendering.stateful_set import set_context
from trainmaster_operator.rendering.training_text import training_text
from trainmaster_operator.rendering.workload import workload_context
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
    """Service, ConfigMap (for a training config), NetworkPolicy (where the settings say so), PodGroup or Workload (of a
    gang), a StatefulSet for each group.

    `assignment` goes into the pods' template. `replicas` overrides the number of pods by StatefulSet name: 0 for a
    job that is suspended or finished. `avoid_nodes`: nodes that pods go to only if no other will do. For Kueue:
    `placements` by group are what was admitted, `asked` is the number of workers where `spec` has the admitted one,
    `priority` the value of the priority class. `agent` is the one that the job has begun with. `spec` must have been
    checked by `api.parsing`.
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
        # Pods on their node's network can't be distinguished from the node: no NetworkPolicy holds for them.
        manifests.append(_network_policy(job, settings.network_peers))
    if has_pod_group(spec):
        context = pod_group_context(spec, zip((group.count for group in layout), pods, strict=True))
        template = f"podgroup-{scheduler_of(spec)}.yaml.j2"
        manifests.append(finish(render_template(template, child=child_context(job, job.name), gang=context)))
    elif scheduler_of(spec) == "kueue":
        # Quota is for all pods, those of spares too.
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
    """Returns the set as the job's spec has it: rendered, with the user's podTemplate merged over the pods'
    template."""
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
    """Returns the user's patch as it was written: its nulls delete, so only absent fields may be left out."""
    patch: dict[str, Any] = {}
    if template.metadata is not None:
        patch["metadata"] = template.metadata.model_dump(exclude_none=True)
    if template.spec is not None:
        patch["spec"] = template.spec.value()
    return patch
