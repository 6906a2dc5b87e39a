"""The optimizer, and clipping by the global norm.

The order in a step is: all gradients are there (accumulated and reduced), unscale, clip, check, step. Clipping after
the step, as some recipes have it, does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from trainloop.settings import Settings

#: An optimizer's state by parameter name; unlike torch's numbering it survives a change of strategy.
NamedState = dict[str, dict[str, Any]]


class OptimizerSettings(Settings):
    """Which optimizer, and its constants."""

    name: Literal["adamw", "adam", "sgd"] = Field("adamw", description="Algorithm, torch.optim's own.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate, before batch scaling (schedule.scaling).")
    weight_decay: float = Field(0.01, ge=0, description="Decay of matrices; biases and norms (one dimension) get none.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's moments.")
    eps: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum.")
    nesterov: bool = Field(False, description="SGD's Nesterov momentum.")
    max_norm: float | None = Field(
        1.0, gt=0, description="Clip the gradient to this global L2 norm before each step; null for no clipping."
    )


def parameter_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices decay, vectors and scalars don't."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def optimizer_factory(settings: OptimizerSettings) -> tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]:
    """The optimizer's class and keyword arguments; ZeroRedundancyOptimizer needs them apart."""
    if settings.name == "sgd":
        return torch.optim.SGD, {"lr": settings.lr, "momentum": settings.momentum, "nesterov": settings.nesterov}
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind, {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}


def build_optimizer(settings: OptimizerSettings, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer over `parameters` with weight decay on matrices only."""
    kind, arguments = optimizer_factory(settings)
    return kind(parameter_groups(parameters, settings.weight_decay), **arguments)


def named_state(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter]) -> NamedState:
    """The optimizer's state by parameter name."""
    return {name: dict(optimizer.state[parameter]) for name, parameter in named.items() if parameter in optimizer.state}


def load_named_state(optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], state: NamedState) -> None:
    """Load state by parameter name, leaving the groups' settings as the configuration has them."""
    names = {parameter: name for name, parameter in named.items()}
    groups: list[dict[str, Any]] = []
    ordered: list[str] = []
    for group in optimizer.param_groups:
        numbers = list(range(len(ordered), len(ordered) + len(group["params"])))
        groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": numbers})
        ordered += [names[parameter] for parameter in group["params"]]
    numbered = {number: state[name] for number, name in enumerate(ordered) if name in state}
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Clip to `max_norm` in place; the global L2 norm before clipping, a scalar tensor on the gradients' device.

    Sharded gradients (FSDP2) give the norm over all ranks.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if max_norm is None else max_norm)
    # A DTensor, known by its method: importing the class takes half a second, and only FSDP2 needs it.
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
