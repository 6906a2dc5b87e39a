"""This module creates a run's model, and distributes it over the ranks by the strategy in the settings.

Rarely needed modules are imported on use: FSDP2 takes a second, and the time to start is part of every recovery.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from trainloop import seeding
from trainloop.distributed.world import World
from trainloop.errors import ConfigError
from trainloop.optimization.optimizer import check_complete
from trainloop.parallel.communication import GradientExchange
from trainloop.parallel.delayed import DelayedSettings, NothingDelayed
from trainloop.parallel.strategies import ParallelSettings, Plan, Replica, Values


def build_model(
    settings: ParallelSettings,
    make: Callable[[], nn.Module],
    world: World,
    dtype: torch.dtype,
    say: Callable[[str], None],
) -> tuple[nn.Module, Values | None]:
    """Returns the model that `make` creates, on the rank's device, with floating-point tensors as `dtype`.

    With fsdp the model is on the meta device, and an iterator that computes its values is returned too. If the model
    can't be made on the meta device, it is complete on the host, and `say` is called with the reason.
    """
    if world.size == 1 or settings.strategy != "fsdp":
        return _to_be_trained(make(), dtype).to(world.device), None
    from trainloop.parallel.deferred import recorded

    random = seeding.capture(world.device)
    try:
        model, values = recorded(make)
    except (RuntimeError, TypeError, ValueError) as error:
        say(f"every rank makes the whole model on its host, because it can't be made on the meta device: {error}")
        seeding.restore(random, world.device)
        return _to_be_trained(make(), dtype), None
    return _to_be_trained(model, dtype), values


def _to_be_trained(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Returns the model with its floating-point tensors as `dtype`; complex tensors (rotary positions) keep their type.

    Transformers loads models in evaluation mode; such a model is put in training mode. If the model is in training mode
    already, layers in evaluation mode (a frozen BatchNorm) stay in evaluation mode.
    """
    model = model if model.training else model.train()
    return model.double() if dtype == torch.float64 else model.float()


def build_replica(
    settings: ParallelSettings,
    model: nn.Module,
    world: World,
    exchange: GradientExchange,
    values: Values | None = None,
    plan: Plan | None = None,
    *,
    by_turns: bool = False,
) -> Replica:
    """Returns `model`, distributed by `settings`; a single rank needs no strategy.

    `model` and `values` are the results of `build_model`, and `plan` is the task's plan for tensor parallelism.
    `by_turns` is true if each backward pass computes gradients for only some parameters.
    """
    if by_turns and (settings.strategy != "fsdp" or world.size == 1):
        from trainloop.parallel.averaging import build_by_turns

        return build_by_turns(settings.strategy, model, world, exchange)
    if world.size > 1 and settings.strategy != "ddp":
        from trainloop.parallel.sharded import build_sharded

        return build_sharded(settings, model, world, exchange, values, plan)
    if world.size > 1 and exchange.settings.local_steps > 1:
        from trainloop.parallel.averaging import LocalSteps

        return LocalSteps(settings, model, world, exchange)
    return Replica(settings, model, world, exchange)


def divided(world: World, settings: ParallelSettings) -> World:
    """Returns the world with the layout in `settings`. Raises ConfigError if it doesn't fit the number of ranks."""
    tensor, data, parts = settings.tensor, settings.data, world.size // settings.tensor
    replicas = data[0] if isinstance(data, tuple) else 1
    if world.size % tensor:
        raise ConfigError(
            f"parallel.tensor is {tensor}, which doesn't divide the {world.size} rank(s): set one that does"
        )
    if data is not None and math.prod(data if isinstance(data, tuple) else [data]) != parts:
        raise ConfigError(
            f"parallel.data is {_shown(data)}, but {world.size} rank(s) by parallel.tensor {tensor} are {parts}: "
            "set it to that, or leave it out, so that the number of ranks may change"
        )
    return replace(world, tensor=tensor, replicas=replicas)


def _shown(data: int | tuple[int, int]) -> str:
    return str(list(data) if isinstance(data, tuple) else data)


def follow_freezing(replica: Replica, optimizer: torch.optim.Optimizer, settings: ParallelSettings) -> None:
    """Makes DDP reduce the gradients of those parameters that are trained now.

    During a run, a task's hooks may freeze or unfreeze parameters, the same ones on every rank. DDP would wait for the
    parameters that were trained when it started, so it is restarted. FSDP2 adapts by itself. Raises ConfigError if the
    optimizer lacks a trained parameter.
    """
    trained = [parameter.requires_grad for parameter in replica.model.parameters()]
    if replica.wrapped is not None and replica.reduced and replica.trained != trained:
        check_complete(replica.model, optimizer)
        replica.wrap(settings)


def delayed(settings: DelayedSettings, model: nn.Module) -> NothingDelayed:
    """Returns the delayed group. Raises ConfigError if the pattern in `settings` matches no parameter, or all."""
    if settings.pattern is None:
        return NothingDelayed()
    from trainloop.parallel.averaging import DelayedGroup

    return DelayedGroup(settings, model)
