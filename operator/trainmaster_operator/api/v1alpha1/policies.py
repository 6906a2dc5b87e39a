"""Defines a spec's policies: responses to failures (`failurePolicy`) and limits of the job (`runPolicy`)."""

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
    """Backoff is the wait before a counted restart: initialSeconds x factor^(n-1), at most maxSeconds."""

    initial_seconds: Seconds = Field(0, description="Wait before the first restart, in seconds.")
    factor: Factor = Field(2, description="Factor by which the wait grows with each restart.")
    max_seconds: Seconds = Field(300, description="Maximum wait, in seconds.")


# An older job may contain other reasons, which `api.rules` refuses in a new job.
RuleReason = Annotated[FailureReason, WithJsonSchema({"type": "string", "enum": list(get_args(AnswerableReason))})]


class FailureRule(SpecModel):
    """FailureRule decides about failures with certain exit codes or reasons. The first matching rule counts."""

    exit_codes: list[Annotated[StrictInt, Field(ge=1, le=255)]] | None = Field(
        None, min_length=1, max_length=64, description="Exit codes that match; 128 + n for signal n."
    )
    reasons: list[RuleReason] | None = Field(
        None, min_length=1, max_length=32, description="Failure reasons that match (OOMKilled, Hung, ...)."
    )
    action: Literal["Fail", "Restart", "Ignore"] = Field(
        ..., description="Fail: end the job. Restart: restart and count the restart. Ignore: restart without counting."
    )


class Hang(SpecModel):
    """Hang defines when missing progress is a hang."""

    progress_seconds: PositiveSeconds = Field(
        600, description="Seconds without a new step after which a running job counts as hung."
    )
    first_step_seconds: PositiveSeconds = Field(
        1800, description="Seconds allowed until the first step, which includes loading and compiling."
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
    """WarmStart configures the process from which a worker's ranks are forked, with slow imports already done."""

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
    """RunPolicy has suspension, deadlines and cleanup of the whole job."""

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
