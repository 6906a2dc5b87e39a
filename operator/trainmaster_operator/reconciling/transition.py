"""A policy answers with a phase, the reason for it, and what else changes in the status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.api.v1alpha1 import (
    Condition,
    Failure,
    JobStatus,
    Phase,
    Progress,
    StacksRequest,
    TimeSpent,
    WorkerCounts,
)


class Unset(Enum):
    """UNSET is the value of a field that a change leaves as it is; None is a value like any other."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True)
class StatusChange:
    """StatusChange has new values for fields of a JobStatus, by the same names and of the same types."""

    phase: Phase | Unset | None = UNSET
    conditions: list[Condition] | Unset = UNSET
    observed_generation: int | Unset | None = UNSET
    attempt: int | Unset = UNSET
    continues: int | Unset | None = UNSET
    absent_ranks: list[int] | Unset = UNSET
    training_with: str | Unset | None = UNSET
    restarts: int | Unset = UNSET
    disruptions: int | Unset = UNSET
    workers: WorkerCounts | Unset = UNSET
    replicas: int | Unset = UNSET
    selector: str | Unset | None = UNSET
    worker_order: list[int] | Unset = UNSET
    resizing: bool | Unset | None = UNSET
    stopping: bool | Unset | None = UNSET
    code_digest: str | Unset | None = UNSET
    restart_request: str | Unset | None = UNSET
    scheduling_backoff: bool | Unset | None = UNSET
    scheduling_backoffs: int | Unset = UNSET
    startup_start_time: str | Unset | None = UNSET
    node_failures: dict[str, int] | Unset = UNSET
    avoided_nodes: list[str] | Unset = UNSET
    replacing_pod_uids: list[str] | Unset = UNSET
    pod_uids: list[str | None] | Unset = UNSET
    pod_restart_counts: list[int] | Unset = UNSET
    start_time: str | Unset | None = UNSET
    attempt_start_time: str | Unset | None = UNSET
    suspended_seconds: float | Unset = UNSET
    completion_time: str | Unset | None = UNSET
    next_attempt_time: str | Unset | None = UNSET
    progress: Progress | Unset | None = UNSET
    stacks_request: StacksRequest | Unset | None = UNSET
    time_spent: TimeSpent | Unset | None = UNSET
    failures: list[Failure] | Unset = UNSET

    def __or__(self, later: StatusChange) -> StatusChange:
        """Returns both changes as one; where both set a field, the later one counts."""
        values, more = self._values(), later._values()
        # Most passes change little: no object is made for nothing.
        if not more:
            return self
        return StatusChange(**(values | more)) if values else later

    def __bool__(self) -> bool:
        return bool(self._values())

    def apply(self, status: JobStatus) -> JobStatus:
        """Returns the status with the new values."""
        return status.model_copy(update=self._values())

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not UNSET}


NO_CHANGE = StatusChange()
# The job waits for nothing that a policy has asked for.
NO_WAIT = StatusChange(next_attempt_time=None, resizing=None, stopping=None, scheduling_backoff=None)
# No scheduling backoff counts any more: a startup after this has all of `startupSeconds`.
NEW_STARTUP = StatusChange(scheduling_backoffs=0, startup_start_time=None)


@dataclass(frozen=True)
class Transition:
    """Transition changes the status. `reason` and `message` go to the conditions, for a program and for a person."""

    phase: Phase
    reason: str
    message: str
    change: StatusChange = NO_CHANGE


MAX_MESSAGE_CHARACTERS = 2_000


def condition(conditions: Sequence[Condition], name: str) -> Condition | None:
    """Returns the condition of that type."""
    return next((item for item in conditions if item.type == name), None)


def with_condition(
    conditions: Sequence[Condition],
    name: str,
    status: Literal["True", "False", "Unknown"],
    reason: str,
    message: str,
    *,
    now: float,
    generation: int,
) -> list[Condition]:
    """Returns the conditions with one set, in its place or at the end."""
    old = condition(conditions, name)
    new = Condition(
        type=name,
        status=status,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARACTERS],
        last_transition_time=old.last_transition_time
        if old is not None and old.status == status
        else to_whole_text(now),
        observed_generation=generation,
    )
    if old is None:
        return [*conditions, new]
    return [new if item.type == name else item for item in conditions]
