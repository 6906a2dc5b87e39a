"""The group of parameters that waits, which `delayed` describes; imported by runs that name one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.errors import ConfigError, listed
from trainloop.optimization.optimizer import clip_gradients
from trainloop.parallel.averaging import average
from trainloop.parallel.delayed import DelayedSettings, NothingDelayed


class DelayedGroup(NothingDelayed):
    """Holds the group's parameters, which the run's optimizer steps, and the sums of their gradients on this rank."""

    def __init__(self, settings: DelayedSettings, model: nn.Module) -> None:
        assert settings.pattern is not None
        self.settings = settings
        trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.named = {name: one for name, one in trainable.items() if settings.pattern.search(name)}
        if len(self.named) in (0, len(trainable)):
            raise ConfigError(
                f"delayed.pattern is {settings.pattern.pattern!r}: it is in {'all' if self.named else 'none'} of the "
                f"trainable parameters' names, it must be in some of {listed(list(trainable))}"
            )
        self._sums = {name: torch.zeros_like(parameter) for name, parameter in self.named.items()}
        self._steps = 0  # that are in the sums
        # The only way that DDP has to leave parameters out (torch's own comment calls it a prototype).
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, list(self.named))

    @contextmanager
    def stepping(self, step: int, max_norm: float | None) -> Iterator[int]:
        """Surrounds the optimizer's step number `step` (from 1); yields the bytes that it sent.

        Every k-th time the group's mean gradients are synchronised and clipped, else the optimizer doesn't see them.
        """
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                self._sums[name] += parameter.grad
            parameter.grad = None
        self._steps += 1
        if step % self.settings.every:
            yield 0
            return
        sent = average(self._sums.values())
        for name, parameter in self.named.items():
            parameter.grad = self._sums[name] / self._steps
        clip_gradients(self.named.values(), max_norm)
        yield sent
        self.load({}, step)

    def state(self) -> dict[str, Any]:
        """Returns the sums averaged over ranks: loading the mean keeps the mean."""
        sums = {name: total.clone() for name, total in self._sums.items()}
        average(sums.values())
        return {"sums": sums, "steps": self._steps}

    def load(self, state: dict[str, Any], step: int) -> None:
        # An older checkpoint has the sums alone.
        sums = state.get("sums", state)
        self._steps = state.get("steps", step % self.settings.every)
        for name, total in self._sums.items():
            total.copy_(sums[name]) if name in sums else total.zero_()
