"""When ranks are lost, a script's other ranks continue in their processes; this is the script's side of `continuing`.

If a collective failed in a step, the step's gradients are removed just before the optimizer's step, so the step changes
nothing. Steps that are already queued on a device are skipped by a flag (`Keeper.hold`). The host's changes since the
last step that was made (generators, buffers, a scheduler) are reverted. The ranks then form their next group, and the
loop's body runs again for the later steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import distributed_c10d

from trainloop.continuing.forming import Continuing
from trainloop.continuing.group import Group
from trainloop.continuing.membership import NO_STATE
from trainloop.progress import Progress
from trainloop.recovery import generators
from trainloop.recovery.tensors import is_large


class Continuation:
    """A continuation lets a script's rank continue from one attempt into the next."""

    #: Steps that a rank makes alone before it joins. In its second step DDP reorders its buckets by the gradients of
    #: the first step, and then has the same order as on the other ranks.
    rehearsals = 2

    def __init__(
        self,
        continuing: Continuing,
        optimizer: torch.optim.Optimizer,
        *,
        fewer_samples: bool,
        scales: bool,
        obstacle: str | None,
        hold: Callable[[], None],
        progress: Progress,
    ) -> None:
        """`scales` is true if a scaler may leave a step out; `hold` is called before collectives are ended."""
        self._continuing, self._optimizer = continuing, optimizer
        self._fewer_samples, self._obstacle, self._progress = fewer_samples, obstacle, progress
        self._shares, self._scales = fewer_samples, scales
        #: Whether the current step is left out.
        self.left_out = False
        self._told: str | None = None
        if continuing.has_loop:
            self.hinder("it has more than one Recovery")
        continuing.has_loop, continuing.hold = True, hold

    @property
    def joins(self) -> bool:
        """Returns whether this rank begins alone, and then joins ranks that are already training."""
        return self._continuing.joins

    @property
    def attempt(self) -> int:
        return self._continuing.attempt

    @property
    def writes(self) -> bool:
        """Returns whether this rank writes for all ranks, because it is the lowest present rank."""
        return self._continuing.rank == self._continuing.present[0]

    @property
    def known(self) -> int:
        """Returns the newest attempt that this rank knows of."""
        return self._continuing.membership.known

    @property
    def broken(self) -> bool:
        return self._continuing.able and self._continuing.broken

    def shares(self) -> Sequence[int]:
        """Record that the script divides its steps among the ranks; returns the present ranks."""
        self._shares, self._fewer_samples = True, False
        return self._continuing.present

    def leaves_out(self) -> bool:
        """Returns whether the optimizer's next step is left out; if so, the gradients are removed."""
        self.left_out |= self.broken or self.joins
        gradients = [
            each for group in self._optimizer.param_groups for each in group["params"] if each.grad is not None
        ]
        if self.left_out:
            for parameter in gradients:
                parameter.grad = None
        elif self._fewer_samples and (present := len(self._continuing.present)) < self._continuing.size:
            # The mean over all ranks becomes the mean over the ranks that have samples.
            torch._foreach_mul_([each.grad for each in gradients], self._continuing.size / present)
        return self.left_out

    def hinder(self, obstacle: str) -> None:
        """Record why this rank can't continue."""
        self._obstacle = self._obstacle or obstacle

    def over(self) -> None:
        """Record that the loop has ended. From then on a failing collective raises, because no step can be left out."""
        self._continuing.able = False
        if self._obstacle is None:
            self._progress.cannot_continue("its loop is over")

    def was_left_out(self, updates: int) -> bool:
        """Returns whether the loop's step that just ended, with `updates` optimizer steps, was left out."""
        left_out, self.left_out = self.left_out or (self.broken and not updates), False
        return left_out

    def made(self, updates: int) -> None:
        """Record a finished step with its number of optimizer steps, and report whether this rank can continue."""
        # A scaler may leave a step out, but a first step without an update means that the loop accumulates gradients.
        if updates > 1 or (updates == 0 and not (self._scales and self._continuing.able)):
            self.hinder(f"its optimizer makes {updates} steps in a step of its loop")
        if not self._shares:
            self.hinder("its script doesn't share out a lost rank's samples by recovery.parts()")
        obstacle = self._obstacle or self._continuing.obstacle or self._foreign_group()
        if obstacle is None and not self._continuing.able:
            self._continuing.able = True
            self._progress.able(self.attempt)
        elif obstacle is not None and obstacle != self._told:
            self._continuing.able, self._told = False, obstacle
            self._progress.cannot_continue(obstacle)

    def form(self, step: int, give: Callable[[], Any], load: Callable[[Any], None], stopped: Callable[[], bool]) -> int:
        """Form the next attempt's group; returns the step after which it continues. See `Continuing.form`."""
        joins = self.joins
        if joins:
            if self._obstacle is not None:
                self._progress.cannot_continue(self._obstacle)
                raise RuntimeError(f"this rank can't join the others: {self._obstacle}")
            self._progress.ready()
        after = self._continuing.form(NO_STATE if joins else step, give, load, stopped)
        self._told = None
        self._progress.joined_again(after)
        self._continuing.able = self._obstacle is None
        if self._obstacle is None:
            self._progress.able(self.attempt)
        return after

    def _foreign_group(self) -> str | None:
        """Returns a message if the script made a process group that can't be formed again, else None."""
        groups: Any = distributed_c10d
        foreign = [each for each in groups._world.pg_map if not isinstance(each, Group)]
        return f"it has {len(foreign)} process group(s) that were made in another way" if foreign else None


def obstacle_of(optimizer: torch.optim.Optimizer, others: dict[str, Any], *, kept: bool, divided: bool) -> str | None:
    """Returns why a script with this optimizer can't continue; None if no reason is known before the first step."""
    if not kept:
        return "no state is kept in memory"
    if divided:
        return "each rank has a part of the state, which is lost with it"
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS computes gradients within its step"
    if any(isinstance(each, torch.optim.Optimizer) for each in others.values()):
        return "a fault between the steps of several optimizers would leave the state half changed"
    for name, each in others.items():
        if is_large(each.state_dict()):
            return f"{name} has large tensors, which aren't kept for each step"
    return None


def share(count: int, size: int, present: Sequence[int], rank: int) -> list[int]:
    """Returns the parts, out of `count` in a step, that `rank` computes.

    A rank always computes its own parts. Each part of an absent rank is given to the rank with the fewest parts. Raises
    ValueError if there are fewer parts than ranks.
    """
    if count < size:
        raise ValueError(f"parts is {count}, which is fewer than the {size} ranks: each needs one in every step")
    shares = {each: list(range(each * count // size, (each + 1) * count // size)) for each in range(size)}
    orphans = [part for each in range(size) if each not in present for part in shares[each]]
    for part in orphans:
        fewest = min(present, key=lambda each: (len(shares[each]), each))
        shares[fewest].append(part)
    return shares[rank]


def seed(base: int, step: int, part: int, device: torch.device) -> None:
    """Seed the generators for one part of one step, so that its random numbers are the same on any rank."""
    number = int.from_bytes(hashlib.blake2b(f"{base}/{step}/{part}".encode(), digest_size=8).digest(), "big") >> 1
    generators.seed(number, device)


def passes(model: nn.Module, own: list[int], before: Callable[[int], None]) -> Iterator[int]:
    """Yields a rank's parts of a step, and calls `before` with each part first.

    Gradients are reduced in the backward pass of the last part.
    """
    for part in own:
        last = part == own[-1]
        with nullcontext() if last or not isinstance(model, nn.parallel.DistributedDataParallel) else model.no_sync():
            before(part)
            yield part
