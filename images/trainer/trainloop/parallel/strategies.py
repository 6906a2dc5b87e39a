"""The model is distributed over the ranks by torch's strategies, for which this module defines a common interface.

With every strategy, each rank has the gradient of `sum over ranks(loss) / ranks` after the last micro-batch's backward
pass. The trainer multiplies the loss by `ranks / global count`. So the step uses the gradient of the mean over the
global batch, even if the batch is divided unevenly.

A checkpoint always contains complete tensors by name, so another strategy or number of ranks can load it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field, PositiveInt
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainloop.distributed.world import World
from trainloop.parallel.communication import GradientExchange
from trainloop.settings import Settings

#: An optimizer's state by parameter name. Unlike torch's numbers, names stay the same if the strategy changes.
NamedState = dict[str, dict[str, Any]]
#: Names and whole tensors of parameters and buffers, one after the other.
Values = Iterable[tuple[str, torch.Tensor]]
#: Returns torch's parallel styles by module name, from the model and the number of ranks that share a layer.
Plan = Callable[[nn.Module, int], dict[str, Any]]


class ParallelSettings(Settings):
    """These settings decide how the model is distributed over the ranks."""

    strategy: Literal["ddp", "zero1", "fsdp"] = Field(
        "ddp", description="ddp: every rank has all. zero1: the optimizer's state is spread. fsdp: all is (FSDP2)."
    )
    data: PositiveInt | tuple[PositiveInt, PositiveInt] | None = Field(
        None,
        description="Parts that a batch is cut into; null is ranks / tensor. [replicas, shards]: fsdp shards over the "
        "second number alone, and each of so many replicas has all shards.",
    )
    tensor: int = Field(
        1,
        ge=1,
        description="Neighbouring ranks that share each layer, as the task's parallel_plan cuts it; they have the same "
        "data. Only with fsdp, which then is over the others.",
    )
    gather_dtype: Literal["own", "bf16"] = Field(
        "own",
        description="What FSDP2 gathers weights in. bf16 halves what is sent for them, and what autocast would copy; "
        "gradients are still reduced in fp32. Only with precision.compute bf16.",
    )
    copies: bool = Field(True, description="With zero1 under Trainmaster two ranks hold each shard: one may be lost.")
    bucket_mb: float | None = Field(
        None,
        gt=0,
        description="MiB of gradients that DDP sends together; null: 1 at first, so that it begins early, then 25.",
    )
    find_unused_parameters: bool = Field(False, description="Batches reach different layers: look for them every step.")


class Replica:
    """A replica is a model that DistributedDataParallel distributes over ranks; subclasses distribute it otherwise.

    A single rank uses the bare model. Methods that return or load a state are collective.
    """

    #: Whether every rank must make as many forward passes as the rank with the most, because passes are collective.
    equal_passes = False
    # : Whether every rank holds the full model, the same bit for bit.
    replicated = True
    #: Whether the backward pass reduces gradients, so that their norm is the same on every rank.
    reduced = True

    def __init__(self, settings: ParallelSettings, model: nn.Module, world: World, exchange: GradientExchange) -> None:
        self.model, self.world, self.exchange = model, world, exchange
        exchange.names.update((parameter, name) for name, parameter in model.named_parameters())
        self.wrap(settings)

    def wrap(self, settings: ParallelSettings) -> None:
        """Starts DDP for those parameters that are trained now."""
        self.wrapped: DistributedDataParallel | None = None  # frees the old buckets before new ones are made
        self.trained = [parameter.requires_grad for parameter in self.model.parameters()]
        if self.world.size > 1:
            self.wrapped = DistributedDataParallel(
                self.model,
                device_ids=None if self.world.device.type == "cpu" else [self.world.device],
                bucket_cap_mb=settings.bucket_mb,
                find_unused_parameters=settings.find_unused_parameters,
                gradient_as_bucket_view=True,
            )
            self.wrapped.register_comm_hook(self.exchange, GradientExchange.reduce)

    @property
    def forward(self) -> Callable[..., Any]:
        """Returns the function for a forward pass in training."""
        return self.wrapped or self.model

    def synchronising(self, last: bool) -> AbstractContextManager[None]:
        """Returns the context for a micro-batch's forward and backward passes; the `last` one reduces gradients."""
        # no_sync must include the forward pass, because DDP decides in it whether the next backward pass reduces.
        return nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()

    def spread(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Returns the optimizer with its state distributed by the strategy; call this before the first step."""
        return optimizer

    def after_step(self, step: int) -> int:
        """Does what the strategy needs after the optimizer's step number `step` (from 1); returns the bytes sent."""
        return 0

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the ranks' models equal before an evaluation or a checkpoint.

        Each rank has its own buffers (BatchNorm's statistics). They are replaced by rank 0's, as DDP would do in the
        next forward pass.
        """
        for buffer in self.model.buffers() if self.world.size > 1 else ():
            dist.broadcast(buffer, 0)

    def model_state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Returns the full model's state by name.

        If `keep` is false, a rank with a sharded model only takes part in gathering the state, and returns nothing.
        """
        return self.model.state_dict()

    def load_model(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state)

    def optimizer_state(self, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> NamedState:
        """Returns the whole optimizer's state by parameter name; `keep` is as in `model_state`."""
        named, state = self.model.named_parameters(), optimizer.state
        return {name: dict(state[parameter]) for name, parameter in named if parameter in state}

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: NamedState) -> None:
        """Loads a state by parameter name. The settings of the optimizer's groups stay those of the configuration."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        numbered = {number: state[name] for number, name in enumerate(ordered) if name in state}
        numbers = itertools.count()
        groups = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in optimizer.param_groups]
        optimizer.load_state_dict({"state": numbered, "param_groups": groups})
