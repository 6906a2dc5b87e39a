"""A delayed group of parameters is synchronised and stepped only every k steps.

So large, slowly changing parts (such as embeddings) cost communication only once in k steps. DDP ignores the group.
Each rank sums up the group's gradients. Every k steps their mean over ranks and steps makes one update, as with
gradient accumulation over k steps. A step that the loop skips adds nothing, and the earlier sums are kept.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import Field
from torch import nn

from trainloop.settings import Settings


class DelayedSettings(Settings):
    """These settings name the parameters of the delayed group, and the steps between its updates."""

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
        """Surrounds the optimizer's step number `step` (from 1); yields the number of bytes sent for the group."""
        return nullcontext(0)

    def state(self) -> dict[str, Any]:
        """Returns the gradients that the group has summed up since its last update, the same on every rank."""
        return {}

    def load(self, state: dict[str, Any], step: int) -> None:
        """Restores what `state` returned after `step` steps."""
