"""What a user asks for: the spec of a DistributedTrainingJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    Tag,
    WithJsonSchema,
    model_validator,
)

from trainmaster.api.compact import CompactMapping
from trainmaster.api.limits import KIB, MAX_BYTES, MAX_ITEMS
from trainmaster.api.v1alpha1.base_models import SpecModel
from trainmaster.api.v1alpha1.names import BUNDLED_IMAGE, FailureReason
from trainmaster.api.values import (
    MAX_GROUPS,
    MAX_QUANTITY_LENGTH,
    QUANTITY_PATTERN,
    AbsolutePath,
    Argument,
    Backend,
    Count,
    Devices,
    DNSLabel,
    ExtendedResource,
    Factor,
    Image,
    Interface,
    LabelKey,
    PositiveSeconds,
    PositiveWholeSeconds,
    ProcessesPerWorker,
    Quantity,
    Seconds,
    Subdomain,
    WholeSeconds,
    WorkerCount,
)


class CPU(SpecModel):
    """CPU request and limit, in cores. The limit may exceed what the node has left: CPU may be oversubscribed."""

    request: Quantity | None = Field(None, description="Cores that the scheduler reserves for each worker.")
    limit: Quantity | None = Field(None, description="Cores that each worker may use at most.")


# No structural schema says "a quantity or an object": the API server checks what fits both, the operator all of it.
CPUOrQuantity = Annotated[
    Annotated[CPU, Tag("object")] | Annotated[Quantity, Tag("quantity")],
    Discriminator(lambda value: "object" if isinstance(value, CPU | Mapping) else "quantity"),
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,
            "minimum": 0,
            "pattern": QUANTITY_PATTERN,
            "maxLength": MAX_QUANTITY_LENGTH,
        }
    ),
]


class Resources(SpecModel):
    """What each worker gets."""

    gpus: Devices = Field(
        0, description="Accelerators for each worker, rendered as limits and equal requests. A whole number."
    )
    cpu: CPUOrQuantity | None = Field(
        None, description="CPU for each worker: one quantity for request and limit, or {request, limit}."
    )
    memory: Quantity | None = Field(
        None, description="Memory for each worker, as request and limit (128Gi). What is in /dev/shm counts too."
    )
    shared_memory: Quantity | None = Field(
        None,
        description="Size of /dev/shm, a memory emptyDir. Default: 8Gi when gpus > 0 (NCCL and data loaders "
        "need more than the runtime's 64Mi), otherwise the runtime's default.",
    )


class Accelerator(SpecModel):
    """Which kind of accelerator `resources.gpus` counts."""

    kind: Literal["nvidia", "amd", "intel", "ascend", "custom"] = Field(
        "nvidia", description="Vendor: decides the extended resource's name and the backend that `auto` means."
    )
    resource_name: ExtendedResource | None = Field(
        None,
        description="Extended resource in place of the kind's own, such as a MIG profile "
        "(nvidia.com/mig-3g.20gb). Required for kind custom.",
    )


class RDMA(SpecModel):
    """An RDMA device plugin's resource."""

    resource_name: ExtendedResource = Field(..., description="Extended resource of the device plugin (rdma/hca).")
    count: Annotated[StrictInt, Field(ge=1, le=1024)] = Field(1, description="Devices for each worker.")


class Interconnect(SpecModel):
    """How the workers' collectives travel."""

    nvlink: StrictBool | None = Field(
        None,
        description="false turns NVLink (NCCL's P2P and NVLS) off; true turns it on where the GPUs have it, whatever "
        "the image's nccl.conf says; unset leaves it to NCCL.",
    )
    rdma: RDMA | None = Field(
        None,
        description="RDMA devices for each worker. Its containers get the capability IPC_LOCK, to pin memory, so the "
        "namespace must allow more than the baseline Pod Security Standard.",
    )
    host_network: StrictBool = Field(
        False, description="Run the pods in the node's network: one worker on a node, and a privileged namespace."
    )
    interface: Interface | None = Field(None, description="Network interface for NCCL, GLOO and HCCL (eth0).")
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = Field(
        None, description="NCCL_DEBUG and the other backends' equivalent."
    )


class WorkerGroup(SpecModel):
    """Workers of one kind of machine; each group becomes a StatefulSet."""

    name: DNSLabel = Field(..., description="Name of the group, unique in the job.")
    workers: WorkerCount = Field(..., description="Number of workers in the group.")
    resources: Resources = Field(default_factory=Resources, description="What each worker of the group gets.")
    accelerator: Accelerator | None = Field(None, description="Accelerator of the group; default: the job's.")
    node_selector: dict[str, str] | None = Field(
        None, max_length=64, description="Node labels that the group's pods need."
    )


class Elastic(SpecModel):
    """How far the number of workers may shrink and grow."""

    min_workers: WorkerCount = Field(..., description="Fewest workers that the job trains with.")
    max_workers: WorkerCount = Field(..., description="Most workers that the job is scaled to.")


class Backoff(SpecModel):
    """Waiting before a restart that counts: initialSeconds x factor^(n-1), at most maxSeconds."""

    initial_seconds: Seconds = Field(0, description="Seconds before the first restart.")
    factor: Factor = Field(2, description="Growth from one restart to the next.")
    max_seconds: Seconds = Field(300, description="Longest wait, in seconds.")


class FailureRule(SpecModel):
    """What to do after a failure with one of these exit codes or reasons. The first rule that matches wins."""

    exit_codes: list[Annotated[StrictInt, Field(ge=1, le=255)]] | None = Field(
        None, min_length=1, max_length=64, description="Exit codes that the rule matches; 128 + n for signal n."
    )
    reasons: list[FailureReason] | None = Field(
        None, min_length=1, max_length=32, description="Failure reasons that the rule matches (OOMKilled, Hung, ...)."
    )
    action: Literal["Fail", "Restart", "Ignore"] = Field(
        ..., description="Fail: end the job. Restart: restart and count it. Ignore: restart without counting it."
    )


class Hang(SpecModel):
    """When missing progress is a hang."""

    progress_seconds: PositiveSeconds = Field(
        600, description="Seconds without a new step after which a running job hangs."
    )
    first_step_seconds: PositiveSeconds = Field(
        1800, description="Seconds until the first step; compiling and loading take longer than a step."
    )
    action: Literal["Restart", "Fail"] = Field("Restart", description="What to do with a job that hangs.")


class NodePolicy(SpecModel):
    """What to do about nodes that fail."""

    lost_after_seconds: PositiveSeconds = Field(
        40,
        description="Seconds that a node may be unreachable before its workers are replaced, and that a worker may be "
        "silent, once its peers have found it so in a hang.",
    )
    quarantine_after: Count = Field(
        3, description="Failures that a node can have caused after which this job avoids it; 0: never."
    )


class FailurePolicy(SpecModel):
    """How failures are answered."""

    max_restarts: Count = Field(
        6, description="Restarts of the whole group that count before the job fails; disruptions don't count."
    )
    backoff: Backoff = Field(default_factory=Backoff, description="Waiting before a restart.")
    rules: list[FailureRule] = Field(
        default_factory=list, max_length=32, description="Rules by exit code and reason; the first match wins."
    )
    hang: Hang = Field(default_factory=Hang, description="When missing progress is a hang, and what follows.")
    startup_seconds: PositiveSeconds = Field(
        900, description="Seconds until all ranks must be up; then the job fails with the reason why they aren't."
    )
    nodes: NodePolicy = Field(default_factory=NodePolicy, description="What to do about nodes that fail.")


class RunPolicy(SpecModel):
    """The job's life as a whole."""

    suspend: StrictBool = Field(False, description="true stops the job with a checkpoint and frees its resources.")
    active_deadline_seconds: PositiveWholeSeconds | None = Field(
        None, description="Seconds that the job may be active, suspended time apart; then it fails."
    )
    ttl_seconds_after_finished: WholeSeconds | None = Field(
        None, description="Seconds after its end when the finished job is deleted; unset keeps it."
    )
    keep_pods: Literal["None", "Failed", "All"] = Field(
        "None", description="Pods to keep when the job has ended: None frees their resources at once."
    )
    keep_logs: StrictBool = Field(
        True,
        description="Whether what workers printed is kept in ConfigMaps, which all who may view the namespace can "
        "read: the ends of their logs (<name>-logs), and logs, stacks and errors in the evidence of failed attempts "
        "(<name>-evidence). false keeps who failed, when and how, and the status and events tell no more than that.",
    )


class Gang(SpecModel):
    """All workers are scheduled together, or none."""

    scheduler: Literal["volcano", "coscheduling", "kubernetes", "kueue"] = Field(
        ...,
        description="Whose PodGroup asks for the gang: Volcano's, the coscheduling plugin's (with podTemplate.spec."
        "schedulerName, unless it is in the default scheduler), Kubernetes' own (1.36, feature gate GenericWorkload). "
        "kueue: a Workload of Kueue, which admits the whole job.",
    )
    timeout_seconds: PositiveWholeSeconds | None = Field(
        None,
        description="Seconds that the job may wait for nodes for its gang before it fails; unset waits for ever. "
        "startupSeconds begins when the gang has its nodes. Time in Kueue's queue doesn't count.",
    )


class Topology(SpecModel):
    """Where workers stand to each other."""

    key: LabelKey = Field(
        ...,
        description="Node label that names the domain (topology.kubernetes.io/rack). Ranks follow it too: workers "
        "of one domain are neighbours, where the operator may read nodes.",
    )
    mode: Literal["Pack", "Spread"] = Field(
        "Pack", description="Pack: all workers in one domain. Spread: evenly over the domains."
    )
    required: StrictBool = Field(
        False,
        description="true: a worker that can't be placed so waits; false: it goes where there is room.",
    )


class Scheduling(SpecModel):
    """How the pods are scheduled."""

    gang: Gang | None = Field(None, description="Gang scheduling.")
    queue: Subdomain | None = Field(None, description="Volcano's Queue, or the LocalQueue of Kueue, which needs one.")
    priority_class_name: Subdomain | None = Field(None, description="PriorityClass of the pods.")
    topology: Topology | None = Field(None, description="Pack or spread workers over a topology.")


class CheckpointVolume(SpecModel):
    """Where checkpoints are kept."""

    claim_name: Subdomain | None = Field(
        None,
        description="PersistentVolumeClaim, mounted by every worker (RWX for several nodes).",
    )
    host_path: AbsolutePath | None = Field(
        None,
        description="Folder of the node, made where it is missing; for one node or a shared mount. Needs a privileged "
        "namespace.",
    )
    empty_dir: StrictBool | None = Field(
        None, description="true: a folder that lives as long as the pod; for trying things."
    )


class Checkpoint(SpecModel):
    """The checkpoint volume and where it is mounted."""

    volume: CheckpointVolume = Field(..., description="Exactly one of claimName, hostPath, emptyDir.")
    path: AbsolutePath = Field("/checkpoints", description="Mount path; TRAINMASTER_CHECKPOINT_DIR in the workers.")


# What a schema can bound of a PodSpec: the API server refuses longer lists at apply, the operator longer ones further
# down. Their items are free, and null deletes them.
_POD_LISTS = (
    "containers",
    "hostAliases",
    "imagePullSecrets",
    "initContainers",
    "readinessGates",
    "resourceClaims",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
)
_POD_SPEC_SCHEMA = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        name: {
            "type": "array",
            "maxItems": MAX_ITEMS,
            "nullable": True,
            "items": {"type": "object"},
            "description": "As in a PodSpec.",
        }
        for name in _POD_LISTS
    },
}


class PodTemplateMetadata(SpecModel):
    """Labels and annotations to add to the pods."""

    labels: dict[str, str] | None = Field(None, description="Labels to add.")
    annotations: dict[str, str] | None = Field(None, description="Annotations to add.")


class PodTemplate(SpecModel):
    """A partial pod template, merged over the rendered one as kubectl's strategic merge does."""

    metadata: PodTemplateMetadata | None = Field(None, description="Labels and annotations to add.")
    spec: Annotated[CompactMapping, Field(json_schema_extra=_POD_SPEC_SCHEMA)] | None = Field(
        None,
        description="A partial PodSpec. containers, initContainers, volumes, env, ports and volumeMounts merge by "
        "their keys, other lists are replaced; null deletes, and so does `$patch: delete` in a mapping (kubectl apply "
        "drops nulls when it creates an object, unless it applies with --server-side). The worker's container is "
        "called worker. What Trainmaster relies on (command, restartPolicy, its variables and volumes) can't be "
        "changed; the operator says so.",
    )
    # Asked for in every pass, where the rest is only rendered.
    _grace_seconds: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _with_grace_seconds(self) -> PodTemplate:
        asked = self.spec.value().get("terminationGracePeriodSeconds") if self.spec is not None else None
        self._grace_seconds = asked if isinstance(asked, int) else None
        return self

    @property
    def grace_seconds(self) -> int | None:
        """spec.terminationGracePeriodSeconds."""
        return self._grace_seconds


class SecurityContext(SpecModel):
    """How far the workers' containers are kept in: fields of a container's securityContext, by the same names."""

    read_only_root_filesystem: StrictBool | None = Field(
        None,
        description="true: nothing of the image can be written to. /tmp is an emptyDir then, and HOME is /tmp, for the "
        "caches of torch, Triton and the hub.",
    )
    run_as_non_root: StrictBool | None = Field(
        None,
        description="true: the kubelet refuses to start a worker as root. Unset, that holds for the bundled image. An "
        "image whose USER is a name needs runAsUser too.",
    )
    run_as_user: Annotated[StrictInt, Field(ge=0, le=2_147_483_647)] | None = Field(
        None, description="User id of the worker's processes; unset, the image's USER."
    )


class JobSpec(SpecModel):
    """What the user asks for."""

    image: Image = Field(
        f"{BUNDLED_IMAGE}:0.1.0", description="Image of the workers; any that has Python 3.9 or newer."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(None, description="As a container's.")
    command: list[Argument] | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Program that each worker's launcher starts ([python, train.py]); in it and in args, $(NAME) is "
        "the container's variable. Required unless the image is the bundled one, which trains as `training` says.",
    )
    args: list[Argument] = Field(default_factory=list, max_length=1024, description="Arguments after the command.")
    training: CompactMapping | None = Field(
        None,
        description="Configuration of the bundled loop, mounted as /etc/trainmaster/training.yaml. At most "
        f"{MAX_BYTES['training'] // KIB} KiB as JSON.",
    )
    setup: str | None = Field(
        None,
        min_length=1,
        max_length=8192,
        description="Shell line run before the launcher; the environment that it leaves is kept "
        "(source /opt/toolkit/set_env.sh). No message quotes it, but who may view the job can read it: secrets belong "
        "into a Secret, from which podTemplate takes variables.",
    )
    launcher: Literal["torchrun", "exec"] = Field(
        "torchrun",
        description="torchrun starts processesPerWorker ranks in each worker; exec starts the command once, the "
        "environment is enough.",
    )
    backend: Backend = Field(
        "auto",
        description="Backend of torch.distributed (nccl, gloo, hccl, xccl, ...); auto chooses by the accelerator.",
    )
    workers: WorkerCount | None = Field(
        None, description="Number of workers (pods), one group. Not together with workerGroups."
    )
    worker_groups: list[WorkerGroup] | None = Field(
        None,
        min_length=1,
        max_length=MAX_GROUPS,
        description="Several kinds of machine in one job. Not together with workers and resources.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    processes_per_worker: ProcessesPerWorker = Field(
        "auto",
        description="Ranks in each worker; auto is the number of accelerators or 1, and under the exec launcher 1.",
    )
    resources: Resources = Field(default_factory=Resources, description="What each worker gets.")
    accelerator: Accelerator = Field(
        default_factory=Accelerator, description="Which accelerator resources.gpus counts."
    )
    interconnect: Interconnect = Field(default_factory=Interconnect, description="How collectives travel.")
    elastic: Elastic | None = Field(None, description="How far the number of workers may shrink and grow.")
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy, description="How failures are answered.")
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="The job's life as a whole.")
    success_policy: Literal["AllWorkers", "RankZero"] = Field(
        "AllWorkers", description="When the job has succeeded: all workers exited with 0, or the one with rank 0."
    )
    scheduling: Scheduling = Field(default_factory=Scheduling, description="How the pods are scheduled.")
    checkpoint: Checkpoint | None = Field(None, description="Volume for checkpoints.")
    security_context: SecurityContext | None = Field(
        None,
        description="How far the workers' containers are kept in, beyond what always holds: no privilege escalation, "
        "no capabilities, the runtime's seccomp profile. podTemplate has the last word.",
    )
    pod_template: PodTemplate | None = Field(
        None,
        description="Anything else that a pod can have, merged over what is rendered as Kubernetes merges. At "
        f"most {MAX_BYTES['podTemplate'] // KIB} KiB as JSON.",
    )
