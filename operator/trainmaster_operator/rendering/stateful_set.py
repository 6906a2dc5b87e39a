"""Computes the values for a StatefulSet's template. The template defines the manifest's structure."""

from __future__ import annotations

import math
from typing import Any

from trainmaster_operator.api.merge import merge
from trainmaster_operator.api.pod_schema import requests_and_limits
from trainmaster_operator.api.pod_schema.resources import resource_name
from trainmaster_operator.api.v1alpha1 import JobIdentity, JobSpec, is_bundled
from trainmaster_operator.api.v1alpha1.names import BUNDLED_USER
from trainmaster_operator.rendering import environment as container
from trainmaster_operator.rendering.agent_source import AgentConfigMap, agent_command
from trainmaster_operator.rendering.gang_scheduling import scheduler_of
from trainmaster_operator.rendering.layout import GroupLayout
from trainmaster_operator.rendering.manifest import child, training_name
from trainmaster_operator.rendering.settings import Settings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, GROUP_LABEL, JOB_UID_LABEL
from trainmaster_operator.wire.signing import canonical

BUNDLED_COMMAND = ("python", "-m", "trainloop")
# NCCL and data loaders with workers need more than the 64 Mi that the container runtime sets.
DEFAULT_SHARED_MEMORY = "8Gi"


def stateful_set(
    job: JobIdentity,
    spec: JobSpec,
    group: GroupLayout,
    assignment: Assignment,
    replicas: int,
    settings: Settings,
    agent: AgentConfigMap | None,
) -> dict[str, Any]:
    """Returns a group's StatefulSet with the user's podTemplate merged over the pod template.

    `agent` is the agent with which the job started, if any.
    """
    bundled = is_bundled(spec.image)
    source = None if bundled else agent or settings.agent
    devices = container.extended_resources(group, spec.interconnect)
    requests, limits = requests_and_limits(group.resources)
    security = spec.security_context
    body = child(
        "statefulset.yaml.j2",
        job,
        group.set_name,
        labels={GROUP_LABEL: group.name},
        spec=spec,
        group=group,
        scheduler=scheduler_of(spec),
        replicas=replicas,
        selector={JOB_UID_LABEL: job.uid, GROUP_LABEL: group.name},
        assignment=canonical(assignment.to_wire()) if settings.keys is None else settings.keys.sign(assignment),
        assignment_annotation=ASSIGNMENT_ANNOTATION,
        # None if the pods use the agent in the bundled image.
        agent=source,
        agent_command=agent_command(source),
        arguments=_arguments(spec),
        environment=container.worker_environment(job, spec, group, settings),
        requests={**requests, **devices},
        limits={**limits, **devices},
        shared_memory=_shared_memory(group),
        training_name=training_name(job),
        shares_claim=_shares_claim(spec),
        security_context={} if security is None else security.model_dump(by_alias=True, exclude_none=True),
        has_temporary_volume=_has_temporary_volume(spec),
        bundled=bundled,
        bundled_user=BUNDLED_USER,
        device=resource_name(group.accelerator),
        toleration_seconds=math.ceil(spec.failure_policy.nodes.lost_after_seconds),
        grace_seconds=container.pod_grace_seconds(spec),
        probe_grace_seconds=min(container.pod_grace_seconds(spec), container.PROBE_GRACE_SECONDS),
        container=container,
    )
    template = spec.pod_template
    if template is not None:
        # Absent fields are left out of the patch. Nulls are kept, because they delete fields.
        patch: dict[str, Any] = {}
        if template.metadata is not None:
            patch["metadata"] = template.metadata.model_dump(exclude_none=True)
        if template.spec is not None:
            patch["spec"] = template.spec.value()
        body["spec"]["template"] = merge(body["spec"]["template"], patch)
    return body


def _arguments(spec: JobSpec) -> tuple[str, ...]:
    """Returns the user's program, or the bundled image's loop if `command` is missing."""
    if spec.command is not None:
        return (*spec.command, *spec.args)
    config = () if spec.training is None or "--config" in spec.args else ("--config", container.TRAINING_FILE)
    return (*BUNDLED_COMMAND, *config, *spec.args)


def _has_temporary_volume(spec: JobSpec) -> bool:
    is_taken = spec.checkpoint is not None and spec.checkpoint.path.rstrip("/") == container.TEMPORARY_DIRECTORY
    return container.has_read_only_root(spec) and not is_taken


def _shared_memory(group: GroupLayout) -> str | None:
    if group.resources.shared_memory is not None:
        return str(group.resources.shared_memory)
    return DEFAULT_SHARED_MEMORY if group.resources.gpus else None


def _shares_claim(spec: JobSpec) -> bool:
    """Returns whether code and checkpoints use one claim, and so one volume.

    A pod that mounts a claim twice never starts (k8s.io/kubernetes issue 82526).
    """
    claim = None if spec.code is None or spec.code.claim is None else spec.code.claim.claim_name
    return claim is not None and spec.checkpoint is not None and spec.checkpoint.volume.claim_name == claim
