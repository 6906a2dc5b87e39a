"""A delayed group of parameters is synchronised and stepped only every k steps.

So large, slowly changing parts (such as embeddings) cost communication only once in k steps. DDP ignores the group.
Each rank sums up the gradients, and every k steps their mean over ranks and steps makes one update, as with gradient
accumulation over k steps. A skipped step adds nothing, and the earlier sums are kept.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import Field
from torch import nn

from trainloop.settings import Settings


class DelayedSettings(Settings):
    """These settings say which parameters wait, and how long."""

    pattern: re.Pattern[str] | None = Field(None, description="Found in the names of the group; null for no group.")
    every: int = Field(4, ge=1, description="Steps between two updates of the group.")


class NothingDelayed:
    """Every parameter is stepped in every step."""

    def __init__(self) -> None:
        self.named: dict[str, nn.Parameter] = {}  # the delayed parameters

    def immediate(self, model: nn.Module) -> list[nn.Parameter]:
        """Returns the parameters that are stepped every step."""
        return [parameter for name, parameter in model.named_parameters() if name not in self.named]

    def stepping(self, step: int, max_norm: float | None) -> AbstractContextManager[int]:
        """Surrounds the optimizer's step number `step` (from 1); yields the bytes that it sent."""
        return nullcontext(0)

    def state(self) -> dict[str, Any]:
        """Returns the group's pending sums, which are equal on every rank."""
        return {}

    def load(self, state: dict[str, Any], step: int) -> None:
        """Restores the result of `state` after `step` steps."""
