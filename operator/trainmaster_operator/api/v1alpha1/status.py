"""The status of a DistributedTrainingJob contains the operator's observations and decisions."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainmaster_operator.api.v1alpha1.names import Phase


class StatusModel(BaseModel):
    """StatusModel is frozen and camelCase in JSON. It ignores unknown fields, which a newer operator may write."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, defer_build=True
    )


class Condition(StatusModel):
    """Condition is as in metav1.Condition."""

    type: str = Field(..., description="Type of the condition, such as Running or Failed.")
    status: Literal["True", "False", "Unknown"] = Field(..., description="Whether the condition holds.")
    reason: str = Field(..., description="Reason in one word, such as AllRanksUp or Unschedulable.")
    message: str = Field("", description="Reason in a sentence.")
    last_transition_time: str = Field(..., description="When the condition's status last changed.")
    observed_generation: int | None = Field(None, description="metadata.generation that the condition refers to.")


class WorkerCounts(StatusModel):
    """WorkerCounts contains the numbers of workers."""

    desired: int = Field(0, description="Workers that the job should have.")
    created: int = Field(0, description="Pods that exist.")
    running: int = Field(0, description="Workers whose ranks are up.")
    finished: int = Field(0, description="Workers that exited with 0.")
    spares: int | None = Field(
        None, description="Spares that could take a lost worker's place at once. Unset if the job has no spares."
    )


class TimeSpent(StatusModel):
    """TimeSpent contains the seconds spent in each category. Their sum is the time from startTime to `until`."""

    until: str | None = Field(None, description="Time up to which the job's time is accounted.")
    productive: float | None = Field(None, description="Steps done for the first time.")
    recompute: float | None = Field(
        None,
        description="Work repeated after a restart: repeated steps, the step that the failure interrupted, and the "
        "time until the failure was reported.",
    )
    data: float | None = Field(None, description="Waiting for data, if the loop reports it (dataSeconds).")
    checkpoint: float | None = Field(None, description="Waiting for checkpoints.")
    evaluate: float | None = Field(None, description="Evaluation during training.")
    stall: float | None = Field(None, description="No progress: hangs until they were detected.")
    load: float | None = Field(
        None,
        description="From the ranks' start to the attempt's first step: imports, model, data, checkpoint.",
    )
    unreported: float | None = Field(
        None,
        description="From the ranks' start, if the script has run for a minute and never reported a step: loading or "
        "training, nobody knows. Not part of goodput.",
    )
    rendezvous: float | None = Field(None, description="From the containers' start until all ranks were up.")
    restart: float | None = Field(None, description="From a failure to the next attempt: back-off, wait for lost pods.")
    pull: float | None = Field(
        None, description="From the assignment of nodes to running containers: images, volumes, init containers."
    )
    schedule: float | None = Field(None, description="Waiting for nodes.")
    queue: float | None = Field(None, description="Waiting for admission, quota, or the job's turn in a queue.")
    finish: float | None = Field(None, description="From the last step to the job's end.")
    unobserved: float | None = Field(
        None, description="Time of an attempt that ended while no operator was running. Not part of goodput."
    )
    suspended: float | None = Field(None, description="Suspended (runPolicy.suspend). Not part of goodput.")


TIME_CATEGORIES = tuple(name for name in TimeSpent.model_fields if name != "until")
# Maximum number of failures in a status. A shorter list is complete.
MAX_FAILURES = 10


class Stall(StatusModel):
    """Stall describes ranks that have made no progress for much longer than usual in this job.

    It is set long before the limits of failurePolicy.hang, and removed with the next progress.
    """

    since: str = Field(..., description="Time of the last progress.")
    section: str | None = Field(None, description="Activity of the ranks since then, as in progress.section.")
    usual_seconds: float | None = Field(None, description="Seconds that a step (or this section) usually takes.")
    rank: int | None = Field(None, description="The rank for which the others wait, as far as it is known.")
    message: str = Field("", description="Where this rank is, with its line of code, and what the others wait for.")
    restart_at: str | None = Field(None, description="When the ranks are restarted if this lasts. Unset for never.")


class Progress(StatusModel):
    """Progress is the training's progress as the ranks report it."""

    attempt: int | None = Field(None, description="The attempt that reported this.")
    step: int | None = Field(None, description="Optimizer steps done.")
    furthest_step: int | None = Field(
        None,
        description="Furthest step of any attempt. Until a later attempt gets there, its steps count as recompute.",
    )
    total_steps: int | None = Field(None, description="Total number of steps.")
    epoch: float | None = Field(None, description="Epochs done, as a decimal.")
    loss: float | None = Field(None, description="Last training loss of rank 0.")
    samples_per_second: float | None = Field(None, description="Samples per second of all ranks together.")
    eta_seconds: float | None = Field(None, description="Seconds until the end at the current speed.")
    section: str | None = Field(
        None, description="Current activity of the ranks: setup, data, train, evaluate, checkpoint, finish."
    )
    data_seconds: float | None = Field(
        None, description="Seconds that this attempt waited for data, as accounted in status.timeSpent."
    )
    checkpoint_seconds: float | None = Field(
        None, description="Seconds that this attempt waited for checkpoints, as accounted in status.timeSpent."
    )
    evaluate_seconds: float | None = Field(
        None, description="Seconds of evaluation in this attempt, as accounted in status.timeSpent."
    )
    goodput: float | None = Field(
        None,
        description="Share (0 to 1) of the time since the start, without suspended time, that was spent on new steps. "
        "status.timeSpent accounts for the rest.",
    )
    result: dict[str, float] | None = Field(None, description="Figures that the script reported, such as accuracy.")
    stall: Stall | None = Field(None, description="Set while the ranks make no progress for much longer than usual.")
    notice: str | None = Field(
        None,
        description="Why the progress isn't known or is doubtful, and what mends it: a script that reports no steps, "
        "or ranks that never formed a group.",
    )
    reported_at: str | None = Field(None, description="Time of the report.")


class RecoveryTimes(StatusModel):
    """RecoveryTimes contains the seconds from a fault to the end of the next attempt's first step.

    The parts are consecutive. Each lasts until the slowest worker has finished it. Their sum is `seconds`.
    """

    seconds: float = Field(..., description="From the fault to the end of the first step.")
    repeated_steps: int | None = Field(
        None,
        description="Steps to repeat until the first new one. If the script doesn't report startStep, they are counted "
        "from its first reported step.",
    )
    detected: float | None = Field(None, description="Until its detection: for a hang, since the last progress.")
    assigned: float | None = Field(None, description="Until the workers had been assigned the next attempt.")
    stopped: float | None = Field(None, description="Until the ranks of the failed attempt had stopped.")
    launched: float | None = Field(None, description="Until the ranks of the next attempt had been started.")
    joined: float | None = Field(
        None, description="Until the ranks had formed their process group, if the loop reports it (joinedAt)."
    )
    restored: float | None = Field(
        None, description="Until the ranks had restored their state, if the loop reports it (restoredAt)."
    )
    first_step: float | None = Field(None, description="Until the ranks had done their first step.")


class Failure(StatusModel):
    """Failure is one failure of an attempt: who failed first, and how. Identical failures in a row are one entry."""

    attempt: int = Field(..., description="The attempt that the failure ended.")
    reason: str = Field(..., description="Reason in one word (docs/reasons.md), such as OOMKilled.")
    message: str = Field("", description="The cause, then the rank or worker that failed, and how it ended.")
    worker: int | None = Field(None, description="Index of the worker that failed first.")
    rank: int | None = Field(None, description="The worker's rank that failed first, if known.")
    pod: str | None = Field(None, description="Pod of that worker.")
    node: str | None = Field(None, description="Node of the pod.")
    exit_code: int | None = Field(None, description="Exit code; 128 + n for signal n.")
    exception: str | None = Field(None, description="The exception that ended the rank, such as `ValueError: lost`.")
    location: str | None = Field(
        None, description="The newest line of the user's own code in its traceback, such as `train.py:41 in step`."
    )
    count: int | None = Field(
        None,
        description="How many failures in a row were identical to this one, which is the newest. Unset for one.",
    )
    first_attempt: int | None = Field(None, description="Attempt of the first failure that `count` contains.")
    first_failed_at: str | None = Field(None, description="When the first failure that `count` contains happened.")
    counted: bool = Field(True, description="Whether it counts against failurePolicy.maxRestarts.")
    provisional: bool | None = Field(
        None, description="true while the operator waits briefly for a better cause before it ends the job."
    )
    not_continued: str | None = Field(None, description="Why the other ranks couldn't continue, if some support it.")
    failed_at: str = Field(..., description="When the attempt failed.")
    step: int | None = Field(None, description="Furthest step of any attempt until then.")
    recovery: RecoveryTimes | None = Field(None, description="Time until the end of the next attempt's first step.")


class StacksRequest(StatusModel):
    """StacksRequest is a request for the stacks of all ranks, made by annotating the job."""

    id: str = Field(..., description="First 64 characters of the annotation's value.")
    asked_at: str = Field(..., description="When the workers were asked.")


class JobStatus(StatusModel):
    """JobStatus is what the operator observed and decided; it is the operator's only memory."""

    phase: Phase | None = Field(None, description="Phase of the job. The conditions have details.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Accepted, Running, Suspended, and at the end Succeeded or Failed, for kubectl wait.",
    )
    observed_generation: int | None = Field(None, description="metadata.generation that this status reflects.")
    attempt: int = Field(0, description="Number of the current attempt, from 1.")
    continues: int | None = Field(
        None,
        description="The last attempt in which all ranks were started, if the current attempt continues with their "
        "processes. Unset if the current attempt started all ranks.",
    )
    absent_ranks: list[int] = Field(
        default_factory=list,
        description="Ranks that are missing in the current attempt, because they were lost or aren't wanted. They join "
        "after they have restarted.",
    )
    training_with: str | None = Field(
        None,
        description="Workers that train while ranks are absent, such as `3 of 4 workers`. Unset if no rank is absent.",
    )
    restarts: int = Field(0, description="Restarts that count against maxRestarts.")
    disruptions: int = Field(0, description="Restarts that don't count: after deleted or evicted pods and lost nodes.")
    workers: WorkerCounts = Field(default_factory=WorkerCounts, description="Numbers of workers.")
    replicas: int = Field(0, description="Pods that exist, without spares, for the scale subresource.")
    selector: str | None = Field(None, description="Label selector of the pods, for the scale subresource.")
    worker_order: list[int] = Field(
        default_factory=list,
        description="Workers of the current attempt in rank order, for a job that is elastic, has spares or a "
        "topology.",
    )
    resizing: bool | None = Field(
        None, description="true while the ranks save a checkpoint and stop because the group changes."
    )
    stopping: bool | None = Field(
        None,
        description="true while the ranks save a checkpoint and stop, for new code or because a restart was requested.",
    )
    code_digest: str | None = Field(None, description="spec.code.digest of the code that the current attempt runs.")
    unproven_since: int | None = Field(
        None,
        description="First attempt with the current code. Unset once an attempt has finished a step. Until then, a "
        "failure that repeats itself at the start ends the job (FailsAtStart).",
    )
    restart_request: str | None = Field(
        None, description="Value of the annotation trainmaster.dev/restart when the current attempt was opened."
    )
    scheduling_backoff: bool | None = Field(
        None,
        description="true while the job waits without pods because not all of them found a node. It waits until "
        "nextAttemptTime.",
    )
    scheduling_backoffs: int = Field(0, description="How often the job gave up its nodes since all ranks were last up.")
    startup_start_time: str | None = Field(
        None, description="Start of startupSeconds if scheduling backoffs have interrupted the startup."
    )
    node_failures: dict[str, int] = Field(default_factory=dict, description="Failures that each node may have caused.")
    avoided_nodes: list[str] = Field(
        default_factory=list, description="Nodes that the job's pods avoid (failurePolicy.nodes.quarantineAfter)."
    )
    replacing_pod_uids: list[str] = Field(
        default_factory=list,
        alias="replacingPodUIDs",
        description="Pods that the operator replaces before the next attempt opens. Their loss isn't a disruption.",
    )
    pod_uids: list[str | None] = Field(
        default_factory=list,
        alias="podUIDs",
        description="Uids of the attempt's pods in rank order; null for a worker whose pod isn't known yet. For a "
        "worker that was missing at the start of the attempt, the uid of the lost pod.",
    )
    pod_restart_counts: list[int] = Field(
        default_factory=list,
        description="How often the worker container of each pod in podUIDs had ended when the attempt was opened. "
        "Later ends belong to the attempt.",
    )
    start_time: str | None = Field(None, description="When the operator started to process the job.")
    attempt_start_time: str | None = Field(None, description="When the current attempt was opened.")
    suspended_seconds: float = Field(0, description="Suspended seconds, which don't count for activeDeadlineSeconds.")
    completion_time: str | None = Field(None, description="When the job ended.")
    next_attempt_time: str | None = Field(None, description="Earliest time at which the next attempt opens.")
    progress: Progress | None = Field(None, description="Progress as the ranks report it.")
    time_spent: TimeSpent | None = Field(None, description="How the time since the start was spent.")
    stacks_request: StacksRequest | None = Field(
        None,
        description="Newest request for stacks (annotation trainmaster.dev/stacks) sent to the workers. The ConfigMap "
        "<job>-stacks has the answers.",
    )
    failures: list[Failure] = Field(default_factory=list, description="Failures that ended attempts, newest first.")
