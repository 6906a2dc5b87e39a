"""What a rank knows of attempts decides which group it forms next. Pure: no clock, no thread, no socket.

Two rules keep two groups from training both. A rank only ever forms the newest attempt that it knows of, each at most
once, and from then on takes no part in an older one. A group's step needs all of its members. Every attempt has a
member of the one before in it, so of two groups one lacks a member that has left for the other.

Ranks of one group may be a step apart when it breaks, because some had all of the last reduction, and some not. They
compare steps when they have met: the newest counts, and who lacks it is given it. A step that only a lost rank had made
is made again.
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
        lost = self.group is not None and bool(order.absent - self.group.absent)
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
        if newest is None or newest.attempt <= self.tried or self.rank in newest.absent:
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
        lost = newest is not None and newest.attempt > order.attempt and bool(newest.absent - order.absent)
        return replace(self, group=order, broken=lost)


def source_of(steps: Mapping[int, int]) -> tuple[int, int]:
    """Returns the newest step of those who have met, by rank, and the lowest rank that has it. Raises ValueError where
    nobody has a state.
    """
    newest = max(steps.values(), default=NO_STATE)
    if newest == NO_STATE:
        raise ValueError("no rank that is present has a state")
    return newest, min(rank for rank, step in steps.items() if step == newest)
