"""The spec of a DistributedTrainingJob is the user's request.

The models of its fields come before the model of the spec, in this order: policies for failures and for the whole job,
workers and their resources, scheduling, checkpoints, code, and other fields of the pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from trainmaster_operator.api.limits import KIB, MAX_BYTES
from trainmaster_operator.api.problems import either
from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.v1alpha1.names import DEFAULT_IMAGE, AnswerableReason
from trainmaster_operator.api.values import (
    CORES_HINT,
    FITS_CORES,
    MAX_GROUPS,
    NO_LIST,
    AbsolutePath,
    Argument,
    Backend,
    CompactMapping,
    Cores,
    Count,
    Devices,
    Digest,
    DNSLabel,
    ExtendedResource,
    Factor,
    Image,
    Interface,
    LabelKey,
    ModuleName,
    PositiveSeconds,
    PositiveWholeSeconds,
    ProcessesPerWorker,
    ProgressPattern,
    Quantity,
    RelativePath,
    Seconds,
    SpareCount,
    Subdomain,
    WholeSeconds,
    WorkerCount,
    show,
)
from trainmaster_operator.wire.log_rules import GROUPS


class SpecModel(BaseModel):
    """SpecModel is frozen and camelCase in JSON. It refuses unknown fields (see `api.field_messages`)."""

    # A model is built when it is first used. Commands that only read a status never need the spec's models.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Removes known fields that are null, as the API server does when it sets defaults (KEP-1523)."""
        if not isinstance(given, dict):
            return given
        known = {info.alias for info in cls.model_fields.values()}
        return {name: value for name, value in given.items() if value is not None or name not in known}


class Backoff(SpecModel):
    """Backoff is the wait before a counted restart: initialSeconds x factor^(n-1), at most maxSeconds."""

    initial_seconds: Seconds = Field(0, description="Wait before the first restart, in seconds.")
    factor: Factor = Field(2, description="Factor by which the wait grows with each restart.")
    max_seconds: Seconds = Field(300, description="Maximum wait, in seconds.")


def _answerable(reason: Any) -> Any:
    """Explains why rules can't match a reason. Other words are refused as unknown."""
    names = get_args(AnswerableReason)
    if isinstance(reason, str) and reason in REASONS and reason not in names:
        raise PydanticCustomError(
            "reason",
            "{shown} can't be answered by a rule: a disruption never counts, and what keeps a job from starting or "
            "ends all of it fails it; use {names}",
            {"shown": show(reason), "names": either(names)},
        )
    return reason


class FailureRule(SpecModel):
    """FailureRule decides about failures with certain exit codes or reasons. The first matching rule counts."""

    exit_codes: list[Annotated[StrictInt, Field(ge=1, le=255)]] | None = Field(
        None, min_length=1, max_length=64, description="Exit codes that match; 128 + n for signal n."
    )
    reasons: list[Annotated[AnswerableReason, BeforeValidator(_answerable)]] | None = Field(
        None, min_length=1, max_length=32, description="Failure reasons that match (OOMKilled, Hung, ...)."
    )
    action: Literal["Fail", "Restart", "Ignore"] = Field(
        ..., description="Fail: end the job. Restart: restart and count the restart. Ignore: restart without counting."
    )


class Hang(SpecModel):
    """Hang defines when missing progress is a hang."""

    progress_seconds: PositiveSeconds | None = Field(
        None,
        description="Seconds without a new step until a job counts as hung. By default this is learnt from the job's "
        "own steps: 30 times their 99th percentile, at least 60 and at most 600; 600 while a rank still computes.",
    )
    first_step_seconds: PositiveSeconds | None = Field(
        None,
        description="Seconds allowed until the first step, which includes loading and compiling. By default 1800 in "
        "the first attempt, and 5 times that attempt's own time, at least 60, in later ones.",
    )
    action: Literal["Restart", "Fail"] = Field("Restart", description="What to do about a hang.")


class NodePolicy(SpecModel):
    """NodePolicy defines what to do about failing nodes."""

    lost_after_seconds: PositiveSeconds = Field(
        40,
        description="Seconds until the workers of an unreachable node are replaced, and a worker that doesn't answer "
        "its peers in a hang.",
    )
    quarantine_after: Count = Field(
        3, description="Number of failures, possibly caused by a node, after which the job avoids that node; 0: never."
    )


class FailurePolicy(SpecModel):
    """FailurePolicy defines what to do about failures."""

    max_restarts: Count = Field(
        6, description="Counted restarts of the whole group before the job fails. Disruptions don't count."
    )
    backoff: Backoff = Field(default_factory=Backoff, description="Wait before a restart.")
    rules: list[FailureRule] = Field(
        default_factory=list, max_length=32, description="Rules by exit code and reason; the first match counts."
    )
    hang: Hang = Field(default_factory=Hang, description="When missing progress is a hang, and what to do about it.")
    startup_seconds: PositiveSeconds = Field(
        900,
        description="Seconds until all ranks must be up. After that the job fails with the reason why they aren't. The "
        "time continues while the job gives up its pods, for lack of nodes or quota, and requests all of them again.",
    )
    nodes: NodePolicy = Field(default_factory=NodePolicy, description="What to do about failing nodes.")


class LogRules(SpecModel):
    """LogRules defines which printed lines show progress, for scripts without a progress file."""

    pattern: ProgressPattern | None = Field(
        None,
        description="Python regular expression with named groups, searched in each line: step (?P<step>[0-9]+).* "
        f"loss (?P<loss>[0-9.]+). Groups: {', '.join(GROUPS)}. Only matching lines count as progress for "
        "failurePolicy.hang. Excludes preset.",
    )
    preset: Literal["auto", "huggingface", "lightning", "deepspeed", "torchtune", "tqdm", "none"] | None = Field(
        None,
        description="Lines of a framework. auto (the default) shows the progress of lines that only training prints, "
        "but doesn't use it to detect hangs. none uses only the progress file.",
    )


class WarmStart(SpecModel):
    """WarmStart configures the process that does slow imports once, and from which a worker's ranks are forked."""

    enabled: StrictBool = Field(
        True,
        description="Whether to use it. It works for commands like [python, script.py] and [python, -m, module] "
        "with launcher torchrun. Others start normally, and the worker's log has the reason.",
    )
    preload: list[ModuleName] = Field(
        default_factory=list,
        max_length=64,
        description="Modules to import besides torch and the packages that the first attempt imported. All ranks of a "
        "worker share their contents, so list modules that load data (mypackage.data). Ranks wait for these imports.",
    )


class RunPolicy(SpecModel):
    """RunPolicy defines suspension, deadlines and cleanup of the whole job."""

    suspend: StrictBool = Field(False, description="true stops the job with a checkpoint and releases its resources.")
    active_deadline_seconds: PositiveWholeSeconds | None = Field(
        None, description="Seconds that the job may be active, without suspended time, before it fails."
    )
    ttl_seconds_after_finished: WholeSeconds | None = Field(
        None, description="Seconds after its end until the finished job is deleted. Unset keeps the job."
    )
    keep_pods: Literal["None", "Failed", "All"] = Field(
        "None", description="Pods to keep after the job has ended. None releases their resources at once."
    )
    keep_logs: StrictBool = Field(
        True,
        description="Whether to keep the workers' output in ConfigMaps, which everyone who can view the namespace can "
        "read: the ends of logs (<name>-logs), and logs, stacks and errors of failed attempts (<name>-evidence). With "
        "false, only who failed, when and how is kept and shown in status and events.",
    )


class CPU(SpecModel):
    """CPU contains a request and a limit, in cores. The limit may exceed the node's free cores."""

    request: Cores | None = Field(None, description="Cores that the scheduler reserves for each worker.")
    limit: Cores | None = Field(None, description="Cores that each worker may use at most.")


# A structural schema can't describe "a quantity or an object", and CEL can't read a field without a type. So the schema
# checks the fields and their syntax through value rules, and the operator compares the request with the limit.
_CPU_SCHEMA = {
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": CPU.model_json_schema()["properties"],
    "allOf": [
        {"anyOf": [{"enum": [CORES_HINT]}, {**FITS_CORES, **NO_LIST}]},
        {
            "anyOf": [
                {"enum": ["a mapping of request and limit"]},
                {"maxProperties": 0},
                *({"required": names, "maxProperties": len(names)} for names in (["request"], ["limit"])),
                {"required": ["request", "limit"], "maxProperties": 2},
            ]
        },
    ],
}
CPUOrQuantity = Annotated[
    Annotated[CPU, Tag("object")] | Annotated[Cores, Tag("quantity")],
    Discriminator(lambda value: "object" if isinstance(value, CPU | Mapping) else "quantity"),
    WithJsonSchema(_CPU_SCHEMA),
]


class Resources(SpecModel):
    """Resources are what each worker requests."""

    gpus: Devices = Field(0, description="Number of accelerators for each worker, rendered as limit and equal request.")
    cpu: CPUOrQuantity | None = Field(
        None, description="CPU for each worker: one quantity for request and limit, or {request, limit}."
    )
    memory: Quantity | None = Field(
        None, description="Memory for each worker, as request and limit (128Gi). Files in /dev/shm count too."
    )
    shared_memory: Quantity | None = Field(
        None,
        description="Size of /dev/shm, a memory emptyDir. Default: 8Gi if gpus > 0, because NCCL and data loaders need "
        "more than the runtime's 64Mi; otherwise the runtime's default.",
    )


class Accelerator(SpecModel):
    """Accelerator is the kind of device that `resources.gpus` counts."""

    kind: Literal["nvidia", "amd", "intel", "ascend", "custom"] = Field(
        "nvidia", description="Vendor, which determines the extended resource and the backend that auto chooses."
    )
    resource_name: ExtendedResource | None = Field(
        None,
        description="Extended resource, if it isn't the usual one of the kind, such as a MIG profile "
        "(nvidia.com/mig-3g.20gb). Required for kind custom.",
    )


class RDMA(SpecModel):
    """RDMA is the resource of an RDMA device plugin."""

    resource_name: ExtendedResource = Field(..., description="Extended resource of the device plugin (rdma/hca).")
    count: Annotated[StrictInt, Field(ge=1, le=1024)] = Field(1, description="Devices for each worker.")


class Interconnect(SpecModel):
    """Interconnect configures the network of the workers' collectives."""

    nvlink: StrictBool | None = Field(
        None,
        description="false disables NVLink (NCCL's P2P and NVLS). true enables it if the GPUs have NVLink, regardless "
        "of the image's nccl.conf. Unset leaves the choice to NCCL.",
    )
    rdma: RDMA | None = Field(
        None,
        description="RDMA devices for each worker. The worker gets the capability IPC_LOCK to pin memory, so the "
        "namespace must allow more than the baseline Pod Security Standard.",
    )
    host_network: StrictBool = Field(
        False,
        description="Run the pods in the node's network. Needs a privileged namespace, and allows one worker per node.",
    )
    interface: Interface | None = Field(None, description="Network interface for NCCL, GLOO and HCCL (eth0).")
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = Field(
        None, description="Value of NCCL_DEBUG, or of its equivalent for other backends."
    )


class WorkerGroup(SpecModel):
    """WorkerGroup is a group of workers on one kind of machine. Each group becomes a StatefulSet."""

    name: DNSLabel = Field(..., description="Name of the group, unique in the job.")
    workers: WorkerCount = Field(..., description="Number of workers in the group.")
    spares: SpareCount | None = Field(
        None, description="Additional pods of the group, which take the places of lost workers of this group."
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of each worker in the group.")
    accelerator: Accelerator | None = Field(None, description="Accelerator of the group. Default: the job's.")
    node_selector: dict[str, str] | None = Field(None, max_length=64, description="Node labels that its pods need.")


class Elastic(SpecModel):
    """Elastic is the range in which the number of workers may change."""

    min_workers: WorkerCount = Field(..., description="Minimum number of workers to train with.")
    max_workers: WorkerCount = Field(..., description="Maximum number of workers.")


class Gang(SpecModel):
    """Gang schedules all workers together, or none."""

    scheduler: Literal["volcano", "coscheduling", "kubernetes", "kueue"] = Field(
        ...,
        description="Gang scheduler: Volcano, the coscheduling plugin (set podTemplate.spec.schedulerName, unless it "
        "is part of the default scheduler), Kubernetes itself (1.36, feature gate GenericWorkload), or Kueue, which "
        "admits the whole job by a Workload.",
    )
    timeout_seconds: PositiveWholeSeconds | None = Field(
        None,
        description="Seconds that the gang may wait for nodes before the job fails. Unset waits forever. "
        "startupSeconds begins when the gang has its nodes. Time in Kueue's queue doesn't count.",
    )


class Topology(SpecModel):
    """Topology places workers near each other, or apart."""

    key: LabelKey = Field(
        ...,
        description="Node label that names the domain (topology.kubernetes.io/rack). If the operator may read nodes, "
        "workers of one domain also get neighbouring ranks.",
    )
    mode: Literal["Pack", "Spread"] = Field("Pack", description="Pack: all in one domain. Spread: evenly over domains.")
    required: StrictBool = Field(
        False, description="Whether a worker waits if it can't be placed like this. false places it anywhere."
    )


class Scheduling(SpecModel):
    """Scheduling defines the gang, queue, priority and topology of the pods."""

    gang: Gang | None = Field(None, description="Gang scheduling.")
    queue: Subdomain | None = Field(None, description="Queue of Volcano, or LocalQueue of Kueue, where it is required.")
    priority_class_name: Subdomain | None = Field(None, description="PriorityClass of the pods.")
    topology: Topology | None = Field(None, description="Pack or spread workers over a topology.")


class CheckpointVolume(SpecModel):
    """CheckpointVolume is the volume for checkpoints."""

    claim_name: Subdomain | None = Field(
        None, description="PersistentVolumeClaim, mounted by every worker (RWX for several nodes)."
    )
    host_path: AbsolutePath | None = Field(
        None,
        description="Folder on the node, created if missing, for one node or a shared mount. Needs a privileged "
        "namespace.",
    )
    empty_dir: StrictBool | None = Field(
        None, description="Whether to use a folder that exists only as long as the pod, for experiments."
    )


class Checkpoint(SpecModel):
    """Checkpoint defines the volume for checkpoints and its mount path."""

    volume: CheckpointVolume = Field(..., description="Exactly one of claimName, hostPath, emptyDir.")
    path: AbsolutePath = Field("/checkpoints", description="Mount path, also in TRAINMASTER_CHECKPOINT_DIR.")


class PodTemplateMetadata(SpecModel):
    """PodTemplateMetadata contains labels and annotations to add to the pods."""

    labels: dict[str, str] | None = Field(None, description="Labels to add.")
    annotations: dict[str, str] | None = Field(None, description="Annotations to add.")


class PodTemplate(SpecModel):
    """PodTemplate is a partial pod template, merged over the rendered one as by kubectl's strategic merge."""

    metadata: PodTemplateMetadata | None = Field(None, description="Labels and annotations to add.")
    spec: CompactMapping | None = Field(
        None,
        description="A partial PodSpec. containers, initContainers, volumes, env, ports and volumeMounts merge by "
        "their keys; other lists are replaced. null deletes a field, and so does `$patch: delete` in a mapping "
        "(kubectl apply without --server-side drops nulls when it creates an object). The worker's container is "
        "called worker. The operator refuses changes of what Trainmaster relies on: command, restartPolicy, its "
        "variables and volumes.",
    )

    @cached_property
    def grace_seconds(self) -> int | None:
        """Returns spec.terminationGracePeriodSeconds, which every reconciliation reads."""
        asked = self.spec.value().get("terminationGracePeriodSeconds") if self.spec is not None else None
        return asked if isinstance(asked, int) else None


class SecurityContext(SpecModel):
    """SecurityContext applies to the workers. Its fields are named like those of a container's securityContext."""

    read_only_root_filesystem: StrictBool | None = Field(
        None,
        description="Whether the image is read-only. If so, /tmp is an emptyDir and HOME is /tmp, for the caches of "
        "torch, Triton and the hub.",
    )
    run_as_non_root: StrictBool | None = Field(
        None,
        description="Whether the kubelet refuses to start a worker as root. Default: true for the bundled image. An "
        "image whose USER is a name needs runAsUser too.",
    )
    run_as_user: Annotated[StrictInt, Field(ge=0, le=2_147_483_647)] | None = Field(
        None, description="User id of the worker's processes. Default: the image's USER."
    )


class CodeClaim(SpecModel):
    """CodeClaim is a volume with archives of code."""

    claim_name: Subdomain = Field(
        ..., description="PersistentVolumeClaim, mounted by every worker (RWX or ROX for several nodes)."
    )
    path: RelativePath = Field("trainmaster-code", description="Folder in the volume with the archive <digest>.tar.gz.")


class Code(SpecModel):
    """Code is an archive (tar, gzip) that each worker unpacks into a folder, in which its ranks then start."""

    digest: Digest = Field(
        ...,
        description="SHA-256 of the archive. Changing it, once the new archive is in place, stops the ranks with a "
        "checkpoint and restarts them with the new code in the same pods. kubectl dtj push does both.",
    )
    config_map: Subdomain | None = Field(
        None, description="ConfigMap with the archive as code.tar.gz in its binaryData, up to 700 KB."
    )
    claim: CodeClaim | None = Field(None, description="Volume with the archive.")


class JobSpec(SpecModel):
    """JobSpec is what the user asks for."""

    image: Image = Field(DEFAULT_IMAGE, description="Image of the workers: any with Python 3.9 or newer.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When to pull the image."
    )
    command: list[Argument] | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Program that each worker's launcher starts ([python, train.py]). In command and args, $(NAME) "
        "stands for a variable of the container, but an attempt's variables, such as RANK, are set later: the program "
        "reads them, or a shell (sh -c) expands $RANK. Required unless the image is the bundled one, which trains by "
        "`training`.",
    )
    args: list[Argument] = Field(default_factory=list, max_length=1024, description="Arguments after the command.")
    code: Code | None = Field(None, description="Code that isn't in the image. The ranks start in its folder.")
    training: CompactMapping | None = Field(
        None,
        description="Configuration of the bundled loop, mounted as /etc/trainmaster/training.yaml. At most "
        f"{MAX_BYTES['training'] // KIB} KiB as JSON.",
    )
    setup: str | None = Field(
        None,
        min_length=1,
        max_length=8192,
        description="Shell line that runs before the launcher and can change its environment "
        "(source /opt/toolkit/set_env.sh). Messages don't quote it, but everyone who can view the job can read it: "
        "keep secrets in a Secret, and get variables from it by podTemplate.",
    )
    launcher: Literal["torchrun", "exec"] = Field(
        "torchrun",
        description="torchrun starts processesPerWorker ranks in each worker. exec starts the command once, with the "
        "environment variables of the ranks, when the agents of all workers have joined.",
    )
    warm_start: WarmStart = Field(default_factory=WarmStart, description="Starts ranks within 0.1 s after a fault.")
    backend: Backend = Field(
        "auto",
        description="Backend of torch.distributed (nccl, gloo, hccl, xccl, ...). auto chooses it by the accelerator.",
    )
    workers: WorkerCount | None = Field(None, description="Number of workers (pods) of a job without workerGroups.")
    spares: SpareCount | None = Field(
        None,
        description="Additional pods that are scheduled and wait without a rank. A running spare takes a lost worker's "
        "place at once, and the lost worker's new pod becomes the spare. The job never waits for spares. Worker groups "
        "have their own spares.",
    )
    worker_groups: list[WorkerGroup] | None = Field(
        None,
        min_length=1,
        max_length=MAX_GROUPS,
        description="Several kinds of machine in one job, in place of workers and resources.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    processes_per_worker: ProcessesPerWorker = Field(
        "auto",
        description="Ranks in each worker. auto is the number of accelerators, at least 1; with launcher exec it is 1.",
    )
    resources: Resources = Field(default_factory=Resources, description="Resources of each worker.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="Accelerator that resources.gpus counts.")
    interconnect: Interconnect = Field(default_factory=Interconnect, description="Network of the collectives.")
    elastic: Elastic | None = Field(None, description="Range of the number of workers, if it may change.")
    failure_policy: FailurePolicy = Field(default_factory=FailurePolicy, description="What to do about failures.")
    progress: LogRules | None = Field(
        None,
        description="Which printed lines show progress. Scripts that write a progress file, and Hugging Face's "
        "Trainer, don't need it.",
    )
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="Suspension, deadlines and cleanup.")
    success_policy: Literal["AllWorkers", "RankZero"] = Field(
        "AllWorkers",
        description="When the job has succeeded: after all workers exited with 0, or the worker with rank 0 did.",
    )
    scheduling: Scheduling = Field(default_factory=Scheduling, description="Gang, queue, priority and topology.")
    checkpoint: Checkpoint | None = Field(None, description="Volume for checkpoints.")
    security_context: SecurityContext | None = Field(
        None,
        description="Further restrictions of the workers' containers. These always apply unless podTemplate "
        "overrides them: no privilege escalation, no capabilities, the runtime's seccomp profile.",
    )
    pod_template: PodTemplate | None = Field(
        None,
        description="Other fields of the pods, merged over the rendered pods by a strategic merge. At "
        f"most {MAX_BYTES['podTemplate'] // KIB} KiB as JSON.",
    )

    @property
    def groups(self) -> list[WorkerGroup]:
        """Returns the worker groups. A job that defines no groups has one group, called worker."""
        return self.worker_groups or [
            WorkerGroup.model_construct(
                name="worker", workers=self.workers or 0, spares=self.spares, resources=self.resources
            )
        ]
