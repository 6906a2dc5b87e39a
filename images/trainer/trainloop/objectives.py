"""A run may use several optimizers, either for one loss together or each for its own loss.

An example with one loss is Muon for matrices and AdamW for the rest; an example with several losses is a GAN. In each
step, all objectives are minimised one after the other on the same batch. The first objective's forward and backward
passes, clipping, verdict and optimizer step are completed before the second objective begins, so the second objective
sees the first one's update. Gradients that an objective leaves in the parameters of other objectives are dropped. Each
objective has its own history of loss and gradient norm. If an objective is odd, it and all later objectives are
skipped, and the step counts as skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainloop.errors import ConfigError
from trainloop.optimization.anomaly import AnomalyDetector, AnomalySettings, Decision
from trainloop.optimization.optimizer import Optimizers, OptimizerSettings, Update, UpdateRule, check_complete
from trainloop.parallel.averaging import ByTurns
from trainloop.parallel.communication import CommunicationSettings
from trainloop.parallel.delayed import NothingDelayed
from trainloop.parallel.strategies import Replica


@dataclass
class Objective:
    """An objective consists of a loss, summed over the task's units, and an optimizer of the parameters to change."""

    name: str
    loss: Callable[[Callable[..., Any], Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    # : Maximum gradient norm over this objective's parameters; None disables clipping.
    max_norm: float | None = None
    # : Returns the factor for each group's learning rate, given the update's number (from 0). None means the run's
    # : schedule.
    factor: Callable[[int], float] | None = None


class Objectives:
    """The objectives of a task are minimised one after the other, each by its own rule."""

    def __init__(
        self,
        task: Any,
        settings: OptimizerSettings,
        anomaly: AnomalySettings,
        replica: Replica,
        delayed: NothingDelayed,
        factor: Callable[[int], float],
    ) -> None:
        """Sets up each objective's rule; `factor` is the run's schedule.

        Raises ConfigError if objectives don't support the settings.
        """
        self._replica, self._exchange, self._anomaly, self._factor = replica, replica.exchange, anomaly, factor
        if delayed.named or self._exchange.settings != CommunicationSettings() or replica.world.tensor > 1:
            raise ConfigError(
                "the task has several objectives: delayed, communication and parallel.tensor must be left as they are"
            )
        members: list[Objective] = task.objectives(replica.model, settings)
        check_complete(replica.model, Optimizers([member.optimizer for member in members]))
        self.rules = {member.name: self._rule(member) for member in members}
        self.optimizer = Optimizers([rule.optimizer for rule in self.rules.values()])
        self.losses = [member.loss for member in members]
        self._newest: dict[str, torch.Tensor] = {}

    def _rule(self, member: Objective) -> UpdateRule:
        optimizer = self._replica.spread(member.optimizer)
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {parameter: name for name, parameter in self._replica.model.named_parameters()}
        return UpdateRule(
            member.loss,
            optimizer,
            AnomalyDetector(self._anomaly),
            own,
            member.max_norm,
            member.factor or self._factor,
            elsewhere=frozenset(names[parameter] for parameter in names.keys() - set(own)),
        )

    @property
    def odd_in_a_row(self) -> int:
        return max(rule.detector.odd_in_a_row for rule in self.rules.values())

    def end_row(self) -> None:
        for rule in self.rules.values():
            rule.detector.end_row()

    def state(self) -> dict[str, Any]:
        """Returns each objective's history, by name."""
        return {name: rule.detector.state() for name, rule in self.rules.items()}

    def load(self, state: dict[str, Any]) -> None:
        for name in self.rules.keys() & state.keys():
            self.rules[name].detector.load(state[name])

    def update(self, make: Callable[[UpdateRule], Update]) -> Update:
        """Updates all objectives by calling `make` for each rule.

        Returns the sum of the losses, the norm of all gradients, the first objective's learning rate, and the decision
        on the step.
        """
        exchange, sent = self._exchange, 0
        self._newest, norms, rates = {}, [], []
        decision: Decision | None = None
        for name, rule in self.rules.items():
            if isinstance(self._replica, ByTurns):
                self._replica.turn = rule.parameters
            self._newest[name], norm, rate, decision = make(rule)
            self.optimizer.zero_grad(set_to_none=True)  # also drops gradients in other objectives' parameters
            norms.append(norm)
            rates.append(rate)
            sent += exchange.times.sent
            exchange.times.sent = sent
            if decision in ("skip", "rollback"):
                break
        return torch.stack([*self._newest.values()]).sum(), torch.stack(norms).norm(), rates[0], decision

    def line(self) -> dict[str, float]:
        """Returns each objective's loss in the newest step, over all ranks; collective."""
        world = self._replica.world
        sums = world.sum([float(loss) / world.size for loss in self._newest.values()])
        return {f"{name}Loss": loss for name, loss in zip(self._newest, sums, strict=True)}
