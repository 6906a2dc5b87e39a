"""What a rank knows of attempts decides which group it forms next. Pure: no clock, no thread, no socket.

Two rules keep two groups from training both. A rank only ever forms the newest attempt that it knows of, each at most
once, and from then on takes no part in an older one. A group's step needs all of its members. Every attempt has a
member of the one before in it, so of two groups one lacks a member that has left for the other.

Ranks of one group may be a step apart when it breaks, because some had all of the last reduction, and some not. They
compare steps when they have met: the newest counts, and who lacks it is given it. A step that only a lost rank had made
is made again.

Where a state is sharded, the ranks of a unit have it together. Of an incomplete unit nobody trains. Whoever is left
keeps a state that grows old, unnoticed if the order was missed, so it counts for nothing: only units all of whose ranks
have a state are asked for the newest step. A lost rank comes again without a state, so such a unit was complete in each
attempt since it got its state, and takes the place of the member that every attempt has in common with the one before.

What a rank has of a state is given by one at the same place in another unit. Some place might have the newest step
nowhere (a torn step); then nobody can go on. It doesn't come to that: a unit makes a step together. When a rank has all
that comes from other units, it commits, and then makes one more collective with its own unit (the gradient's norm). It
makes the step when that succeeds, which it can only if all of the unit have committed. Until then a rank puts off
orders by which its unit stays complete, so that only the loss of a member breaks the collective, and with it the unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainloop.continuing.orders import Order

#: The step of a rank that has no state yet.
NO_STATE = -1


@dataclass(frozen=True)
class Membership:
    """One rank's membership; each method returns the next one."""

    rank: int
    #: The group that this rank trains in; None while it has none.
    group: Order | None = None
    #: The newest attempt that was assigned.
    newest: Order | None = None
    #: The newest attempt that this rank has met for, whether or not its group came about.
    tried: int = 0
    #: Whether a collective of the group has failed, or a member of it is lost.
    broken: bool = False

    def received(self, order: Order) -> Membership:
        """An order has come: a new one, an old one, or one that is known."""
        if self.newest is not None and order.attempt <= self.newest.attempt:
            return self
        lost = self.group is not None and not {*self.group.present} <= {*order.present}
        return replace(self, newest=order, broken=self.broken or lost)

    def failed(self) -> Membership:
        """A collective of the group has failed."""
        return replace(self, broken=self.group is not None)

    @property
    def known(self) -> int:
        """Returns the newest attempt that is known: what members tell each other in each step."""
        return max(0 if each is None else each.attempt for each in (self.group, self.newest))

    def forms(self) -> Order | None:
        """Returns the attempt to meet for, at the end of this step; None: there is none to meet for yet."""
        newest = self.newest
        if newest is None or newest.attempt <= self.tried or self.rank not in newest.present:
            return None
        return None if self.group is not None and newest.attempt <= self.group.attempt else newest

    def is_over(self) -> bool:
        """Returns whether this rank was replaced: the newest attempt goes on without it."""
        return self.group is not None and self.newest is not None and self.rank in self.newest.absent

    def meets(self, order: Order) -> Membership:
        """The rank leaves its group, and meets the others of `order`."""
        return replace(self, tried=order.attempt, broken=True)

    def formed(self, order: Order) -> Membership:
        """The group of `order` stands; a newer order may have come meanwhile."""
        newest = self.newest
        superseded = newest is not None and newest.attempt > order.attempt
        lost = superseded and newest is not None and not {*order.present} <= {*newest.present}
        return replace(self, group=order, broken=lost)


def exchange(steps: Mapping[int, int], unit: int = 1) -> tuple[int, dict[int, int]]:
    """Returns the newest step of those who have met, whole units, by rank; and for each rank that lacks the state after
    it the one that gives it, the lowest that has it at the same place. Raises ValueError where the state is nowhere.
    """
    lacking = {rank // unit for rank, step in steps.items() if step == NO_STATE}
    known = {rank: step for rank, step in steps.items() if rank // unit not in lacking}
    newest = max(known.values(), default=NO_STATE)
    if newest == NO_STATE:
        raise ValueError(f"a step is half made on all {'ranks' if unit == 1 else 'replicas'} that are left")
    sources = dict[int, int]()
    for rank in sorted(known, reverse=True):
        if known[rank] == newest:
            sources[rank % unit] = rank
    if len(sources) < unit:
        raise ValueError(f"step {newest} is made by some ranks of a replica, and not by all")
    return newest, {rank: sources[rank % unit] for rank in steps if known.get(rank) != newest}
