"""Local SGD is the strategy for a slow network: ranks step by themselves, and average their weights now and then."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from trainloop.parallel.averaging import average
from trainloop.parallel.strategies import Replica


class LocalSteps(Replica):
    """With local SGD (Stich 2019) no gradient is sent: ranks step by themselves and average weights every
    `local_steps`.

    Between two averages ranks differ, so whatever reads the model as one thing (evaluation, a checkpoint) averages
    first; a checkpoint also averages the optimizer's moments, and ranks resume from equal ones.
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
