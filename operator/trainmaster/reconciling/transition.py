"""What a policy answers: a phase, why, and what changes in the status with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.api.v1alpha1 import Phase


@dataclass(frozen=True)
class Transition:
    """A change of the status. `reason` and `message` go to the conditions, for a program and for a person."""

    phase: Phase
    reason: str
    message: str
    changes: Mapping[str, Any] = field(default_factory=dict)
