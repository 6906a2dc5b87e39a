"""ZeRO-1 and FSDP2 are the strategies for models that don't fit on a single device."""

from __future__ import annotations

import fnmatch
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from trainloop.distributed.world import World, ring_bytes
from trainloop.errors import ConfigError, listed
from trainloop.optimization.optimizer import Optimizers, by_mesh
from trainloop.parallel.blocks import blocks
from trainloop.parallel.communication import GradientExchange
from trainloop.parallel.copies import Mirrored, copies
from trainloop.parallel.deferred import replace_tensors, tensors_of
from trainloop.parallel.gradients import accumulating
from trainloop.parallel.strategies import NamedState, ParallelSettings, Plan, Replica, Values


class ZeroRedundancy(Replica):
    """This is DDP with the optimizer's state split among the ranks (Rajbhandari et al. 2020, stage 1)."""

    def spread(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if isinstance(optimizer, Optimizers):
            return Optimizers([self.spread(member) for member in optimizer.members])
        if hasattr(self.world, "continuing"):
            mirrored = Mirrored(optimizer, self.world)
            mirrored.register_step_post_hook(self._count)
            return mirrored
        kind = type(optimizer)
        known = inspect.signature(kind).parameters
        arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
        spread = ZeroRedundancyOptimizer(optimizer.param_groups, optimizer_class=kind, **arguments)
        spread.register_step_post_hook(self._count)
        return spread

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Counts the bytes of the updated parameters that ranks broadcast, of which a rank sends an average part."""
        numbers = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
        self.exchange.times.sent += numbers * (self.world.size - 1) // self.world.size

    def optimizer_state(self, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> NamedState:
        members: list[Any] = optimizer.members if isinstance(optimizer, Optimizers) else [optimizer]
        own = super().optimizer_state(Optimizers([member.optim for member in members]))
        given_by_others, named = copies(optimizer), dict(self.model.named_parameters())
        parts = self.world.gather({name: own[name] for name in own if named[name] not in given_by_others})
        return {name: state for part in parts for name, state in part.items()}


class Counted:
    """This mixin counts the bytes that a rank sends in FSDP2's collectives.

    In each collective, a rank sends one shard to every other rank.
    """

    def __init__(self, exchange: GradientExchange) -> None:
        self._exchange = exchange

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *more: Any, **named: Any) -> Any:
        # One of the two tensors is complete, and the other is a rank's shard.
        self._exchange.sent += abs(output_tensor.nbytes - input_tensor.nbytes)
        return super().__call__(output_tensor, input_tensor, *more, **named)  # type: ignore[misc]


class CountedAllGather(Counted, DefaultAllGather):
    """This is FSDP2's own all-gather, whose bytes are counted."""


class CountedReduceScatter(Counted, DefaultReduceScatter):
    """This is FSDP2's own reduce-scatter, whose bytes are counted, including the later reduction over the replicas.

    Its input is the rank's own gradients, so their norm is measured here.
    """

    def __init__(self, exchange: GradientExchange, replicas: int) -> None:
        Counted.__init__(self, exchange)
        self._replicas = replicas

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *more: Any, **named: Any) -> Any:
        if named["op"] == ReduceOp.AVG:  # otherwise (fp64), torch has already divided the gradients
            self._exchange.measure(input_tensor)
        self._exchange.sent += ring_bytes(output_tensor.numel(), self._replicas, output_tensor.element_size())
        return super().__call__(output_tensor, input_tensor, *more, **named)


class FullySharded(Replica):
    """FSDP2 shards the model over all ranks, or over the ranks of each replica.

    The units of sharding are the model's blocks, and its root, which includes everything outside the blocks.
    """

    equal_passes = True
    replicated = False

    def __init__(
        self,
        settings: ParallelSettings,
        model: nn.Module,
        world: World,
        exchange: GradientExchange,
        values: Values | None,
        plan: Plan | None,
    ) -> None:
        sizes = {"replicas": world.replicas, "shards": world.unit // world.tensor, "tensor": world.tensor}
        grid = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if world.tensor > 1:
            share_layers(model, plan, grid["tensor"])
        mesh = grid["replicas", "shards"] if world.replicas > 1 else grid["shards"]
        policy = MixedPrecisionPolicy()
        if settings.gather_dtype == "bf16":
            # Inputs aren't cast, because autocast decides for each operation.
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for unit in units(model, settings.find_unused_parameters):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        # `fully_shard` works in place: it makes the model's class an FSDPModule.
        self._root = fully_shard(model, mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(CountedAllGather(exchange))
                module.set_custom_reduce_scatter(CountedReduceScatter(exchange, world.replicas))
        self.model, self.world, self.exchange, self.wrapped = model, world, exchange, None
        if values is not None:
            replace_tensors(model, lambda tensor: torch.empty_like(tensor, device=world.device))
            self._fill(values)
        named = model.named_parameters()
        self._optional = {name: p for name, p in named if settings.find_unused_parameters or _is_expert(name)}
        self._reached = set[str]()  # the optional parameters that this rank's passes have reached in this step
        # Hooks show which parameters were reached; gradients don't, because an expert's gradients may be zeros. The
        # full parameters are the same objects in every pass, so their hooks stay.
        for name, parameter in accumulating(model) if self._optional else ():
            if name in self._optional and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._reached.add(name))  # type: ignore[no-untyped-call]
        if self._optional and hasattr(self._root, "set_reduce_scatter_unused_params"):  # since torch 2.12
            # Without this, ranks whose batches reach different experts would reduce different tensors.
            self._root.set_reduce_scatter_unused_params(True)

    def spread(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if self.world.tensor > 1:
            split_groups(optimizer)
        return optimizer

    @torch.no_grad()
    def _fill(self, values: Values) -> None:
        """Fills the model with this rank's parts of the values."""
        own = tensors_of(self.model)
        for name, value in values:
            local(own[name]).copy_(local(like(value, own[name])))
            del value  # frees memory before the next one is computed

    @contextmanager
    def synchronising(self, last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(last)
        yield
        if last and self._optional:
            self._drop_unreached()

    def _drop_unreached(self) -> None:
        """Drops the zero gradients of experts that no rank's batch reached, so that the optimizer skips them."""
        counts = self.world.sum([float(name in self._reached) for name in self._optional])
        self._reached.clear()
        for parameter, ranks in zip(self._optional.values(), counts, strict=True):
            parameter.grad = parameter.grad if ranks else None

    def model_state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        gathered = ((name, whole(tensor)) for name, tensor in self.model.state_dict().items())
        return {name: tensor for name, tensor in gathered if keep}

    def load_model(self, state: dict[str, torch.Tensor]) -> None:
        own = self.model.state_dict()
        super().load_model({name: like(tensor, own[name]) for name, tensor in state.items()})

    def optimizer_state(self, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> NamedState:
        gathered = NamedState()
        for name, state in super().optimizer_state(optimizer).items():
            values = {key: whole(value) for key, value in state.items()}
            if keep:
                gathered[name] = values
        return gathered

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: NamedState) -> None:
        own, sharded = dict(self.model.named_parameters()), {}
        for name, values in state.items():
            sharded[name] = {key: like(value, own[name]) for key, value in values.items()}
        super().load_optimizer(optimizer, sharded)


def build_sharded(
    settings: ParallelSettings,
    model: nn.Module,
    world: World,
    exchange: GradientExchange,
    values: Values | None,
    plan: Plan | None,
) -> Replica:
    """Returns `model`, distributed by ZeRO-1 or FSDP2; the arguments are those of `build_replica`."""
    if settings.strategy == "fsdp":
        return FullySharded(settings, model, world, exchange, values, plan)
    return ZeroRedundancy(settings, model, world, exchange)


def units(model: nn.Module, find_unused: bool) -> list[nn.Module]:
    """Returns the blocks that are FSDP2's units, whose weights it gathers together; nested blocks come first.

    Other modules belong to the unit of their parent. Because gathering is collective, every rank must reach every unit.
    So experts, which are recognised by their name, are no units; nor are nested blocks if `find_unused` is true. Blocks
    that share a weight with the rest of the model aren't units either.
    """
    found, uses = blocks(model), _uses(model)
    nested = {inner for block in found for inner in block.modules() if find_unused and inner is not block}
    left = nested | {module for name, module in model.named_modules() if _is_expert(name)}
    return [block for block in found if block not in left and _uses(block).items() <= uses.items()]


def _is_expert(name: str) -> bool:
    return "expert" in name.lower()


def _uses(module: nn.Module) -> Counter[nn.Parameter]:
    """Returns, for each parameter, in how many places `module` uses it."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def local(tensor: Any) -> torch.Tensor:
    """Returns this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(value: Any) -> Any:
    """Returns a sharded tensor as a whole tensor on the host; any other value unchanged."""
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def like(value: Any, parameter: torch.Tensor) -> Any:
    """Returns a whole tensor sharded like `parameter`, if it has the parameter's shape; any other value unchanged.

    Every rank has the whole tensor, so a rank only has to keep its part, and nothing is sent.
    """
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    if isinstance(value, DTensor):
        return value
    part = value[tuple(slice(begin, begin + length) for begin, length in region(parameter))]
    return from_part(part.to(parameter.device), parameter)


def from_part(part: torch.Tensor, parameter: DTensor) -> DTensor:
    """Returns a tensor that is sharded like `parameter`, and of which `part` is this rank's part."""
    mesh, placements, stride = parameter.device_mesh, parameter.placements, parameter.stride()
    return DTensor.from_local(
        part.contiguous(), mesh, placements, run_check=False, shape=parameter.shape, stride=stride
    )


def region(tensor: DTensor) -> list[tuple[int, int]]:
    """Returns the start and length of this rank's part of `tensor` in each dimension."""
    found, mesh = [(0, length) for length in tensor.shape], tensor.device_mesh
    placed = [(index, placement) for index, placement in enumerate(tensor.placements) if hasattr(placement, "dim")]
    # A dimension that FSDP2 shards after tensor parallelism has a _StridedShard in the mesh's first dimension, so that
    # one is applied last.
    for index, placement in sorted(placed, key=lambda pair: hasattr(pair[1], "split_factor")):
        begin, length = found[placement.dim]
        part = -(-length // mesh.size(index))  # like torch.chunk, which makes equal parts and a shorter last one
        before = min(length, mesh.get_local_rank(index) * part)
        found[placement.dim] = (begin + before, min(part, length - before))
    return found


def share_layers(model: nn.Module, plan: Callable[[nn.Module, int], dict[str, Any]] | None, mesh: DeviceMesh) -> None:
    """Divides the model's layers among the ranks of `mesh`, in place. Raises ConfigError if the plan doesn't fit."""
    if plan is None:
        raise ConfigError(
            f"parallel.tensor is {mesh.size()}, but the task has no parallel_plan(model, ranks), which says how its "
            "model's layers are cut: add one (docs/training.md), or set it to 1"
        )
    styles = plan(model, mesh.size())
    names = [name for name, _ in model.named_modules() if name]
    if unknown := [pattern for pattern in styles if not fnmatch.filter(names, pattern)]:
        raise ConfigError(f"the task's parallel_plan names {listed(unknown)}, and its model has {listed(names)}")
    from torch.distributed.tensor.parallel import parallelize_module  # takes a quarter of a second

    # Every rank has the same whole layers, or layers without values, so nothing is sent.
    parallelize_module(model, mesh, styles, src_data_rank=None)


def split_groups(optimizer: torch.optim.Optimizer) -> None:
    """Splits the optimizer's groups by mesh, because torch steps a group in one operation, which needs one mesh."""
    groups = optimizer.param_groups
    split = [{**group, "params": parameters} for group in groups for parameters in by_mesh(group["params"])]
    groups[:] = split
