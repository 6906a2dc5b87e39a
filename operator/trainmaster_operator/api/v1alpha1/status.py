"""The status of a DistributedTrainingJob is what the operator observed and decided."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    Field,
)

from trainmaster_operator.api.v1alpha1.base_models import StatusModel
from trainmaster_operator.api.v1alpha1.names import Phase


class Condition(StatusModel):
    """Condition is as in metav1.Condition."""

    type: str = Field(..., description="What the condition is about, such as Running or Failed.")
    status: Literal["True", "False", "Unknown"] = Field(..., description="Whether it holds.")
    reason: str = Field(..., description="Why, in one word, such as AllRanksUp or Unschedulable.")
    message: str = Field("", description="Why, in a sentence.")
    last_transition_time: str = Field(..., description="When `status` changed last.")
    observed_generation: int | None = Field(None, description="metadata.generation that this is about.")


class WorkerCounts(StatusModel):
    """WorkerCounts says how many workers there are."""

    desired: int = Field(0, description="Workers of the current attempt's full group.")
    created: int = Field(0, description="Pods that exist.")
    running: int = Field(0, description="Workers whose ranks are up.")
    finished: int = Field(0, description="Workers that ended with 0.")
    spares: int | None = Field(
        None, description="Spares that could take a lost worker's place at once; unset where the job has none."
    )


class TimeSpent(StatusModel):
    """TimeSpent says where the job's time went, in seconds. The categories together are startTime to `until`."""

    until: str | None = Field(None, description="Up to when time has been booked.")
    productive: float | None = Field(None, description="Steps done for the first time.")
    recompute: float | None = Field(
        None, description="Work done again after a restart: repeated steps, and the step that the failure cut off."
    )
    data: float | None = Field(None, description="Steps that waited for data, where the loop reports it (dataSeconds).")
    checkpoint: float | None = Field(None, description="Steps that waited for checkpoints.")
    evaluate: float | None = Field(None, description="Evaluation during training.")
    stall: float | None = Field(None, description="No progress: hangs, until they were found.")
    load: float | None = Field(
        None,
        description="From the ranks' start to the attempt's first step: imports, model, data, checkpoint. All of it "
        "where a script reports no steps.",
    )
    rendezvous: float | None = Field(None, description="From the containers' start until all ranks were up.")
    restart: float | None = Field(
        None, description="From a failure until the next attempt: back-off, waiting for lost pods."
    )
    pull: float | None = Field(None, description="From nodes to running containers: images, volumes, init containers.")
    schedule: float | None = Field(None, description="Pods waited for nodes.")
    queue: float | None = Field(None, description="Waiting for admission, quota, or the job's turn.")
    finish: float | None = Field(None, description="From the last step to the job's end.")
    unobserved: float | None = Field(
        None,
        description="An attempt ran without an operator and ended before one was back; goodput leaves it out.",
    )
    suspended: float | None = Field(None, description="Suspended (runPolicy.suspend); goodput leaves it out.")


TIME_CATEGORIES = tuple(name for name in TimeSpent.model_fields if name != "until")


class Progress(StatusModel):
    """Progress says how far training is, as the ranks report it."""

    attempt: int | None = Field(None, description="The attempt that reported this.")
    step: int | None = Field(None, description="Optimizer steps done.")
    furthest_step: int | None = Field(
        None, description="The furthest step of any attempt; until a later attempt gets there, its steps are recompute."
    )
    total_steps: int | None = Field(None, description="Steps in all.")
    epoch: float | None = Field(None, description="Epochs done, with a fraction.")
    loss: float | None = Field(None, description="Last training loss of rank 0.")
    samples_per_second: float | None = Field(None, description="Samples a second of all ranks together.")
    eta_seconds: float | None = Field(None, description="Seconds until the end, at the present speed.")
    section: str | None = Field(
        None, description="What the ranks do: setup, data, train, evaluate, checkpoint, finish."
    )
    data_seconds: float | None = Field(
        None, description="Seconds that this attempt waited for data, as far as status.timeSpent has them."
    )
    checkpoint_seconds: float | None = Field(
        None, description="Seconds that this attempt waited for checkpoints, as far as status.timeSpent has them."
    )
    evaluate_seconds: float | None = Field(
        None, description="Seconds of evaluation in this attempt, as far as status.timeSpent has them."
    )
    goodput: float | None = Field(
        None,
        description="Share of the time since the start, suspended time apart, that went into steps done for the first "
        "time, 0 to 1; status.timeSpent says where the rest went.",
    )
    result: dict[str, float] | None = Field(None, description="Figures that the script reported, such as accuracy.")
    reported_at: str | None = Field(None, description="When this was reported.")


class RecoveryTimes(StatusModel):
    """RecoveryTimes says how long it took from a fault to the end of the next attempt's first step, in seconds.

    The parts follow each other, and each is up to the slowest worker; together they are `seconds`.
    """

    seconds: float = Field(..., description="From the fault to the end of the first step.")
    repeated_steps: int | None = Field(
        None,
        description="Steps to be done again until the first new one. Where the script doesn't report startStep, they "
        "are counted from the first step that was seen.",
    )
    detected: float | None = Field(
        None, description="Until the fault was detected: for a hang, since the last progress."
    )
    assigned: float | None = Field(None, description="Until the workers had been assigned the next attempt.")
    stopped: float | None = Field(None, description="Until the ranks of the failed attempt were gone.")
    launched: float | None = Field(None, description="Until the ranks of the next attempt had been started.")
    joined: float | None = Field(
        None, description="Until they had formed their process group, where the loop reports it (joinedAt)."
    )
    restored: float | None = Field(
        None, description="Until they had the state to go on from, where the loop reports it (restoredAt)."
    )
    first_step: float | None = Field(None, description="Until they had done their first step.")


class Failure(StatusModel):
    """Failure is one failure of an attempt: who failed first, and how."""

    attempt: int = Field(..., description="The attempt that it ended.")
    reason: str = Field(..., description="What happened, in one word (docs/reasons.md), such as OOMKilled.")
    message: str = Field("", description="Who, how, and the last lines that it wrote.")
    worker: int | None = Field(None, description="Index of the worker that failed first.")
    rank: int | None = Field(None, description="Its rank that failed first, where one rank is known to have.")
    pod: str | None = Field(None, description="Its pod.")
    node: str | None = Field(None, description="The node that the pod ran on.")
    exit_code: int | None = Field(None, description="Its exit code; 128 + n for signal n.")
    counted: bool = Field(True, description="Whether it took one of failurePolicy.maxRestarts.")
    provisional: bool | None = Field(
        None, description="true while the operator waits a moment for a better cause before it gives the job up."
    )
    not_continued: str | None = Field(
        None, description="Why the ranks that were left couldn't train on, where some of them could have."
    )
    failed_at: str = Field(..., description="When the attempt failed.")
    step: int | None = Field(None, description="The furthest step that any attempt had done by then.")
    recovery: RecoveryTimes | None = Field(
        None, description="How long it took until the next attempt had done its first step."
    )


class StacksRequest(StatusModel):
    """StacksRequest is a request for the stacks of all ranks, which anybody makes by annotating the job."""

    id: str = Field(..., description="The annotation's value, of which the first 64 characters count.")
    asked_at: str = Field(..., description="When the workers were asked.")


class JobStatus(StatusModel):
    """JobStatus is what the operator observed and decided; it is the operator's only memory."""

    phase: Phase | None = Field(None, description="Where the job is in its life; conditions say more.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Accepted, Running, Suspended, and at the end Succeeded or Failed; kubectl wait knows them.",
    )
    observed_generation: int | None = Field(None, description="metadata.generation that this status answers.")
    attempt: int = Field(0, description="The current try of the whole group, from 1.")
    continues: int | None = Field(
        None,
        description="The last attempt whose ranks all started anew, where the current one goes on with their "
        "processes; unset in an attempt whose ranks all started anew.",
    )
    absent_ranks: list[int] = Field(
        default_factory=list,
        description="Ranks that the current attempt trains without, because they were lost or aren't asked for. They "
        "join when they have started again.",
    )
    training_with: str | None = Field(
        None, description="Who trains while ranks are absent, such as `3 of 4 workers`; unset where none is."
    )
    restarts: int = Field(0, description="Restarts that counted against maxRestarts.")
    disruptions: int = Field(0, description="Restarts that didn't count: pods deleted, evicted, nodes lost.")
    workers: WorkerCounts = Field(default_factory=WorkerCounts, description="How many workers there are.")
    replicas: int = Field(0, description="Pods that exist, spares apart, for the scale subresource.")
    selector: str | None = Field(None, description="Label selector of the pods, for the scale subresource.")
    worker_order: list[int] = Field(
        default_factory=list,
        description="Workers of the current attempt in rank order, of an elastic job or one with spares or a topology.",
    )
    resizing: bool | None = Field(
        None, description="true while the ranks save a checkpoint and stop, because the group changes."
    )
    stopping: bool | None = Field(
        None,
        description="true while the ranks save a checkpoint and stop, for new code or because a restart was requested.",
    )
    code_digest: str | None = Field(None, description="spec.code.digest of the code that the current attempt runs.")
    restart_request: str | None = Field(
        None, description="Value of the annotation trainmaster.dev/restart that the current attempt answers."
    )
    scheduling_backoff: bool | None = Field(
        None,
        description="true while the job waits without pods, because not all of them found a node; nextAttemptTime says "
        "until when.",
    )
    scheduling_backoffs: int = Field(
        0, description="How often the job has given up its nodes to wait without pods since all its ranks were up."
    )
    startup_start_time: str | None = Field(
        None,
        description="When the startup began that scheduling backoffs have interrupted; startupSeconds run from there.",
    )
    node_failures: dict[str, int] = Field(
        default_factory=dict, description="Failures that the node can have caused, by the node's name."
    )
    avoided_nodes: list[str] = Field(
        default_factory=list, description="Nodes that the job's pods avoid (failurePolicy.nodes.quarantineAfter)."
    )
    replacing_pod_uids: list[str] = Field(
        default_factory=list,
        alias="replacingPodUIDs",
        description="Pods that the operator itself replaces before the next attempt opens: their loss is no "
        "disruption.",
    )
    pod_uids: list[str | None] = Field(
        default_factory=list,
        alias="podUIDs",
        description="Pods of the attempt in rank order; null for a worker whose pod isn't known yet. A worker that the "
        "attempt began without has the pod that was lost.",
    )
    pod_restart_counts: list[int] = Field(
        default_factory=list,
        description="How often the worker container of each of podUIDs had ended when the attempt was opened; later "
        "ends belong to the attempt.",
    )
    start_time: str | None = Field(None, description="When the operator started to process the job.")
    attempt_start_time: str | None = Field(None, description="When the current attempt was opened.")
    suspended_seconds: float = Field(0, description="Seconds spent suspended, which activeDeadlineSeconds leaves out.")
    completion_time: str | None = Field(None, description="When the job ended.")
    next_attempt_time: str | None = Field(None, description="The earliest time at which the next attempt opens.")
    progress: Progress | None = Field(None, description="How far training is, as the ranks report it.")
    time_spent: TimeSpent | None = Field(None, description="Where the time since the start went.")
    stacks_request: StacksRequest | None = Field(
        None,
        description="The newest request for stacks (annotation trainmaster.dev/stacks) that the workers were asked; "
        "the ConfigMap <job>-stacks has what they answered.",
    )
    failures: list[Failure] = Field(default_factory=list, description="What ended attempts, the newest first.")
