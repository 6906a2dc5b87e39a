"""The spec's policies answer failures (`failurePolicy`), and limit the job's life as a whole (`runPolicy`)."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, StrictBool, StrictInt, WithJsonSchema

from trainmaster_operator.api.v1alpha1.base_models import SpecModel
from trainmaster_operator.api.v1alpha1.names import AnswerableReason, FailureReason
from trainmaster_operator.api.values import (
    Count,
    Factor,
    ModuleName,
    PositiveSeconds,
    PositiveWholeSeconds,
    ProgressPattern,
    Seconds,
    WholeSeconds,
)
from trainmaster_operator.wire.log_rules import GROUPS


class Backoff(SpecModel):
    """Backoff is the wait before a restart that counts: initialSeconds x factor^(n-1), at most maxSeconds."""

    initial_seconds: Seconds = Field(0, description="Seconds before the first restart.")
    factor: Factor = Field(2, description="Growth from one restart to the next.")
    max_seconds: Seconds = Field(300, description="Longest wait, in seconds.")


# A job of before may name others, which `api.rules` refuses where the job is new.
RuleReason = Annotated[FailureReason, WithJsonSchema({"type": "string", "enum": list(get_args(AnswerableReason))})]


class FailureRule(SpecModel):
    """FailureRule answers a failure with one of these exit codes or reasons. The first rule that matches wins."""

    exit_codes: list[Annotated[StrictInt, Field(ge=1, le=255)]] | None = Field(
        None, min_length=1, max_length=64, description="Exit codes that the rule matches; 128 + n for signal n."
    )
    reasons: list[RuleReason] | None = Field(
        None, min_length=1, max_length=32, description="Failure reasons that the rule matches (OOMKilled, Hung, ...)."
    )
    action: Literal["Fail", "Restart", "Ignore"] = Field(
        ..., description="Fail: end the job. Restart: restart and count it. Ignore: restart without counting it."
    )


class Hang(SpecModel):
    """Hang says when missing progress is a hang."""

    progress_seconds: PositiveSeconds = Field(
        600, description="Seconds without a new step after which a running job hangs."
    )
    first_step_seconds: PositiveSeconds = Field(
        1800, description="Seconds until the first step; compiling and loading take longer than a step."
    )
    action: Literal["Restart", "Fail"] = Field("Restart", description="What to do with a job that hangs.")


class NodePolicy(SpecModel):
    """NodePolicy says what to do about nodes that fail."""

    lost_after_seconds: PositiveSeconds = Field(
        40,
        description="Seconds that a node may be unreachable before its workers are replaced, and that a worker may be "
        "silent, once its peers have found it so in a hang.",
    )
    quarantine_after: Count = Field(
        3, description="Failures that a node can have caused after which this job avoids it; 0: never."
    )


class FailurePolicy(SpecModel):
    """FailurePolicy says how failures are answered."""

    max_restarts: Count = Field(
        6, description="Restarts of the whole group that count before the job fails; disruptions don't count."
    )
    backoff: Backoff = Field(default_factory=Backoff, description="Waiting before a restart.")
    rules: list[FailureRule] = Field(
        default_factory=list, max_length=32, description="Rules by exit code and reason; the first match wins."
    )
    hang: Hang = Field(default_factory=Hang, description="When missing progress is a hang, and what follows.")
    startup_seconds: PositiveSeconds = Field(
        900,
        description="Seconds until all ranks must be up; then the job fails with the reason why they aren't. They run "
        "on while the job gives up its pods, because a node or quota is lacking for others, and asks for all again.",
    )
    nodes: NodePolicy = Field(default_factory=NodePolicy, description="What to do about nodes that fail.")


class LogRules(SpecModel):
    """LogRules says which lines that ranks print are their progress, for scripts that write no progress file."""

    pattern: ProgressPattern | None = Field(
        None,
        description="Regular expression of Python with named groups, searched in each line: step (?P<step>[0-9]+).* "
        f"loss (?P<loss>[0-9.]+). Groups: {', '.join(GROUPS)}. Only a line that matches is progress to "
        "failurePolicy.hang. Not together with preset.",
    )
    preset: Literal["auto", "huggingface", "lightning", "deepspeed", "torchtune", "tqdm", "none"] | None = Field(
        None,
        description="The lines of a framework. auto, the default, shows what nothing but training prints, and watches "
        "none of it for hangs; none takes nothing but the progress file as progress.",
    )


class WarmStart(SpecModel):
    """WarmStart is about the process from which a worker's ranks are forked, with everything slow imported already."""

    enabled: StrictBool = Field(
        True,
        description="Whether there is one. Only commands of the forms [python, script.py] and [python, -m, module] "
        "under the launcher torchrun start warm; others start as without it, and the worker's log says why.",
    )
    preload: list[ModuleName] = Field(
        default_factory=list,
        max_length=64,
        description="Modules that it imports besides torch and what it learns from the first attempt, which is "
        "packages only. What they hold is shared by all ranks of a worker, so data belongs here (mypackage.data). "
        "Ranks wait for them.",
    )


class RunPolicy(SpecModel):
    """RunPolicy is about the job's life as a whole."""

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
        "(<name>-evidence). false keeps who failed, when and how, and the status and events show no more than that.",
    )
