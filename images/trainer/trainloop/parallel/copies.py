"""This ZeRO-1 survives the loss of ranks, because two ranks hold a current copy of each shard of the optimizer's state.

DDP gives every rank all gradients. So the shard's own rank and a second rank make the same update, and the copy needs
no messages. Then the shard's own rank, or the second rank if the first is absent, sends the weights to all other ranks.
After a fault, `continued.strategies` brings the ranks to the same step.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainloop.distributed.world import World

#: An optimizer's state of one parameter.
Moments = dict[str, Any]


def dealt(sizes: Iterable[Sequence[int]], count: int) -> list[list[list[int]]]:
    """Returns, for each group of parameters and each of `count` shards, the numbers of the parameters in the shard.

    `sizes` lists the parameters' sizes by group. Parameters are assigned in order of size, the largest first, each to
    the shard that is smallest so far.
    """
    filled, found = [0] * count, list[list[list[int]]]()
    for group in sizes:
        found.append([[] for _ in range(count)])
        for number in sorted(range(len(group)), key=lambda number: -group[number]):
            smallest = filled.index(min(filled))
            found[-1][smallest].append(number)
            filled[smallest] += group[number]
    return found


def holders(shard: int, ranks: int, local_ranks: int) -> tuple[int, int]:
    """Returns the two ranks that hold a shard: its own rank, and the rank with the same local rank in the next worker.

    If there is a single worker, the second rank is the one after the shard's own.
    """
    return shard, (shard + (local_ranks if local_ranks < ranks else 1)) % ranks


class Mirrored(torch.optim.Optimizer):
    """This optimizer updates the shards that this rank holds with `optim`, an optimizer of the original class."""

    def __init__(self, optimizer: torch.optim.Optimizer, world: World) -> None:
        kind = type(optimizer)
        known = inspect.signature(kind).parameters
        arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.world = world
        self.shards = list[list[torch.Tensor]]([] for _ in range(world.size))
        sizes = [[parameter.numel() for parameter in group["params"]] for group in self.param_groups]
        for group, shards in zip(self.param_groups, dealt(sizes, world.size), strict=True):
            for shard, numbers in zip(self.shards, shards, strict=True):
                shard += [group["params"][number] for number in numbers]
        held = {each for shard in self.shards_of(world.rank) for each in self.shards[shard]}
        groups = [{**group, "params": [p for p in group["params"] if p in held]} for group in self.param_groups]
        self.optim: Any = kind(groups, **arguments)

    def holders(self, shard: int) -> tuple[int, int]:
        return holders(shard, self.world.size, self.world.local_size)

    def shards_of(self, rank: int) -> list[int]:
        """Returns the shards that a rank holds."""
        return [shard for shard in range(self.world.size) if rank in self.holders(shard)]

    def source(self, shard: int, ranks: Collection[int]) -> int:
        """Returns the one of `ranks` that sends a shard to the other ranks."""
        return next(rank for rank in self.holders(shard) if rank in ranks)

    def copies(self) -> set[torch.Tensor]:
        """Returns the parameters that this rank holds but another present rank sends."""
        rank, present = self.world.rank, self.world.present
        copied = [shard for shard in self.shards_of(rank) if self.source(shard, present) != rank]
        return {parameter for shard in copied for parameter in self.shards[shard]}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.update()
        self.send()

    def update(self) -> None:
        """Updates the weights in this rank's two shards."""
        pairs = list(zip(self.param_groups, self.optim.param_groups, strict=True))
        for whole, own in pairs:
            own.update({name: value for name, value in whole.items() if name != "params"})
        self.optim.step()
        for whole, own in pairs:
            whole.update({name: value for name, value in own.items() if name != "params"})

    def send(self, ranks: Collection[int] | None = None) -> None:
        """Sends the weights of every shard to all ranks; the sender is one of `ranks`, or of all present ranks."""
        work = []
        for number, shard in enumerate(self.shards):
            source = self.source(number, self.world.present if ranks is None else ranks)
            work += [dist.broadcast(parameter.detach(), source, async_op=True) for parameter in shard]
        for each in filter(None, work):
            each.wait()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this rank's two shards from a whole state, in which all groups' parameters are numbered in order."""
        numbers = {each: number for number, each in enumerate(parameters_of(self))}
        places = {each: place for place, each in enumerate(parameters_of(self.optim))}
        given = state_dict["state"]
        state = {place: given[numbers[each]] for each, place in places.items() if numbers[each] in given}
        groups = [{**group, "params": [places[p] for p in group["params"]]} for group in self.optim.param_groups]
        self.optim.load_state_dict({"state": state, "param_groups": groups})

    def moments(self, shard: int) -> list[Moments]:
        return [dict(self.optim.state.get(parameter, {})) for parameter in self.shards[shard]]

    def load_moments(self, shard: int, moments: list[Moments]) -> None:
        for parameter, given in zip(self.shards[shard], moments, strict=True):
            self.optim.state.pop(parameter, None)
            if given:
                self.optim.state[parameter] = given


def is_mirrored(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether two ranks hold each shard of an optimizer's state."""
    return any(isinstance(member, Mirrored) for member in members_of(optimizer))


def copies(optimizer: torch.optim.Optimizer) -> set[torch.Tensor]:
    """Returns the parameters whose state this rank holds but another present rank sends."""
    return {each for member in members_of(optimizer) if isinstance(member, Mirrored) for each in member.copies()}


def members_of(optimizer: Any) -> list[Any]:
    """Returns the members of a combined optimizer, or the optimizer itself."""
    return getattr(optimizer, "members", [optimizer])


def parameters_of(optimizer: Any) -> Iterable[torch.Tensor]:
    """Yields an optimizer's parameters, in the order of its groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
