"""A rank's knowledge of attempts decides which group the rank forms next.

This module uses no clock, thread or socket.

Two rules prevent two groups from training at the same time. First, a rank only forms the group of the newest attempt
that it knows, at most once per attempt, and then takes no part in older attempts. Second, a group's step needs all of
its members. Every attempt shares a member with the previous attempt. So if two groups exist, one of them lacks a member
that has left for the other, and can't train.

When a group breaks, its ranks may be a step apart, because only some have completed the last reduction. When they meet
again, they compare steps: the newest state is used, and ranks that lack it receive it. If only a lost rank had made a
step, the step is repeated.

If a state is sharded, the ranks of a unit hold it together, and an incomplete unit doesn't train. While it doesn't, its
ranks' state becomes old, and a rank that missed an order doesn't notice that. So only the steps of units in which all
ranks have a state are compared. A lost rank comes back without a state. So if all ranks of a unit have a state, the
unit was complete in each attempt since it got that state. Such a unit is the member that an attempt shares with the
previous attempt.

A rank that lacks its part of a state gets the part from the rank at the same place in another unit. If some place in
all units lacked the newest step (a torn step), nobody could continue. To prevent that, a unit makes each step together.
When a rank has received everything from other units, it commits, and then runs one more collective within its unit (for
the gradient's norm). If the collective succeeds, the complete unit has committed, and the rank makes the step. Until
then a rank postpones orders in which its unit stays complete. So the collective can only break if a member is lost, and
then the unit is incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainloop.continuing.orders import Order

#: The step of a rank that has no state yet.
NO_STATE = -1


@dataclass(frozen=True)
class Membership:
    """A membership is what one rank knows about attempts. It is immutable: methods return a changed membership."""

    rank: int
    #: The attempt in whose group this rank trains; None if there is none.
    group: Order | None = None
    #: The newest attempt that was assigned.
    newest: Order | None = None
    #: The newest attempt for which this rank tried to meet the others, even if no group was formed.
    tried: int = 0
    #: Whether a collective of the group has failed or a member is lost.
    broken: bool = False

    def received(self, order: Order) -> Membership:
        """Process an order, which may be newer or older than the newest known one, or the same."""
        if self.newest is not None and order.attempt <= self.newest.attempt:
            return self
        lost = self.group is not None and not {*self.group.present} <= {*order.present}
        return replace(self, newest=order, broken=self.broken or lost)

    def failed(self) -> Membership:
        """Record that a collective of the group has failed."""
        return replace(self, broken=self.group is not None)

    @property
    def known(self) -> int:
        """Returns the number of the newest known attempt, which members exchange in each step."""
        return max(0 if each is None else each.attempt for each in (self.group, self.newest))

    def forms(self) -> Order | None:
        """Returns the attempt to form at the end of this step; None if there is none yet."""
        newest = self.newest
        if newest is None or newest.attempt <= self.tried or self.rank not in newest.present:
            return None
        return None if self.group is not None and newest.attempt <= self.group.attempt else newest

    def is_over(self) -> bool:
        """Returns whether this rank was replaced, so that the newest attempt continues without it."""
        return self.group is not None and self.newest is not None and self.rank in self.newest.absent

    def meets(self, order: Order) -> Membership:
        """Leave the group to meet the other ranks of `order`."""
        return replace(self, tried=order.attempt, broken=True)

    def formed(self, order: Order) -> Membership:
        """Record that the group of `order` is formed; a newer order may already be known."""
        newest = self.newest
        superseded = newest is not None and newest.attempt > order.attempt
        lost = superseded and newest is not None and not {*order.present} <= {*newest.present}
        return replace(self, group=order, broken=lost)


def exchange(steps: Mapping[int, int], unit: int = 1) -> tuple[int, dict[int, int]]:
    """Returns the newest step of the ranks that have met, and a source for each rank that lacks the state after it.

    Only units in which every rank has a state count. The source is the lowest rank at the same place in its unit that
    has the newest state. Raises ValueError if there is none for some place.
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
