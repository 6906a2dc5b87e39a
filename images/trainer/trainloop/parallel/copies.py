"""ZeRO-1 where lost ranks stop nobody: two ranks hold each shard of the optimizer's state, and both are always current.

DDP gives every rank all gradients, so the shard's own rank and its neighbour make the same update of it, and nothing is
sent for the copy. Then the shard's own rank sends its weights to all others; where it is absent the neighbour does.

A step is made when all weights have come. Where the group breaks before that, ranks differ: some have updated their
shards, and some haven't. No vote precedes the update, because whoever has begun it still has the whole gradients. In
the next group these go to the ranks that lack them, those make the update too, and all weights are sent again. So the
step that one rank has begun is made by all.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainloop.distributed.world import World
from trainloop.errors import TrainingError

#: What one parameter has in an optimizer.
Moments = dict[str, Any]


def dealt(sizes: Iterable[Sequence[int]], count: int) -> list[list[list[int]]]:
    """Returns for each group of parameters, by their sizes, which of them each of `count` shards has: the largest
    first, each to the smallest shard.
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
    """Returns the ranks that hold a shard: its own, and the one of the same number in the next worker. In a single
    worker that is the next rank.
    """
    return shard, (shard + (local_ranks if local_ranks < ranks else 1)) % ranks


class Mirrored(torch.optim.Optimizer):
    """Makes the updates of two shards with `optim`, an optimizer of the same kind as the one that it replaces."""

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
        """Returns which of `ranks` gives a shard to others."""
        return next(rank for rank in self.holders(shard) if rank in ranks)

    def copies(self) -> set[torch.Tensor]:
        """Returns the parameters that this rank holds, and another rank that is present gives."""
        rank, present = self.world.rank, self.world.present
        copied = [shard for shard in self.shards_of(rank) if self.source(shard, present) != rank]
        return {parameter for shard in copied for parameter in self.shards[shard]}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.update()
        self.send()

    def update(self) -> None:
        """Make the update of this rank's two shards."""
        pairs = list(zip(self.param_groups, self.optim.param_groups, strict=True))
        for whole, own in pairs:
            own.update({name: value for name, value in whole.items() if name != "params"})
        self.optim.step()
        for whole, own in pairs:
            whole.update({name: value for name, value in own.items() if name != "params"})

    def send(self, ranks: Collection[int] | None = None) -> None:
        """Send the weights of all shards to all ranks, each from one of `ranks`: those that are present."""
        work = []
        for number, shard in enumerate(self.shards):
            source = self.source(number, self.world.present if ranks is None else ranks)
            work += [dist.broadcast(parameter.detach(), source, async_op=True) for parameter in shard]
        for each in filter(None, work):
            each.wait()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's two shards from a state whose parameters are numbered in the order of all groups."""
        numbers = {each: number for number, each in enumerate(_parameters(self.param_groups))}
        places = {each: place for place, each in enumerate(_parameters(self.optim.param_groups))}
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
    return any(isinstance(member, Mirrored) for member in _members(optimizer))


def copies(optimizer: torch.optim.Optimizer) -> set[torch.Tensor]:
    """Returns the parameters of which this rank holds the state, and another rank that is present gives it."""
    return {each for member in _members(optimizer) if isinstance(member, Mirrored) for each in member.copies()}


class Mending:
    """After a fault the present ranks bring their shards, and with them their weights, to the same update."""

    def __init__(self, optimizer: torch.optim.Optimizer, world: World, *, joins: bool) -> None:
        self._members, self._world = _members(optimizer), world
        #: Whether this rank has updated its shards, and maybe lacks what others send.
        self.updated = False
        #: Whether a step is made but for the weights that others send. It is, or isn't, on all ranks of a new group.
        self.unfinished = False
        self._mended = not joins
        #: The number of the update after which this rank's shards are; None: it has none, or they are half updated.
        self._at: int | None = None
        #: Of that update, until all ranks have made it.
        self._gradients: list[torch.Tensor | None] | None = None

    def begin(self, updates: int, *, whole: bool) -> None:
        """Training was interrupted after so many updates. `whole` is whether the state is that after a step."""
        if not self._mended:
            return  # another fault has come before the first one was mended
        self._mended = False
        self.unfinished = self.updated
        self._at = updates if whole or self.updated else None
        self._gradients = [each.grad for each in self._parameters()] if self.updated else None

    def number(self, step: int, *, whole: bool) -> int | None:
        """Returns what ranks compare: one that has all weights after a step is ahead of one that doesn't have them yet;
        None where this rank has no state.
        """
        if self.unfinished:
            return 2 * step - 1
        return 2 * step if whole else None

    def weights(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Returns this rank's weights, as far as they are in shards."""
        held = set(self._parameters())
        return {name: parameter for name, parameter in model.named_parameters() if parameter in held}

    def mend(self, updates: int) -> None:
        """Bring the ranks of a new group, which are after the same step, to its shards and weights; collective. Raises
        TrainingError where no rank that is present has some shard.
        """
        world = self._world
        at, gives = self._gather()
        behind = [rank for rank in world.present if at[rank] == updates - 1]
        giving = [rank for rank in world.present if at[rank] == updates and gives[rank]]
        if self.unfinished and behind and giving:
            self._give_gradients(giving[0])
            if world.rank in behind:
                self._update(updates)
            at, _ = self._gather()  # nobody goes on, and drops its gradients, before all have them
        current = [rank for rank in world.present if at[rank] == updates]
        for member in self._members:
            for shard in range(world.size):
                if not set(current).intersection(member.holders(shard)):
                    first, second = member.holders(shard)
                    raise TrainingError(
                        f"no rank that is left has shard {shard} of the optimizer's state, which ranks {first} and "
                        f"{second} held: the run can't continue, and restarts from memory or a checkpoint"
                    )
        if world.rank not in current:
            self._at = None  # what it has may be half loaded when it is interrupted
        for member in self._members:
            for shard in range(world.size):
                lacking = [rank for rank in member.holders(shard) if rank in world.present and rank not in current]
                if lacking:
                    moments = world.from_rank(member.source(shard, current), member.moments(shard))
                    if world.rank in lacking:
                        member.load_moments(shard, moments)
        self._at = updates
        if self.unfinished:
            for member in self._members:
                member.send(current)
        world.barrier()
        self._gradients, self._mended, self.unfinished = None, True, False

    def _gather(self) -> tuple[list[int | None], list[bool]]:
        found = self._world.gather((self._at, self._gradients is not None))
        return [at for at, _ in found], [gives for _, gives in found]

    def _give_gradients(self, source: int) -> None:
        """Give the gradients of the update to all ranks, with the rates."""
        own, groups = self._gradients or [], [group for member in self._members for group in member.param_groups]
        about = ([each is not None for each in own], [group["lr"] for group in groups])
        there, rates = self._world.from_rank(source, about)
        given = list[torch.Tensor | None]()
        for parameter, has in zip(self._parameters(), there, strict=True):
            gradient = own[len(given)] if self._world.rank == source else torch.empty_like(parameter)
            given.append(gradient if has else None)
            if has and gradient is not None:
                dist.broadcast(gradient.detach(), source)
        self._world.barrier()
        if self._gradients is None:
            self._gradients = given
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _update(self, updates: int) -> None:
        for parameter, gradient in zip(self._parameters(), self._gradients or [], strict=True):
            parameter.grad = gradient
        for member in self._members:
            member.update()
            member.zero_grad(set_to_none=True)
        self._at = updates

    def _parameters(self) -> Iterable[torch.Tensor]:
        return (each for member in self._members for each in _parameters(member.param_groups))


def _members(optimizer: Any) -> list[Any]:
    return getattr(optimizer, "members", [optimizer])


def _parameters(groups: list[dict[str, Any]]) -> Iterable[torch.Tensor]:
    return (parameter for group in groups for parameter in group["params"])
