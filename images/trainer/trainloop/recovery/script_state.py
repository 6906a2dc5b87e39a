"""A script's state is its model, its optimizer and other named objects; this module reads and restores it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from trainloop.recovery.slots import Buffers
from trainloop.recovery.tensors import (
    OptimizerState,
    cloned,
    load,
    local,
    on_host,
    parameters_between_steps,
    spread_as,
    state_of,
)


class Stateful(Protocol):
    """A stateful object has these two methods, like a scheduler, a scaler or an average of weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> object: ...


class ScriptState:
    """This class holds a script's state, or, if the model or the optimizer's state is sharded, this rank's part."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, others: dict[str, Stateful]) -> None:
        self._model: nn.Module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._optimizer, self._others = optimizer, others
        self._parameters = parameters_between_steps(self._model)
        self.device = next(iter(self._parameters.values())).device
        #: The optimizer that changes this rank's part of the weights; in ZeroRedundancyOptimizer, the inner one.
        self.own_optimizer: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
        self.buffers = Buffers(self._model)
        self._optimizer_state = OptimizerState(self.own_optimizer, self.device, optimizer)
        #: The seed of `Recovery.parts`, which is the same on all ranks.
        self.seed = 0

    @property
    def is_part(self) -> bool:
        """Returns whether this rank holds only a part of the state."""
        sharded = any(hasattr(each, "device_mesh") for each in self._parameters.values())
        return sharded or self.own_optimizer is not self._optimizer

    def host(self) -> dict[str, Any]:
        """Returns the part of the state that the host holds and changes."""
        return {
            "optimizer": self._optimizer_state.host(),
            "others": {name: state_of(each) for name, each in self._others.items()},
        }

    def whole(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns the state with `host` as the host's part."""
        optimizer = local(self._optimizer_state.whole(host["optimizer"]))
        others = local(host["others"])
        return {"model": local(self._parameters), "optimizer": optimizer, "others": others, "seed": self.seed}

    def give(self) -> dict[str, Any]:
        """Returns the current state, including the buffers, to be sent to a rank that lacks it."""
        buffers = {name: local(each) for name, each in self.buffers.named().items()}
        return {**self.whole(self.host()), "buffers": buffers}

    @torch.no_grad()
    def load(self, saved: dict[str, Any]) -> None:
        """Load a state. Raises ValueError or KeyError if it doesn't fit this model."""
        self._parameters = parameters_between_steps(self._model)
        tensors: dict[str, Any] = {**self._parameters, **self.buffers.named()}
        values = {**saved["model"], **saved["buffers"]}
        for name, parameter in self._parameters.items():
            if values[name].shape != local(parameter).shape:
                raise ValueError(f"{name} has shape {list(values[name].shape)}")
        optimizer = saved["optimizer"]
        ordered = [parameter for group in self.own_optimizer.param_groups for parameter in group["params"]]
        for number, state in optimizer["state"].items():
            state.update({key: spread_as(value, ordered[number]) for key, value in state.items()})
        self.own_optimizer.load_state_dict(optimizer)
        if self.own_optimizer is not self._optimizer:
            for group, part_of_it in zip(self._optimizer.param_groups, self.own_optimizer.param_groups, strict=True):
                group.update({key: value for key, value in part_of_it.items() if key != "params"})
        for state in self.own_optimizer.state.values():
            # If the weights are on the host, torch has kept the given tensors, whose memory is the mapped file.
            state.update({key: cloned(value) for key, value in state.items() if on_host(value)})
        for name, tensor in tensors.items():
            if name in values:
                local(tensor).copy_(values[name])
        for name, each in self._others.items():
            load(each, saved["others"][name])
        self.seed = saved["seed"]

    @torch.no_grad()
    def put_back(self, host: dict[str, Any]) -> None:
        """Restore the host's part of the state."""
        groups, _ = host["optimizer"]
        for group, before in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(before)
        for name, each in self._others.items():
            load(each, host["others"][name])
