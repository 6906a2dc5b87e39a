"""Conditions are as in metav1.Condition: the time moves only when the status of the condition does.

Accepted: the spec can be run. Running: all ranks of the current attempt are up. Suspended: once it ever was.
Succeeded, Failed: there when the job has ended. `kubectl wait --for=condition=Succeeded` works on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.api.v1alpha1 import Condition

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
