"""A run's state is everything needed to continue bit for bit: its stateful parts, and the state of its hooks.

`checkpoints` stores the state in checkpoints and in the pod's memory. That package uses a `RunState`, never the
trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainloop.distributed.world import World
from trainloop.errors import listed
from trainloop.optimization.anomaly import AnomalyDetector
from trainloop.optimization.precision import Precision
from trainloop.optimization.verdict import Judge
from trainloop.parallel.communication import GradientExchange
from trainloop.parallel.delayed import NothingDelayed
from trainloop.parallel.strategies import Replica
from trainloop.recovery.tensors import mapped

if TYPE_CHECKING:
    from trainloop.objectives import Objectives


class Stateful(Protocol):
    """Modules, optimizers and schedulers implement these two methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> object: ...


@dataclass
class TrainState:
    """These numbers describe how far a run is."""

    step: int = 0  # completed global batches
    updates: int = 0  # steps that the optimizer made
    position: int = 0  # completed samples
    place: dict[str, Any] = field(default_factory=dict)  # in the data: the epoch and its number of completed samples
    batch: int = 0  # samples in a global batch at the first start
    total: int = 0  # steps in the whole run
    results: dict[str, float] = field(default_factory=dict)  # from the last evaluation
    precision: str = ""  # precision of the steps

    def load(self, numbers: Mapping[str, Any]) -> None:
        """Loads the numbers of another state. Raises TypeError for unknown names."""
        vars(self).update(vars(TrainState(**numbers)))


@dataclass(frozen=True)
class RunState:
    """The run's state consists of these parts."""

    world: World
    seed: int
    train: TrainState
    replica: Replica
    optimizer: torch.optim.Optimizer
    precision: Precision
    # : Losses and gradient norms of earlier steps, for the whole run or for each objective.
    history: AnomalyDetector | Objectives
    judge: Judge
    delayed: NothingDelayed
    exchange: GradientExchange
    #: The state of hooks, by their own names.
    stateful: dict[str, Stateful]


def stateful_states(stateful: Mapping[str, Stateful]) -> dict[str, Any]:
    """Returns the states of hooks by name, in which DTensors are complete tensors on the host; collective."""
    return {name: mapped(each.state_dict(), _whole) for name, each in stateful.items()}


def restore_stateful(stateful: Mapping[str, Stateful], saved: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Loads the states of hooks; warns about names that exist only in the checkpoint or only in the program."""
    for name in stateful.keys() & saved.keys():
        stateful[name].load_state_dict(_like(saved[name], stateful[name].state_dict()))
    if lost := sorted(saved.keys() - stateful.keys()):
        warn(f"the checkpoint has a state of {listed(lost)}, which no hook of this run has: it is left out")
    if new := sorted(stateful.keys() - saved.keys()):
        warn(f"the checkpoint has no state of {listed(new)}: it stays as this run's hooks made it")


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor


def _like(saved: Any, own: Any) -> Any:
    """Returns the saved state, with its tensors sharded like those of the program's own state."""
    if isinstance(saved, dict) and isinstance(own, dict):
        return {key: _like(value, own.get(key)) for key, value in saved.items()}
    if type(own) in (list, tuple) and isinstance(saved, list | tuple) and len(own) == len(saved):
        return type(own)(map(_like, saved, own))
    if not hasattr(own, "full_tensor"):
        return saved
    # Imported when used, because it takes half a second and only FSDP2 needs it.
    from trainloop.parallel.sharded import like

    return like(saved, own)
