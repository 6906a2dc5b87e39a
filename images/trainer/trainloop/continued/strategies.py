"""After a fault, the ranks are brought to the same step, in a different way for each of DDP, ZeRO-1 and FSDP2.

With DDP (`Replicated`) each rank holds the full state after the last step that it has made. A rank that is a step
behind, or that joins, receives the state.

With ZeRO-1 (`InCopies`, which uses `parallel.copies`) ranks need each other's weights after the update. A step is made
when all weights have arrived. If the group breaks earlier, the ranks differ, because only some of them have updated
their shards. No vote is needed before the update, because a rank that has begun the update still holds the full
gradients. In the next group, that rank sends the gradients to the ranks that have not made the update. These ranks then
make it, and all weights are sent again. So all ranks of the next group make the step that at least one rank has begun.

With FSDP2 (`Sharded`) the ranks of a replica belong together (`continuing.membership`). When a rank is lost, the other
ranks of its replica wait, and the complete replicas continue training. A rank receives its part of the state from the
rank at the same place in another replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from trainloop.config import Config
from trainloop.continued.world import ContinuingWorld
from trainloop.continuing import start
from trainloop.continuing.membership import NO_STATE
from trainloop.errors import TrainingError
from trainloop.parallel.copies import members_of, parameters_of
from trainloop.parallel.strategies import Replica
from trainloop.recovery.tensors import cloned, local, spread_as

#: torch's optimizers that communicate in their step if a parameter is sharded.
_REDUCING = ("Adafactor", "LBFGS", "Muon")


def obstacle(config: Config, device: torch.device) -> str | None:
    """Returns why a run can't continue in its processes when ranks are lost; None if it can."""
    parallel, communication = config.parallel, config.communication
    feedback, zero1 = communication.compression in ("onebit", "powersgd"), parallel.strategy == "zero1"
    replicas = parallel.data[0] if isinstance(parallel.data, tuple) else 1
    reasons = {
        f"with parallel.strategy {parallel.strategy} a lost rank's part of the state is nowhere else": (
            zero1 and not parallel.copies
        ),
        "with one replica a lost rank's part of the state is nowhere else; with parallel.data: [2, ...], two replicas, "
        "the other one trains on": parallel.strategy == "fsdp" and replicas == 1,
        f"with zero1 on {device.type} an update that is queued can't be taken back": zero1 and device.type != "cpu",
        "with communication.local_steps a lost rank's own steps are lost": communication.local_steps > 1,
        "with delayed.pattern the gradients that a lost rank has added up are lost": config.delayed.pattern is not None,
        f"what communication.compression {communication.compression} left out on a lost rank is lost": feedback,
        "with precision.compute fp16 a step can't be made again": config.precision.compute == "fp16",
        f"on {device.type} no group can be formed again": device.type not in ("cpu", "cuda"),
        f"with FSDP2 on {device.type} a step that is queued can't be taken back": (
            parallel.strategy == "fsdp" and device.type != "cpu"
        ),
    }
    return next((reason for reason, found in reasons.items() if found), None)


class Replicated:
    """With DDP every rank holds the full state."""

    #: Whether the newest step is made except that weights of lost ranks may be missing.
    unfinished = False
    #: The reason why this optimizer's steps can't be repeated; None if they can.
    obstacle: str | None = None
    #: The number of neighbouring ranks that hold a state together.
    unit = 1

    def __init__(self, replica: Replica, optimizer: torch.optim.Optimizer, world: ContinuingWorld) -> None:
        self.replica, self.optimizer, self.world = replica, optimizer, world

    def stepped(self, *, is_last: bool) -> None:
        """Record that the optimizer has made a step; `is_last` is true if no other follows within the run's step."""

    def advanced(self) -> None:
        """Record that the run has finished its step."""

    def interrupt(self, updates: int, *, whole: bool) -> bool:
        """Interrupt training after `updates` updates; `whole` is true if the state is that after a complete step.

        Returns whether the next group will complete the interrupted step, because its update has begun.
        """
        return False

    def number(self, step: int, *, whole: bool) -> int:
        """Returns the number by which ranks compare their states to find the newest one."""
        return step if whole else NO_STATE

    def drop_pass(self, rehearse: Callable[[], None]) -> None:
        """Drop an interrupted forward pass, after which DDP would expect a backward pass."""
        rehearse()

    def optimizer_state(self) -> dict[str, Any]:
        """Returns the optimizer's state, to be sent to a rank that lacks it; if it is sharded, this rank's part."""
        named: dict[str, Any] = local(Replica.optimizer_state(self.replica, self.optimizer))
        return named

    def load(self, model: dict[str, Any], optimizer: dict[str, Any], *, unfinished: bool) -> None:
        """Load another rank's state."""
        parameters, moments = dict(self.replica.model.named_parameters()), cloned(optimizer)
        for name, own in moments.items():
            moments[name] = {key: spread_as(value, parameters[name]) for key, value in own.items()}
        self.replica.load_optimizer(self.optimizer, moments)
        self._load_model(model, {})

    def _load_model(self, model: dict[str, Any], own: dict[str, Any]) -> None:
        self.replica.load_model({**spread(model, self.replica.model.state_dict()), **own})

    def seeds_again(self, *, anew: bool) -> bool:
        """Returns whether a rank that received the state is seeded again; for `anew` see `Continuing.anew`."""
        return anew

    def mend(self, updates: int) -> None:
        """Bring the ranks of a new group, which are at the same step, to the same state; collective."""


class Sharded(Replicated):
    """With FSDP2 the ranks of a replica hold the state together."""

    def __init__(self, replica: Replica, optimizer: torch.optim.Optimizer, world: ContinuingWorld) -> None:
        super().__init__(replica, optimizer, world)
        self.unit = world.unit
        for each in members_of(optimizer):
            kind = type(each)
            if not kind.__module__.startswith("torch.optim") or kind.__name__ in _REDUCING:
                self.obstacle = (
                    f"{kind.__name__} may need other ranks within its step, which a lost one leaves half made"
                )

    def drop_pass(self, rehearse: Callable[[], None]) -> None:
        model: Any = self.replica.model
        if not hasattr(model, "reset_iter_state"):  # before torch 2.13
            raise TrainingError(f"torch {torch.__version__} can't drop a pass of FSDP2's that was cut off: 2.13 can")
        model.reset_iter_state()


class InCopies(Replicated):
    """With ZeRO-1 two ranks hold each shard, and present ranks bring their shards and weights to the same update."""

    def __init__(self, replica: Replica, optimizer: torch.optim.Optimizer, world: ContinuingWorld) -> None:
        super().__init__(replica, optimizer, world)
        self._members = members_of(optimizer)
        #: Whether this rank has updated its shards, but may lack the weights of other ranks.
        self._updated = False
        self._mended = not world.is_alone
        #: The number of updates that this rank's shards include; None if it has no shards, or partly updated ones.
        self._at: int | None = None
        #: The gradients of the last update, until all ranks have made that update.
        self._gradients: list[torch.Tensor | None] | None = None

    def stepped(self, *, is_last: bool) -> None:
        self._updated = is_last  # otherwise more updates follow in this step
        start.check()  # raises if other ranks' weights may not have arrived

    def advanced(self) -> None:
        self._updated = False

    def interrupt(self, updates: int, *, whole: bool) -> bool:
        if self._mended:  # it is false if another fault occurs before the first one is mended
            self._mended, self.unfinished = False, self._updated
            self._at = updates + self._updated if whole or self._updated else None
            self._gradients = [each.grad for each in self._parameters()] if self._updated else None
        return self._updated

    def number(self, step: int, *, whole: bool) -> int:
        # If a rank has all weights after a step, it is ahead of a rank that lacks some of them.
        if self.unfinished:
            return 2 * step - 1
        return 2 * step if whole else NO_STATE

    def optimizer_state(self) -> dict[str, Any]:
        return {}  # `mend` sends the shards

    def load(self, model: dict[str, Any], optimizer: dict[str, Any], *, unfinished: bool) -> None:
        self.unfinished = unfinished
        own = dict[str, Any]()
        if unfinished:
            # Keep this rank's own weights, because it may still have to update them. All weights of this step arrive
            # later.
            held = set(self._parameters())
            named = self.replica.model.named_parameters()
            own = {name: parameter for name, parameter in named if parameter in held}
        self._load_model(model, own)

    def seeds_again(self, *, anew: bool) -> bool:
        return self.world.is_alone  # `anew` isn't usable, because the numbers that ranks compare aren't steps here

    def mend(self, updates: int) -> None:
        """Bring the ranks of a new group to the same update. Raises TrainingError if no present rank has a shard."""
        world = self.world
        at, gives = self._gather()
        behind = [rank for rank in world.present if at[rank] == updates - 1]
        giving = [rank for rank in world.present if at[rank] == updates and gives[rank]]
        if self.unfinished and behind and giving:
            self._give_gradients(giving[0])
            if world.rank in behind:
                self._update(updates)
            at, _ = self._gather()  # collective, so no rank drops its gradients before all ranks have them
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
            self._at = None  # an interruption may now leave the shards partly loaded
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
        found = self.world.gather((self._at, self._gradients is not None))
        return [at for at, _ in found], [gives for _, gives in found]

    def _give_gradients(self, source: int) -> None:
        """Send the update's gradients and learning rates from the rank `source` to all ranks."""
        own, groups = self._gradients or [], [group for member in self._members for group in member.param_groups]
        about = ([each is not None for each in own], [group["lr"] for group in groups])
        there, rates = self.world.from_rank(source, about)
        given = list[torch.Tensor | None]()
        for parameter, has in zip(self._parameters(), there, strict=True):
            gradient = own[len(given)] if self.world.rank == source else torch.empty_like(parameter)
            given.append(gradient if has else None)
            if has and gradient is not None:
                dist.broadcast(gradient.detach(), source)
        self.world.barrier()
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
        return (each for member in self._members for each in parameters_of(member))


def strategy_of(name: str, replica: Replica, optimizer: torch.optim.Optimizer, world: ContinuingWorld) -> Replicated:
    """Returns the object that continues a run whose `parallel.strategy` is `name`."""
    kinds: dict[str, type[Replicated]] = {"zero1": InCopies, "fsdp": Sharded}
    return kinds.get(name, Replicated)(replica, optimizer, world)


def spread(parts: Any, own: Any) -> Any:
    """Returns nested values in which each part of a tensor is replaced by a tensor sharded like the one in `own`."""
    if isinstance(parts, dict) and isinstance(own, dict):
        return {key: spread(value, own.get(key)) for key, value in parts.items()}
    if type(own) in (list, tuple) and isinstance(parts, list | tuple) and len(own) == len(parts):
        return type(own)(map(spread, parts, own))
    return spread_as(parts, own)
