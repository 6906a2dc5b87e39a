"""The optimizer steps on gradients that were clipped by their global norm.

The order in a step is: all gradients are there (accumulated and reduced), unscale, clip, check, step. Clipping after
the step, as some recipes have it, does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from trainloop.settings import Settings

Moment = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """These settings choose the optimizer and its constants."""

    name: Literal["adamw", "adam", "sgd"] = Field("adamw", description="Algorithm, torch.optim's own.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate, before batch scaling (schedule.scaling).")
    weight_decay: float = Field(0.01, ge=0, description="Decay of matrices; biases and norms (one dimension) get none.")
    betas: tuple[Moment, Moment] = Field((0.9, 0.999), description="Adam's moments.")
    eps: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's momentum.")
    nesterov: bool = Field(False, description="SGD's Nesterov momentum.")
    max_norm: float | None = Field(1.0, gt=0, description="Clip the gradient to this global L2 norm; null never.")


#: The classes, each with the names of the settings that are its arguments.
_ALGORITHMS: dict[str, tuple[type[torch.optim.Optimizer], set[str]]] = {
    "adamw": (torch.optim.AdamW, {"lr", "betas", "eps"}),
    "adam": (torch.optim.Adam, {"lr", "betas", "eps"}),
    "sgd": (torch.optim.SGD, {"lr", "momentum", "nesterov"}),
}


def optimizer_parts(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter]
) -> tuple[type[torch.optim.Optimizer], list[dict[str, Any]], dict[str, Any]]:
    """Returns the optimizer's class, parameter groups and keyword arguments; ZeroRedundancyOptimizer needs them apart.

    Only matrices decay, vectors and scalars don't.
    """
    kind, names = _ALGORITHMS[settings.name]
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return kind, [group for group in groups if group["params"]], settings.model_dump(include=names)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Clip to `max_norm` in place; returns the global L2 norm before clipping, a scalar tensor on the gradients'
    device.

    Sharded gradients (FSDP2) give the norm over all ranks.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if max_norm is None else max_norm)
    # A DTensor, known by its method: importing the class takes half a second, and only FSDP2 needs it.
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
