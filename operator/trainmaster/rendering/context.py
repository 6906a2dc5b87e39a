"""What the templates get: frozen values computed from the spec, and nothing else.

The templates hold the shape of the manifests and decide nothing but whether an optional part is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.api.accelerator_names import resource_name
from trainmaster.api.signing import AGENTS_SECRET_KEY, SigningKeys
from trainmaster.api.v1alpha1 import API_VERSION, CPU, KIND, CheckpointVolume, JobSpec, Resources, Topology, is_bundled
from trainmaster.rendering.accelerators import (
    extended_resources,
    interconnect_environment,
    toleration_seconds,
)
from trainmaster.rendering.layout import (
    GroupLayout,
    JobIdentity,
    stable_hosts,
    worker_count,
    worker_layout,
    world_size,
)
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.names import (
    AGENT_PORT,
    ASSIGNMENT_ANNOTATION,
    GROUP_LABEL,
    JOB_NAME_LABEL,
    JOB_UID_LABEL,
    MANAGED_BY_LABEL,
    POD_INDEX_LABEL,
    PUBLIC_KEYS_VARIABLE,
)
from trainmaster.wire.ports import DEFAULT_MASTER_PORT
from trainmaster.wire.signing import canonical

BUNDLED_AGENT = "/opt/trainmaster/agent.pyz"
INSTALLED_AGENT = "/run/trainmaster/agent/agent.pyz"
STATE_DIRECTORY = "/run/trainmaster/state"
PODINFO_DIRECTORY = "/run/trainmaster/podinfo"
# Where everything writes that asks for no place of its own (tempfile, torchrun's logs, sockets of data loaders).
TEMPORARY_DIRECTORY = "/tmp"
TRAINING_DIRECTORY = "/etc/trainmaster"
TRAINING_FILE = f"{TRAINING_DIRECTORY}/training.yaml"
TERMINATION_LOG = "/dev/termination-log"

BUNDLED_COMMAND = ("python", "-m", "trainloop")
# gid of the bundled image's user (images/trainer/Dockerfile): volumes must be writable for it.
BUNDLED_GROUP = 65532
# A checkpoint of a large model takes a while; a job without one ends at once on SIGTERM whatever this is.
GRACE_SECONDS = 60
# What the kubelet needs of the grace period between the last rank's end and SIGKILL to the agent.
GRACE_RESERVE_SECONDS = 5
# What an agent that the kubelet can't reach gets to have its ranks save a checkpoint; one that stands still saves none.
PROBE_GRACE_SECONDS = 30
# NCCL and data loaders with workers need more than the runtime's 64 Mi.
DEFAULT_SHARED_MEMORY = "8Gi"


@dataclass(frozen=True)
class NetworkPeers:
    """Who may connect to a job's pods beside those of the same job, where each job has a NetworkPolicy."""

    # The operator's pods: their namespace, and labels that they have. Without labels they aren't let in.
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = ()
    # Namespaces whose pods may read the agents' /metrics.
    metrics_namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The operator's own choices: for what it renders, and where a cluster's ways matter for what it decides."""

    # Image whose agent is copied into pods of other images. Must be the operator's own version.
    agent_image: str = "ghcr.io/trainmaster/trainer:0.1.0"
    # imagePullPolicy of that init container; None leaves it to Kubernetes (IfNotPresent for a tag that isn't latest).
    agent_image_pull_policy: str | None = None
    # Seconds that a worker's container may wait in the kubelet's crash back-off before its pod is replaced instead (the
    # successor of a pod without a running container was there after 1.4 s on a real kubelet; volumes and a busy
    # scheduler take longer). None: never.
    replace_after_seconds: float | None = 5.0
    # Whether what workers print may be kept and told, where the job allows it too (runPolicy.keepLogs).
    keep_logs: bool = True
    # Who may connect to a job's pods; None: jobs have no NetworkPolicy.
    network_peers: NetworkPeers | None = None
    # The operator's. None for who only looks at what a job becomes: no agent takes an assignment that isn't signed.
    keys: SigningKeys | None = None


@dataclass(frozen=True)
class EnvironmentVariable:
    """A variable with a value, or one that is read from a field of the pod, or from a Secret that may be missing."""

    name: str
    value: str | None = None
    field_path: str | None = None
    secret_name: str | None = None
    secret_key: str | None = None


@dataclass(frozen=True)
class Owner:
    """The job as owner of its children."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class ChildContext:
    """What every child has."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    owner: Owner


@dataclass(frozen=True)
class VolumeContext:
    """The checkpoint volume: exactly one of the three."""

    path: str
    claim_name: str | None
    host_path: str | None


@dataclass(frozen=True)
class SetContext:
    """One StatefulSet."""

    child: ChildContext
    service_name: str
    replicas: int
    first_index: int
    selector: Mapping[str, str]
    # What all pods of the job have, of whichever group.
    siblings: Mapping[str, str]
    assignment: str
    assignment_annotation: str
    image: str
    image_pull_policy: str | None
    bundled: bool
    agent: str
    agent_image: str
    agent_image_pull_policy: str | None
    arguments: tuple[str, ...]
    environment: tuple[EnvironmentVariable, ...]
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    shared_memory: str | None
    training_name: str | None
    checkpoint: VolumeContext | None
    node_selector: Mapping[str, str]
    priority_class_name: str | None
    topology: Topology | None
    host_network: bool
    added_capabilities: tuple[str, ...]
    # All containers of the pod; the worker's own come from the job.
    pod_runs_as_non_root: bool
    security_context: Mapping[str, bool | int]
    # Mounted where the root file system is read-only and the job mounts nothing there.
    temporary_directory: str | None
    fs_group: int | None
    device_taints: tuple[str, ...]
    toleration_seconds: int
    grace_seconds: int
    probe_grace_seconds: int
    agent_port: int
    termination_log: str
    state_directory: str
    podinfo_directory: str
    training_directory: str


def training_name(job: JobIdentity) -> str:
    """Name of the ConfigMap that holds spec.training."""
    return f"{job.name}-training"


def child_context(job: JobIdentity, name: str, labels: Mapping[str, str] | None = None) -> ChildContext:
    """Name, labels and owner of a child."""
    return ChildContext(
        name=name,
        namespace=job.namespace,
        labels={
            JOB_NAME_LABEL: job.name,
            JOB_UID_LABEL: job.uid,
            **(labels or {}),
            MANAGED_BY_LABEL: "trainmaster",
        },
        owner=Owner(API_VERSION, KIND, job.name, job.uid),
    )


def set_context(
    job: JobIdentity,
    spec: JobSpec,
    group: GroupLayout,
    assignment: Assignment,
    replicas: int,
    settings: Settings,
) -> SetContext:
    """Everything that a group's StatefulSet is rendered from."""
    bundled = is_bundled(spec.image)
    devices = extended_resources(group.resources, group.accelerator, spec.interconnect)
    requests, limits = _requests_and_limits(group.resources)
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
        bundled=bundled,
        agent=BUNDLED_AGENT if bundled else INSTALLED_AGENT,
        agent_image=settings.agent_image,
        agent_image_pull_policy=settings.agent_image_pull_policy,
        arguments=_arguments(spec),
        environment=(*_environment(job, spec, group), *_trust(job, settings)),
        requests={**requests, **devices},
        limits={**limits, **devices},
        shared_memory=_shared_memory(group.resources),
        training_name=None if spec.training is None else training_name(job),
        checkpoint=None if checkpoint is None else _volume(checkpoint.path, checkpoint.volume),
        node_selector=dict(group.node_selector),
        priority_class_name=spec.scheduling.priority_class_name,
        topology=spec.scheduling.topology,
        host_network=spec.interconnect.host_network,
        pod_runs_as_non_root=bundled and security.get("runAsUser") != 0,
        security_context=security,
        temporary_directory=_temporary_directory(spec),
        added_capabilities=("IPC_LOCK",) if spec.interconnect.rdma is not None else (),
        fs_group=BUNDLED_GROUP if bundled else None,
        device_taints=(resource_name(group.accelerator),) if group.resources.gpus else (),
        toleration_seconds=toleration_seconds(spec.failure_policy.nodes.lost_after_seconds),
        grace_seconds=pod_grace_seconds(spec),
        probe_grace_seconds=min(pod_grace_seconds(spec), PROBE_GRACE_SECONDS),
        agent_port=AGENT_PORT,
        termination_log=TERMINATION_LOG,
        state_directory=STATE_DIRECTORY,
        podinfo_directory=PODINFO_DIRECTORY,
        training_directory=TRAINING_DIRECTORY,
    )


def pod_grace_seconds(spec: JobSpec) -> int:
    """The pods' terminationGracePeriodSeconds, which the job may set in its podTemplate."""
    asked = spec.pod_template.grace_seconds if spec.pod_template is not None else None
    return GRACE_SECONDS if asked is None else asked


def rank_grace_seconds(spec: JobSpec) -> int:
    """What ranks get between SIGTERM and SIGKILL at a planned stop: the pod's grace period less the kubelet's part."""
    return max(pod_grace_seconds(spec) - GRACE_RESERVE_SECONDS, 1)


def _arguments(spec: JobSpec) -> tuple[str, ...]:
    """The user's program. Only the bundled image may leave `command` out; then the loop reads `training` by itself."""
    if spec.command is not None:
        return (*spec.command, *spec.args)
    config = () if spec.training is None or "--config" in spec.args else ("--config", TRAINING_FILE)
    return (*BUNDLED_COMMAND, *config, *spec.args)


def _environment(job: JobIdentity, spec: JobSpec, group: GroupLayout) -> tuple[EnvironmentVariable, ...]:
    """docs/protocol.md, "Files and environment", in its order."""
    layout = worker_layout(job, spec)
    nodes = str(worker_count(layout))
    processes = str(group.processes)
    master = stable_hosts(job, spec)[0]
    index = f"metadata.labels['{POD_INDEX_LABEL}']"
    value = EnvironmentVariable
    variables = [
        value("MASTER_ADDR", master),
        value("MASTER_PORT", str(DEFAULT_MASTER_PORT)),
        value("NNODES", nodes),
        value("NPROC_PER_NODE", processes),
        value("WORLD_SIZE", str(world_size(layout))),
        value("NODE_RANK", field_path=index),
    ]
    if all(other.processes == 1 for other in layout):
        variables.append(value("RANK", field_path=index))
    variables += [
        value("PET_NNODES", nodes),
        value("PET_NPROC_PER_NODE", processes),
        value("PET_NODE_RANK", field_path=index),
        value("PET_MASTER_ADDR", master),
        value("PET_MASTER_PORT", str(DEFAULT_MASTER_PORT)),
        value("PET_RDZV_BACKEND", "static"),
        value("PET_MAX_RESTARTS", "0"),
        value("TRAINMASTER_JOB", job.name),
        value("TRAINMASTER_JOB_UID", job.uid),
        value("TRAINMASTER_NAMESPACE", job.namespace),
        value("TRAINMASTER_WORKER", field_path=index),
        value("TRAINMASTER_POD_NAME", field_path="metadata.name"),
        value("TRAINMASTER_POD_UID", field_path="metadata.uid"),
        value("TRAINMASTER_POD_IP", field_path="status.podIP"),
        value("TRAINMASTER_NODE_NAME", field_path="spec.nodeName"),
        value("TRAINMASTER_ASSIGNMENT_FILE", f"{PODINFO_DIRECTORY}/assignment"),
        value("TRAINMASTER_STATE_DIR", STATE_DIRECTORY),
        value("TRAINMASTER_TERMINATION_LOG", TERMINATION_LOG),
        value("TRAINMASTER_AGENT_PORT", str(AGENT_PORT)),
        value("TRAINMASTER_LAUNCHER", spec.launcher),
        value("TRAINMASTER_BACKEND", spec.backend),
        value("TRAINMASTER_GRACE_SECONDS", str(rank_grace_seconds(spec))),
        value("TRAINMASTER_PROGRESS_TIMEOUT", _seconds(spec.failure_policy.hang.progress_seconds)),
        value("TRAINMASTER_FIRST_STEP_TIMEOUT", _seconds(spec.failure_policy.hang.first_step_seconds)),
    ]
    if spec.setup is not None:
        variables.append(value("TRAINMASTER_SETUP", _literal(spec.setup)))
    if spec.checkpoint is not None:
        variables.append(value("TRAINMASTER_CHECKPOINT_DIR", _literal(spec.checkpoint.path)))
    if _read_only(spec):
        # Torch Inductor's own choice asks for the user's name, which a user that no image knows hasn't.
        variables.append(value("HOME", TEMPORARY_DIRECTORY))
        variables.append(value("TORCHINDUCTOR_CACHE_DIR", f"{TEMPORARY_DIRECTORY}/torchinductor"))
    collectives = interconnect_environment(group.resources, group.accelerator, spec.interconnect)
    variables += [value(name, text) for name, text in collectives.items()]
    return tuple(variables)


def _read_only(spec: JobSpec) -> bool:
    return spec.security_context is not None and spec.security_context.read_only_root_filesystem is True


def _temporary_directory(spec: JobSpec) -> str | None:
    taken = spec.checkpoint is not None and spec.checkpoint.path.rstrip("/") == TEMPORARY_DIRECTORY
    return TEMPORARY_DIRECTORY if _read_only(spec) and not taken else None


def _trust(job: JobIdentity, settings: Settings) -> tuple[EnvironmentVariable, ...]:
    """Whose assignments the agent takes, and what it derives the job's token from."""
    if settings.keys is None:
        return ()
    secret = settings.keys.agents_secret(job.namespace)
    return (
        EnvironmentVariable(PUBLIC_KEYS_VARIABLE, settings.keys.public_keys),
        EnvironmentVariable("TRAINMASTER_AGENTS_SECRET", secret_name=secret.name, secret_key=AGENTS_SECRET_KEY),
    )


def _seconds(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _literal(text: str) -> str:
    """A value that the kubelet hands on as it is: it expands $(NAME) and turns $$ into $ in every variable
    (k8s.io/kubernetes/third_party/forked/golang/expansion), which would break a shell's own $$ and $(...)."""
    return text.replace("$", "$$")


def _requests_and_limits(resources: Resources) -> tuple[dict[str, str], dict[str, str]]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    cpu = resources.cpu
    if isinstance(cpu, CPU):
        if cpu.request is not None:
            requests["cpu"] = str(cpu.request)
        if cpu.limit is not None:
            limits["cpu"] = str(cpu.limit)
    elif cpu is not None:
        requests["cpu"] = limits["cpu"] = str(cpu)
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = str(resources.memory)
    return requests, limits


def _shared_memory(resources: Resources) -> str | None:
    if resources.shared_memory is not None:
        return str(resources.shared_memory)
    return DEFAULT_SHARED_MEMORY if resources.gpus else None


def _volume(path: str, volume: CheckpointVolume) -> VolumeContext:
    return VolumeContext(path=path, claim_name=volume.claim_name, host_path=volume.host_path)
