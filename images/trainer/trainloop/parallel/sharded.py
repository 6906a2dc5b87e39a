"""ZeRO-1 and FSDP2 are the strategies for models that don't fit."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor

from trainloop.distributed.world import World
from trainloop.parallel.strategies import NamedState, Replica


class ZeroRedundancy(Replica):
    """DDP whose optimizer's state is spread over the ranks (Rajbhandari et al. 2020, stage 1)."""

    def spread(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        kind = type(optimizer)
        known = inspect.signature(kind).parameters
        arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
        return ZeroRedundancyOptimizer(optimizer.param_groups, optimizer_class=kind, **arguments)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> NamedState:
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        parts = self.world.gather(super().optimizer_state(optimizer.optim))
        return {name: state for part in parts for name, state in part.items()}


class FullySharded(Replica):
    """With FSDP2 every block of a ModuleList, and the rest, is sharded over all ranks."""

    equal_passes = True
    replicated = False

    def __init__(self, model: nn.Module, world: World) -> None:
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in [block for module in model.modules() if isinstance(module, nn.ModuleList) for block in module]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)  # in place: the model's class becomes an FSDPModule
        self.model, self.world, self.wrapped = model, world, None

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def model_state(self) -> dict[str, torch.Tensor]:
        return {name: whole(tensor) for name, tensor in self.model.state_dict().items()}

    def load_model(self, state: dict[str, torch.Tensor]) -> None:
        own = self.model.state_dict()
        super().load_model({name: like(tensor, own[name]) for name, tensor in state.items()})

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> NamedState:
        named = super().optimizer_state(optimizer)
        return {name: {key: whole(value) for key, value in state.items()} for name, state in named.items()}

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: NamedState) -> None:
        own, sharded = dict(self.model.named_parameters()), {}
        for name, values in state.items():
            sharded[name] = {key: like(value, own[name]) for key, value in values.items()}
        super().load_optimizer(optimizer, sharded)


def whole(value: Any) -> Any:
    """Returns a sharded tensor's whole content on the host; other values as they are."""
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def like(value: Any, parameter: torch.Tensor) -> Any:
    """Returns a whole tensor of the parameter's shape, sharded as it is; other values as they are.

    Every rank has the whole tensor, so each just keeps its part.
    """
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)
