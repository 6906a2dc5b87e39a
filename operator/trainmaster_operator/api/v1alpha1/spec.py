"""The spec of a DistributedTrainingJob is the user's request. The other modules define its parts."""

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

    image: Image = Field(DEFAULT_IMAGE, description="Image of the workers: any with Python 3.9 or newer.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When to pull the image."
    )
    command: list[Argument] | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Program that each worker's launcher starts ([python, train.py]). In command and args, $(NAME) "
        "stands for a variable of the container. Required unless the image is the bundled one, which trains by "
        "`training`.",
    )
    args: list[Argument] = Field(
        default_factory=list, max_length=1024, description="Arguments that follow the command."
    )
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
        "environment variables of the ranks.",
    )
    warm_start: WarmStart = Field(
        default_factory=WarmStart, description="Starts ranks within a tenth of a second after a fault."
    )
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
    accelerator: Accelerator = Field(
        default_factory=Accelerator, description="Kind of accelerator that resources.gpus counts."
    )
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
    scheduling: Scheduling = Field(
        default_factory=Scheduling, description="Gang, queue, priority and topology of the pods."
    )
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
        """Returns the worker groups. A job that defines none has one group, called worker."""
        return self.worker_groups or [
            WorkerGroup.model_construct(
                name="worker", workers=self.workers or 0, spares=self.spares, resources=self.resources
            )
        ]
