"""Delayed updates: a named group of parameters is synchronised and stepped only every k steps.

Large, slowly changing parts (embeddings, say) then cost communication once in k steps. DDP leaves the group alone,
gradients add up on each rank, and every k steps their mean over ranks and steps makes one update. It is what
accumulating k steps of that group is.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.averaging import average
from trainloop.distributed import World
from trainloop.errors import ConfigError
from trainloop.optimizer import (
    OptimizerSettings,
    build_optimizer,
    clip_gradients,
    load_named_state,
    named_state,
    set_rate,
)
from trainloop.settings import Settings


class DelayedSettings(Settings):
    """Which parameters wait, and how long."""

    pattern: str | None = Field(None, description="Regular expression found in the names of the group; null for none.")
    every: int = Field(4, ge=1, description="Steps between two updates of the group.")


class DelayedGroup:
    """The group's parameters and its own optimizer. With no pattern it is empty and does nothing."""

    def __init__(self, settings: DelayedSettings, optimizer: OptimizerSettings, model: nn.Module, world: World) -> None:
        self.settings, self._world = settings, world
        self.max_norm = optimizer.max_norm
        self.named = {
            name: parameter
            for name, parameter in model.named_parameters()
            if settings.pattern is not None and re.search(settings.pattern, name) and parameter.requires_grad
        }
        if settings.pattern is not None and not self.named:
            raise ConfigError(
                f"delayed.pattern is {settings.pattern!r}: no trainable parameter's name matches; the model has "
                f"{', '.join(name for name, _ in list(model.named_parameters())[:6])} and more"
            )
        self.optimizer = build_optimizer(optimizer, self.named.values()) if self.named else None
        # The only way that DDP has to leave parameters out (torch's own comment calls it a prototype).
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, list(self.named))

    def immediate(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that are stepped every step."""
        return [parameter for name, parameter in model.named_parameters() if name not in self.named]

    def step(self, step: int, rate: float) -> int:
        """After the optimizer's step number `step` (from 1): every k-th time synchronise, clip, and step the group.

        The bytes that it sent.
        """
        if self.optimizer is None or step % self.settings.every:
            return 0
        gradients = self._gradients()
        sent = average(gradients) if self._world.size > 1 else 0
        for gradient in gradients:
            gradient /= self.settings.every
        clip_gradients(self.named.values(), self.max_norm)
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sent

    def drop_gradients(self) -> None:
        """Forget what has been gathered since the group's last update."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self.named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.named.values() if parameter.grad is not None]

    def state(self) -> dict[str, Any]:
        """The optimizer's state and the gradients so far, averaged over ranks: loading the mean keeps the mean."""
        if self.optimizer is None:
            return {}
        gradients = [gradient.clone() for gradient in self._gradients()]
        if self._world.size > 1:
            average(gradients)
        return {
            "optimizer": named_state(self.optimizer, self.named),
            "gradients": dict(zip(self.named, gradients, strict=True)),
        }

    def load(self, state: dict[str, Any]) -> None:
        if self.optimizer is None or not state:
            return
        load_named_state(self.optimizer, self.named, state["optimizer"])
        for name, gradient in state["gradients"].items():
            self.named[name].grad = gradient.to(self.named[name].device)
