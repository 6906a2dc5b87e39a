"""A sharded tensor (DTensor) is kept as this rank's part of it, and put together again from that."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameters_between_steps(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the model's parameters by name: those that the optimizer has, and that a step changes.

    From its forward to its backward FSDP2 has whole copies in the place of the root's parameters, and after a forward
    without a backward until the next step. They are freed here, so no pass may be going on.
    """
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "reshard")]
    for module in modules:
        module.reshard()
    return dict(model.named_parameters())


def local(value: Any) -> Any:
    """Returns nested values with this rank's parts in place of sharded tensors."""
    if isinstance(value, torch.Tensor):
        return value.to_local() if hasattr(value, "to_local") else value
    if isinstance(value, dict):
        return {key: local(item) for key, item in value.items()}
    return type(value)(map(local, value)) if isinstance(value, list | tuple) else value


def spread_as(part: Any, parameter: Any) -> Any:
    """Returns a rank's part of a moment as a tensor that is sharded as its parameter is; other values as they are."""
    if not hasattr(parameter, "device_mesh") or not isinstance(part, torch.Tensor):
        return part
    if part.shape != parameter.to_local().shape:
        return part  # a step's number
    from torch.distributed.tensor import DTensor  # half a second, which only what is sharded needs

    mesh, placements = parameter.device_mesh, parameter.placements
    whole = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part.to(parameter.device), mesh, placements, run_check=False, **whole)
