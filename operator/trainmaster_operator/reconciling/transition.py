"""A transition is a policy's answer. It contains a phase, its reason, and other changes of the status.

Conditions follow metav1.Condition, so `lastTransitionTime` changes only when the condition's status changes. Accepted
means that the spec can be run. Running means that all ranks of the current attempt are up. Suspended exists if the job
was ever suspended. Succeeded and Failed exist when the job has ended, so that `kubectl wait --for=condition=Succeeded`
works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus, Phase

MAX_MESSAGE_CHARACTERS = 2_000


class StatusChange(JobStatus):
    """New values of some fields of a JobStatus: all fields that were passed to the constructor, even as None."""

    def __or__(self, later: StatusChange) -> StatusChange:
        """Returns both changes as one. If both set a field, the value of `later` is used."""
        return self.model_copy(update=later._values())

    def __bool__(self) -> bool:
        return bool(self.model_fields_set)

    def apply(self, status: JobStatus) -> JobStatus:
        """Returns the status with the new values."""
        return status.model_copy(update=self._values())

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}


NO_CHANGE = StatusChange()
# Clears every wait that a policy requested.
NO_WAIT = StatusChange(next_attempt_time=None, resizing=None, stopping=None, scheduling_backoff=None)
# Clears earlier scheduling backoffs, so that the next startup gets the full `startupSeconds`.
NEW_STARTUP = StatusChange(scheduling_backoffs=0, startup_start_time=None)


@dataclass(frozen=True)
class Transition:
    """A change of the status. `reason` (for programs) and `message` (for people) are written into the conditions."""

    phase: Phase
    reason: str
    message: str
    change: StatusChange = NO_CHANGE


def condition(conditions: Sequence[Condition], name: str) -> Condition | None:
    """Returns the condition of this type, or None."""
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
    """Returns the conditions after replacing the named condition, or appending it if it was missing."""
    old = condition(conditions, name)
    new = Condition(
        type=name,
        status=status,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARACTERS],
        last_transition_time=old.last_transition_time if old and old.status == status else to_whole_text(now),
        observed_generation=generation,
    )
    if old is None:
        return [*conditions, new]
    return [new if item.type == name else item for item in conditions]
