"""The spec of a DistributedTrainingJob is what a user asks for; the modules beside this one have its parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainmaster_operator.api.limits import KIB, MAX_BYTES
from trainmaster_operator.api.v1alpha1.base_models import SpecModel
from trainmaster_operator.api.v1alpha1.names import DEFAULT_IMAGE
from trainmaster_operator.api.v1alpha1.pods import Checkpoint, Code, PodTemplate, Scheduling, SecurityContext
from trainmaster_operator.api.v1alpha1.policies import FailurePolicy, LogRules, RunPolicy, WarmStart
from trainmaster_operator.api.v1alpha1.workers import Accelerator, Elastic, Interconnect, Resources, WorkerGroup
from trainmaster_operator.api.values import (
    MAX_GROUPS,
    Argument,
    Backend,
    CompactMapping,
    Image,
    ProcessesPerWorker,
    SpareCount,
    WorkerCount,
)


class JobSpec(SpecModel):
    """JobSpec is what the user asks for."""

    image: Image = Field(DEFAULT_IMAGE, description="Image of the workers; any that has Python 3.9 or newer.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(None, description="As a container's.")
    command: list[Argument] | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Program that each worker's launcher starts ([python, train.py]); in it and in args, $(NAME) is "
        "the container's variable. Required unless the image is the bundled one, which trains as `training` says.",
    )
    args: list[Argument] = Field(default_factory=list, max_length=1024, description="Arguments after the command.")
    code: Code | None = Field(
        None, description="The user's code, where it isn't in the image; the ranks start in its folder."
    )
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
    warm_start: WarmStart = Field(
        default_factory=WarmStart, description="How ranks start within a tenth of a second after a fault."
    )
    backend: Backend = Field(
        "auto",
        description="Backend of torch.distributed (nccl, gloo, hccl, xccl, ...); auto chooses by the accelerator.",
    )
    workers: WorkerCount | None = Field(
        None, description="Number of workers (pods), one group. Not together with workerGroups."
    )
    spares: SpareCount | None = Field(
        None,
        description="Pods beyond the workers that are scheduled and wait, without a rank. One that runs takes a lost "
        "worker's place at once, and the pod that replaces the lost one is the new spare. The job never waits for "
        "spares. Not together with workerGroups, which have their own.",
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
    progress: LogRules | None = Field(
        None,
        description="Which lines that ranks print are their progress. Scripts that write a progress file, and Hugging "
        "Face's Trainer, need none.",
    )
    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="The job's life as a whole.")
    success_policy: Literal["AllWorkers", "RankZero"] = Field(
        "AllWorkers", description="When the job has succeeded: all workers exited with 0, or the one with rank 0."
    )
    scheduling: Scheduling = Field(default_factory=Scheduling, description="How the pods are scheduled.")
    checkpoint: Checkpoint | None = Field(None, description="Volume for checkpoints.")
    security_context: SecurityContext | None = Field(
        None,
        description="How far the workers' containers are kept in, beyond what always holds: no privilege escalation, "
        "no capabilities, the runtime's seccomp profile. podTemplate can override it.",
    )
    pod_template: PodTemplate | None = Field(
        None,
        description="Anything else that a pod can have, merged over what is rendered as Kubernetes merges. At "
        f"most {MAX_BYTES['podTemplate'] // KIB} KiB as JSON.",
    )
