"""With local SGD, with several objectives and for a delayed group, ranks average without DDP.

Local SGD is the strategy for a slow network. Several objectives are minimised one after the other, each by changing
some of the parameters, but DDP would wait for the gradients of all. `delayed` describes a delayed group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.distributed.world import World, average
from trainloop.errors import ConfigError, listed
from trainloop.optimization.optimizer import clip_gradients
from trainloop.parallel.communication import GradientExchange
from trainloop.parallel.delayed import DelayedSettings, NothingDelayed
from trainloop.parallel.strategies import Replica


class LocalSteps(Replica):
    """With local SGD no gradient is sent: ranks step independently, and average weights every `local_steps` steps.

    See Stich 2019. Between two averages the ranks' weights differ, so weights are also averaged before an evaluation or
    a checkpoint. The optimizer's moments are averaged then too, because all ranks resume from one checkpoint.
    """

    replicated = False
    reduced = False

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        return super().synchronising(last=False)

    def after_step(self, step: int) -> int:
        return self._average_model() if step % self.exchange.settings.local_steps == 0 else 0

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        self._average_model()
        states = self.optimizer_state(optimizer).values()
        moments = [value for state in states for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
        average(moment for moment in moments if moment.dim() > 0)

    def _average_model(self) -> int:
        return average([*self.model.parameters(), *self.model.buffers()])


class DelayedGroup(NothingDelayed):
    """This group holds the delayed parameters and the sums of their gradients on this rank.

    The run's optimizer steps the parameters.
    """

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
        self._steps = 0  # number of steps summed so far
        # This is the only way to exclude parameters from DDP; a comment in torch calls it a prototype.
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, list(self.named))

    @contextmanager
    def stepping(self, step: int, max_norm: float | None) -> Iterator[int]:
        """Surrounds the optimizer's step number `step` (from 1); yields the number of bytes sent for the group.

        In every k-th step it synchronises the group's mean gradients and clips them. In other steps it hides the
        group's gradients from the optimizer.
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
        """Returns the sums, averaged over the ranks. If all ranks load these, the next mean doesn't change."""
        sums = {name: total.clone() for name, total in self._sums.items()}
        average(sums.values())
        return {"sums": sums, "steps": self._steps}

    def load(self, state: dict[str, Any], step: int) -> None:
        sums = state.get("sums", {})
        self._steps = state.get("steps", step % self.settings.every)
        for name, total in self._sums.items():
            total.copy_(sums[name]) if name in sums else total.zero_()


class ByTurns(Replica):
    """Every rank holds the full model, and gradients are averaged after each objective's last backward pass.

    Only the gradients of the objective's parameters are sent. DDP would wait for the gradients of all parameters, and
    send all.
    """

    def __init__(self, model: nn.Module, world: World, exchange: GradientExchange) -> None:
        self.model, self.world, self.exchange, self.wrapped = model, world, exchange, None
        #: The parameters of the current objective.
        self.turn: list[nn.Parameter] = []

    @contextmanager
    def synchronising(self, last: bool) -> Iterator[None]:
        yield
        if last and self.world.size > 1:
            trained = [parameter for parameter in self.turn if parameter.requires_grad]
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.exchange.times.ready = self.exchange.clock.now()
            self.exchange.sent += average(parameter.grad for parameter in trained if parameter.grad is not None)


def build_by_turns(strategy: str, model: nn.Module, world: World, exchange: GradientExchange) -> Replica:
    """Returns a ByTurns; if `strategy` is zero1, the state of each objective's optimizer is split among the ranks."""
    if strategy == "ddp" or world.size == 1:
        return ByTurns(model, world, exchange)
    # Imported when used, because it takes a second.
    from trainloop.parallel.sharded import ZeroRedundancy

    class ZeroByTurns(ByTurns, ZeroRedundancy):
        """Gradients are averaged for each objective, and each objective's optimizer state is split among the ranks."""

    return ZeroByTurns(model, world, exchange)
