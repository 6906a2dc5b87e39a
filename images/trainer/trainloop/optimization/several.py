"""A run may have several optimizers: for one loss together (Muon for matrices, AdamW for the rest), or each with a loss
of its own, a GAN's.

Objectives are minimised one after the other in each step, on the same batch: forward and backward, clipping, the
verdict and the optimizer's step of the first, then those of the next, which sees what the first has done. Gradients
that an objective's backward leaves in others' parameters are dropped. Each has its own history of loss and gradient
norm; where one is odd, it and those after it are left out, and the step counts as left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainloop.distributed.world import World
from trainloop.errors import ConfigError
from trainloop.optimization.anomaly import AnomalyDetector, Decision
from trainloop.optimization.optimizer import UpdateRule, check_complete
from trainloop.parallel.averaging import average
from trainloop.parallel.communication import CommunicationSettings, GradientExchange
from trainloop.parallel.strategies import Replica

if TYPE_CHECKING:
    from trainloop.data import Fetched
    from trainloop.trainer import Agreed, Trainer, Update


class Optimizers(torch.optim.Optimizer):
    """Several optimizers act as one: each steps its own parameters."""

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        # Torch's own constructor would copy groups, which loading a state replaces.
        self.members, self.defaults = members, {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]
        return {parameter: state for member in self.members for parameter, state in member.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self.members:
            member.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for member in self.members:
            member.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state whose parameters are numbered in the order of all groups."""
        groups, done = iter(state_dict["param_groups"]), 0
        for member in self.members:
            count = sum(len(group["params"]) for group in member.param_groups)
            own = [next(groups) for _ in member.param_groups]
            own = [{**group, "params": [number - done for number in group["params"]]} for group in own]
            states = {n - done: state for n, state in state_dict["state"].items() if done <= n < done + count}
            member.load_state_dict({"state": states, "param_groups": own})
            done += count


@dataclass
class Objective:
    """A loss, summed over what the task counts, and the optimizer of the parameters that minimise it."""

    name: str
    loss: Callable[[Callable[..., Any], Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    #: Clip the gradient of its own parameters to this norm; None never.
    max_norm: float | None = None
    #: Multiplies each group's rate, by the number of the update from 0; None is the run's schedule.
    factor: Callable[[int], float] | None = None


class ByTurns(Replica):
    """Every rank has everything, and gradients are averaged after an objective's last backward: DDP would wait for
    those of all parameters, and send them all.
    """

    def __init__(self, model: nn.Module, world: World, exchange: GradientExchange) -> None:
        self.model, self.world, self.exchange, self.wrapped = model, world, exchange, None
        #: The parameters of the objective whose turn it is.
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


class Objectives:
    """Minimises a task's objectives by turns, each by a rule of its own."""

    def __init__(self, trainer: Trainer) -> None:
        config, model = trainer.config, trainer.replica.model
        if trainer.delayed.named or trainer.exchange.settings != CommunicationSettings() or trainer.world.tensor > 1:
            raise ConfigError(
                "the task has several objectives: delayed, communication and parallel.tensor must be left as they are"
            )
        self.trainer = trainer
        members: list[Objective] = trainer.task.objectives(model, config.optimizer)  # type: ignore[attr-defined]
        check_complete(model, Optimizers([member.optimizer for member in members]))
        self.rules = {member.name: self._rule(member) for member in members}
        trainer.optimizer = Optimizers([rule.optimizer for rule in self.rules.values()])
        self.losses = [member.loss for member in members]
        self._newest: dict[str, torch.Tensor] = {}

    def _rule(self, member: Objective) -> UpdateRule:
        trainer = self.trainer
        optimizer = trainer.replica.spread(member.optimizer)
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {parameter: name for name, parameter in trainer.replica.model.named_parameters()}
        return UpdateRule(
            member.loss,
            optimizer,
            AnomalyDetector(trainer.config.anomaly),
            own,
            member.max_norm,
            member.factor or (lambda update: trainer.schedule.factor(update)),  # which comes with the data
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

    def update(self, fetched: Fetched, agreed: Agreed, at_once: bool) -> Update:
        """Make all objectives' updates; returns the sum of the losses, the norm of all gradients, the first one's rate
        and the decision on the step.
        """
        trainer, sent = self.trainer, 0
        self._newest, norms, rates = {}, [], []
        decision: Decision | None = None
        for name, rule in self.rules.items():
            if isinstance(trainer.replica, ByTurns):
                trainer.replica.turn = rule.parameters
            self._newest[name], norm, rate, decision = trainer.update(rule, fetched, agreed, at_once=True)
            trainer.optimizer.zero_grad(set_to_none=True)  # what the backward has left in others' parameters
            norms.append(norm)
            rates.append(rate)
            sent += trainer.exchange.times.sent
            trainer.exchange.times.sent = sent
            if decision in ("skip", "rollback"):
                break
        return torch.stack([*self._newest.values()]).sum(), torch.stack(norms).norm(), rates[0], decision

    def line(self) -> dict[str, float]:
        """Returns each objective's loss in the newest step, over all ranks; collective."""
        sums = self.trainer.world.sum([float(loss) / self.trainer.world.size for loss in self._newest.values()])
        return {f"{name}Loss": loss for name, loss in zip(self._newest, sums, strict=True)}


def build_by_turns(strategy: str, model: nn.Module, world: World, exchange: GradientExchange) -> Replica:
    """Returns the model, whole on every rank, with ZeRO-1's optimizers where `strategy` says so."""
    if strategy == "ddp" or world.size == 1:
        return ByTurns(model, world, exchange)
    # Imported when used: it costs a second.
    from trainloop.parallel.sharded import ZeroRedundancy

    class ZeroByTurns(ByTurns, ZeroRedundancy):
        """Gradients are averaged by turns, and each objective's optimizer has its state spread over the ranks."""

    return ZeroByTurns(model, world, exchange)
