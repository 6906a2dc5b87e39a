"""Bounds the connections of a server: a newcomer always gets in, and another one gives way.

Nobody knows which addresses the kubelet's probes come from, and behind a proxy all viewers have one address. So no
place is reserved, and the bound of one address concerns only connections whose request isn't there yet: those give way
first, of the address that has most. One that had an answer gives way before one that still waits for its first, so that
answers to half requests push nobody out; after that the oldest does. If every request in sight is being answered, the
oldest of the address that has most gives way, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

MAX_CONNECTIONS = 256
MAX_WAITING_OF_ADDRESS = 192


class Place(Protocol):
    """What a connection has to say here."""

    address: str

    def is_waiting(self) -> bool:
        """Returns whether no complete request is being answered, so that nobody misses the connection."""
        ...

    def has_answer(self) -> bool:
        """Returns whether the last request that began here has its answer, or the beginning of one."""
        ...

    def leave(self) -> None:
        """Ends the connection now."""
        ...


class Places:
    """Places are held in the order of arrival."""

    def __init__(self, most: int = MAX_CONNECTIONS, most_waiting: int = MAX_WAITING_OF_ADDRESS) -> None:
        self._most, self._most_waiting = most, most_waiting
        self._held: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._held))

    def add(self, place: Place) -> None:
        """Let one in."""
        self._held[place] = None

    def discard(self, place: Place) -> None:
        """Let one out; nothing where it isn't in any more."""
        self._held.pop(place, None)

    def in_the_way(self, address: str) -> Place | None:
        """Returns the one that has to leave before one more of `address` comes in; None where there is room."""
        if len(self._held) >= self._most:
            return self.first_to_leave()
        if len(self._held) < self._most_waiting:
            return None
        waiting = [place for place in self._held if place.address == address and place.is_waiting()]
        if len(waiting) < self._most_waiting:
            return None
        return next((place for place in waiting if place.has_answer()), waiting[0])

    def first_to_leave(self) -> Place | None:
        """Returns one of the address that has most, a waiting one if there is any; None where nobody is in."""
        candidates = [place for place in self._held if place.is_waiting()] or list(self._held)
        of_address: dict[str, int] = {}
        for place in candidates:
            of_address[place.address] = of_address.get(place.address, 0) + 1
        return max(candidates, key=lambda place: (of_address[place.address], place.has_answer()), default=None)
