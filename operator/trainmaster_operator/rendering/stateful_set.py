"""Computes the frozen values for the template of a StatefulSet.

The template contains the manifest's structure, and decides only whether an optional field is present.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster_operator.api.pod_schema import requests_and_limits
from trainmaster_operator.api.pod_schema.resources import resource_name
from trainmaster_operator.api.v1alpha1 import CheckpointVolume, JobIdentity, JobSpec, Resources, Topology, is_bundled
from trainmaster_operator.api.v1alpha1.names import BUNDLED_USER
from trainmaster_operator.rendering.agent_source import (
    AgentConfigMap,
    agent_command,
)
from trainmaster_operator.rendering.environment import (
    CODE_DIRECTORY,
    MEMORY_DIRECTORY,
    PODINFO_DIRECTORY,
    STATE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TERMINATION_LOG,
    TRAINING_DIRECTORY,
    TRAINING_FILE,
    EnvironmentVariable,
    extended_resources,
    has_read_only_root,
    pod_grace_seconds,
    probe_grace_seconds,
    worker_environment,
)
from trainmaster_operator.rendering.gang_scheduling import scheduler_of
from trainmaster_operator.rendering.layout import GroupLayout
from trainmaster_operator.rendering.manifest import ChildContext, child_context, training_name
from trainmaster_operator.rendering.settings import Settings
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import AGENT_PORT, ASSIGNMENT_ANNOTATION, GROUP_LABEL, JOB_UID_LABEL
from trainmaster_operator.wire.signing import canonical

BUNDLED_COMMAND = ("python", "-m", "trainloop")
VOLCANO_SCHEDULER = "volcano"
CHECKPOINT_VOLUME = "trainmaster-checkpoint"
NODE_LABEL = "kubernetes.io/hostname"
# NCCL and data loaders with workers need more than the 64 Mi that the container runtime sets.
DEFAULT_SHARED_MEMORY = "8Gi"


@dataclass(frozen=True)
class VolumeContext:
    """VolumeContext is the checkpoint volume, which is a claim, a host path, or else an emptyDir."""

    path: str
    claim_name: str | None
    host_path: str | None


@dataclass(frozen=True)
class CodeContext:
    """CodeContext is the volume with the code's archive, which is a ConfigMap, a claim, or the checkpoint volume.

    If code and checkpoints use one claim, the checkpoint volume is used, because a pod that mounts a claim twice never
    starts (k8s.io/kubernetes issue 82526).
    """

    path: str
    volume: str
    config_map: str | None
    claim_name: str | None


@dataclass(frozen=True)
class SetContext:
    """SetContext contains the values for the template of a StatefulSet."""

    child: ChildContext
    service_name: str
    replicas: int
    first_index: int
    selector: Mapping[str, str]
    # The labels that all pods of the job share.
    siblings: Mapping[str, str]
    assignment: str
    assignment_annotation: str
    image: str
    image_pull_policy: str | None
    agent_command: tuple[str, ...]
    # None if the pods use the agent in the bundled image.
    agent_config_map: AgentConfigMap | None
    arguments: tuple[str, ...]
    environment: tuple[EnvironmentVariable, ...]
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    shared_memory: str | None
    training_name: str | None
    checkpoint: VolumeContext | None
    code: CodeContext | None
    node_selector: Mapping[str, str]
    scheduler_name: str | None
    priority_class_name: str | None
    topology: Topology | None
    # The label that keeps workers and spares on different nodes, so that a lost node takes only one of them.
    apart_by: str | None
    host_network: bool
    added_capabilities: tuple[str, ...]
    # Applies to all containers of the pod. The worker's own setting comes from the job.
    pod_runs_as_non_root: bool
    security_context: Mapping[str, bool | int]
    # The path for a volume that is mounted if the root file system is read-only and the job mounts nothing there.
    temporary_directory: str | None
    fs_group: int | None
    device_taints: tuple[str, ...]
    toleration_seconds: int
    grace_seconds: int
    probe_grace_seconds: int
    agent_port: int
    termination_log: str
    state_directory: str
    memory_directory: str
    podinfo_directory: str
    training_directory: str


def set_context(
    job: JobIdentity,
    spec: JobSpec,
    group: GroupLayout,
    assignment: Assignment,
    replicas: int,
    settings: Settings,
    agent: AgentConfigMap | None,
) -> SetContext:
    """Returns the context of a group's StatefulSet. `agent` is the agent with which the job started, if any."""
    bundled = is_bundled(spec.image)
    source = None if bundled else agent or settings.agent
    devices = extended_resources(group.resources, group.accelerator, spec.interconnect)
    requests, limits = requests_and_limits(group.resources)
    checkpoint = spec.checkpoint
    security = (
        {} if spec.security_context is None else spec.security_context.model_dump(by_alias=True, exclude_none=True)
    )
    return SetContext(
        child=child_context(job, group.set_name, {GROUP_LABEL: group.name}),
        service_name=job.name,
        replicas=replicas,
        first_index=group.first_index,
        selector={JOB_UID_LABEL: job.uid, GROUP_LABEL: group.name},
        siblings={JOB_UID_LABEL: job.uid},
        assignment=canonical(assignment.to_wire()) if settings.keys is None else settings.keys.sign(assignment),
        assignment_annotation=ASSIGNMENT_ANNOTATION,
        image=spec.image,
        image_pull_policy=spec.image_pull_policy,
        agent_command=agent_command(source),
        agent_config_map=source,
        arguments=_arguments(spec),
        environment=worker_environment(job, spec, group, settings),
        requests={**requests, **devices},
        limits={**limits, **devices},
        shared_memory=_shared_memory(group.resources),
        training_name=None if spec.training is None else training_name(job),
        checkpoint=None if checkpoint is None else _volume(checkpoint.path, checkpoint.volume),
        code=_code(spec),
        node_selector=dict(group.node_selector),
        scheduler_name=VOLCANO_SCHEDULER if scheduler_of(spec) == "volcano" else None,
        priority_class_name=spec.scheduling.priority_class_name,
        topology=spec.scheduling.topology,
        apart_by=_apart_by(group, spec.scheduling.topology),
        host_network=spec.interconnect.host_network,
        pod_runs_as_non_root=bundled and security.get("runAsUser") != 0,
        security_context=security,
        temporary_directory=_temporary_directory(spec),
        added_capabilities=("IPC_LOCK",) if spec.interconnect.rdma is not None else (),
        fs_group=BUNDLED_USER if bundled else None,
        device_taints=(resource_name(group.accelerator),) if group.resources.gpus else (),
        toleration_seconds=math.ceil(spec.failure_policy.nodes.lost_after_seconds),
        grace_seconds=pod_grace_seconds(spec),
        probe_grace_seconds=probe_grace_seconds(spec),
        agent_port=AGENT_PORT,
        termination_log=TERMINATION_LOG,
        state_directory=STATE_DIRECTORY,
        memory_directory=MEMORY_DIRECTORY,
        podinfo_directory=PODINFO_DIRECTORY,
        training_directory=TRAINING_DIRECTORY,
    )


def _apart_by(group: GroupLayout, topology: Topology | None) -> str | None:
    """Returns the label that keeps a group's pods apart, if the group has spares and no topology by node."""
    return NODE_LABEL if group.spares and (topology is None or topology.key != NODE_LABEL) else None


def _arguments(spec: JobSpec) -> tuple[str, ...]:
    """Returns the user's program, or the bundled image's loop if `command` is missing."""
    if spec.command is not None:
        return (*spec.command, *spec.args)
    config = () if spec.training is None or "--config" in spec.args else ("--config", TRAINING_FILE)
    return (*BUNDLED_COMMAND, *config, *spec.args)


def _temporary_directory(spec: JobSpec) -> str | None:
    is_taken = spec.checkpoint is not None and spec.checkpoint.path.rstrip("/") == TEMPORARY_DIRECTORY
    return TEMPORARY_DIRECTORY if has_read_only_root(spec) and not is_taken else None


def _shared_memory(resources: Resources) -> str | None:
    if resources.shared_memory is not None:
        return str(resources.shared_memory)
    return DEFAULT_SHARED_MEMORY if resources.gpus else None


def _code(spec: JobSpec) -> CodeContext | None:
    code, checkpoint = spec.code, spec.checkpoint
    if code is None:
        return None
    claim = None if code.claim is None else code.claim.claim_name
    if checkpoint is not None and claim is not None and checkpoint.volume.claim_name == claim:
        return CodeContext(CODE_DIRECTORY, CHECKPOINT_VOLUME, None, None)
    return CodeContext(CODE_DIRECTORY, "trainmaster-code", code.config_map, claim)


def _volume(path: str, volume: CheckpointVolume) -> VolumeContext:
    return VolumeContext(path=path, claim_name=volume.claim_name, host_path=volume.host_path)
