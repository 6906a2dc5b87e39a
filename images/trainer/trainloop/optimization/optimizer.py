"""The optimizer steps on gradients that were clipped by their global norm.

In each step, all gradients are accumulated, reduced, unscaled, clipped and checked before the optimizer steps. (Some
recipes clip after the step, which has no effect.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainloop.errors import ConfigError, listed
from trainloop.optimization.anomaly import AnomalyDetector, Decision
from trainloop.settings import Settings
from trainloop.tasks import Task

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


@dataclass(frozen=True)
class UpdateRule:
    """A rule describes how an update is made: its loss, parameters, optimizer and limits."""

    loss: Callable[[Callable[..., Any], Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    # : Judges an update by comparing it with this rule's earlier updates.
    detector: AnomalyDetector
    # : The parameters whose gradient is clipped to `max_norm`.
    parameters: list[nn.Parameter]
    max_norm: float | None
    # : Returns the factor for each group's learning rate, given the update's number (from 0).
    factor: Callable[[int], float]
    #: Names of parameters that another rule updates, so that they needn't get a gradient here.
    elsewhere: frozenset[str] = frozenset()


#: An update's loss on this rank, the gradient's norm before clipping, the learning rate, and the decision.
Update = tuple[torch.Tensor, torch.Tensor, float, Decision | None]

#: Kinds of devices for which torch has fused optimizers.
FUSED = ("cpu", "cuda", "xpu")

# : Each algorithm's class, with the names of the settings that are passed as arguments.
_ALGORITHMS: dict[str, tuple[type[torch.optim.Optimizer], set[str]]] = {
    "adamw": (torch.optim.AdamW, {"lr", "betas", "eps"}),
    "adam": (torch.optim.Adam, {"lr", "betas", "eps"}),
    "sgd": (torch.optim.SGD, {"lr", "momentum", "nesterov"}),
}


def build_optimizer(task: Task, model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Returns the task's own optimizer if it defines one, else the one that `settings` choose.

    If the task defines a list of optimizers, they are combined.
    """
    optimizer = getattr(task, "optimizer", chosen)(model, settings)
    if isinstance(optimizer, list):
        optimizer = Optimizers(optimizer)
    return check_complete(model, optimizer)


def check_complete(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer.

    Raises ConfigError if the optimizer lacks a parameter that isn't frozen, because it would never be trained.
    """
    has = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if left := [name for name, each in model.named_parameters() if each.requires_grad and each not in has]:
        raise ConfigError(
            f"the task's optimizer doesn't have {listed(left)}: add them to a group, or freeze them "
            "(requires_grad=False in the task's model)"
        )
    return optimizer


def chosen(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Returns the optimizer chosen by `settings`. Weight decay applies only to matrices, not to vectors and scalars."""
    kind, names = _ALGORITHMS[settings.name]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    # A fused optimizer uses one kernel for all parameters and can skip a step without the host. On the CPU it reads
    # numbers in memory order, so it is used only for contiguous parameters, as others may differ in strides. Fused SGD
    # doesn't support DTensors (both torch 2.13).
    takes = FUSED if settings.name != "sgd" or not any(hasattr(p, "full_tensor") for p in trainable) else ()
    fused = all(p.is_contiguous() and p.device.type in takes for p in trainable)
    arguments = settings.model_dump(include=names) | {"fused": fused}
    return kind([group for group in groups if group["params"]], **arguments)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Sets every group's learning rate to its initial rate times `factor`; returns the first group's new rate.

    The initial rate is stored under the key that torch's schedulers use, but not in checkpoints.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return float(optimizer.param_groups[0]["lr"])


def can_leave_out(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer can skip a step on the device, as torch's fused ones can."""
    return getattr(_own(optimizer), "_step_supports_amp_scaling", False)


def step_unless(optimizer: torch.optim.Optimizer, left_out: torch.Tensor | None) -> None:
    """Makes a step unless `left_out` is 1 on the device.

    A `left_out` other than None requires an optimizer that `can_leave_out` a step.
    """
    own = _own(optimizer)
    # The fused SGD (torch 2.13) doesn't accept momentum for only some parameters, and its momentum is uninitialised if
    # the very first step is skipped. Starting with zeros gives an equal first step.
    for group in own.param_groups if isinstance(own, torch.optim.SGD) else ():
        for p in group["params"] if group["fused"] and group["momentum"] and not group["dampening"] else ():
            if p not in own.state:
                own.state[p]["momentum_buffer"] = torch.zeros_like(p)
    own.found_inf, own.grad_scale = left_out, None
    optimizer.step()


def _own(optimizer: torch.optim.Optimizer) -> Any:
    """Returns the optimizer that makes the step; for ZeRO-1 this is the optimizer of the rank's part."""
    return getattr(optimizer, "optim", optimizer)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Clips gradients to `max_norm` in place and returns the global L2 norm before clipping.

    The norm is a scalar tensor on the gradients' device. For sharded gradients (FSDP2) the norm covers all ranks.
    """
    parameters = list(parameters)
    # DTensors are recognised by their mesh, because importing the class takes half a second and only FSDP2 needs it.
    if parameters and hasattr(parameters[0], "device_mesh"):
        return _clip_sharded(parameters, max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    # The result equals torch.nn.utils.clip_grad_norm_ bit for bit. That function also sorts by device and type, which
    # takes longer than computing a small model's norm.
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


def by_mesh(parameters: Iterable[Any]) -> list[list[nn.Parameter]]:
    """Returns sharded parameters grouped by mesh, because torch's operations on several tensors need a common mesh."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(parameter.device_mesh, []).append(parameter)
    return list(found.values())


def _clip_sharded(parameters: list[nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Does the same as `clip_gradients` for sharded parameters; returns the norm over all ranks and meshes."""
    meshes = by_mesh(parameter for parameter in parameters if parameter.grad is not None)
    parts: list[Any] = [get_total_norm([p.grad for p in each if p.grad is not None]) for each in meshes]
    norms = [part.full_tensor() for part in parts]
    norm: torch.Tensor = norms[0] if len(norms) == 1 else get_total_norm(norms)
    if max_norm is not None:
        for each in meshes:
            clip_grads_with_norm_(each, max_norm, norm)
    return norm


class Optimizers(torch.optim.Optimizer):
    """This optimizer combines several optimizers, each of which steps its own parameters."""

    def __init__(self, members: list[torch.optim.Optimizer]) -> None:
        # Torch's constructor isn't called, because it would copy the groups, which are replaced when a state is loaded.
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
        """Loads a state whose parameters are numbered in the order of all groups."""
        groups, done = iter(state_dict["param_groups"]), 0
        for member in self.members:
            count = sum(len(group["params"]) for group in member.param_groups)
            own = [next(groups) for _ in member.param_groups]
            own = [{**group, "params": [number - done for number in group["params"]]} for group in own]
            states = {n - done: state for n, state in state_dict["state"].items() if done <= n < done + count}
            member.load_state_dict({"state": states, "param_groups": own})
            done += count
