"""The group of parameters that waits, which `delayed` describes; imported by runs that name one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.distributed.world import average
from trainloop.errors import ConfigError, listed
from trainloop.optimization.optimizer import clip_gradients
from trainloop.parallel.delayed import DelayedSettings, NothingDelayed


class DelayedGroup(NothingDelayed):
    """Holds the group's parameters, which the run's optimizer steps."""

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
        # The only way that DDP has to leave parameters out (torch's own comment calls it a prototype).
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, list(self.named))

    @contextmanager
    def stepping(self, step: int, max_norm: float | None) -> Iterator[int]:
        """Surrounds the optimizer's step number `step` (from 1); yields the bytes that it sent.

        Every k-th time the group's gradients are synchronised and clipped, else the optimizer doesn't see them.
        """
        gradients = self._gradients()
        if step % self.settings.every == 0:
            sent = average(gradients)
            for gradient in gradients:
                gradient /= self.settings.every
            clip_gradients(self.named.values(), max_norm)
            yield sent
            return
        for parameter in self.named.values():
            parameter.grad = None
        yield 0
        for parameter, gradient in zip(self.named.values(), gradients, strict=True):
            parameter.grad = gradient

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the gradients so far, averaged over ranks: loading the mean keeps the mean."""
        gradients = [gradient.clone() for gradient in self._gradients()]
        average(gradients)
        return dict(zip(self.named, gradients, strict=True))

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.named.items():
            parameter.grad = state[name].to(parameter.device) if name in state else None

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self.named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.named.values() if parameter.grad is not None]
