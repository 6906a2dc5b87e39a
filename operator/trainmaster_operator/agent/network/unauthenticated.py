"""The connections that haven't shown the token: few in all, fewer of each address, and a newcomer always gets in.

Nobody knows which addresses the kubelet's probe and the operator come from (a node, a proxy, a service mesh's
sidecar), so no place is reserved for them by address. Instead the oldest connection of the address that has most gives
way: who floods the port pushes out connections of its own, and who sends its request at once is answered before any
that only hold a place.
"""

from __future__ import annotations

import resource
from typing import Generic, Optional, TypeVar

MAX_UNAUTHENTICATED = 128
MAX_OF_ADDRESS = 16
DESCRIPTORS_SHARE = 4
"""They get at most this part of the process's descriptors (a fourth): the ranks' files and pipes need some too."""
T = TypeVar("T")


class Unauthenticated(Generic[T]):
    """See the module. The items of an address are in the order in which they came."""

    def __init__(self, most: int = MAX_UNAUTHENTICATED) -> None:
        self._most = most
        self._by_address: dict[str, dict[T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def all(self) -> list[T]:
        """Returns everybody who is in."""
        return [item for items in self._by_address.values() for item in items]

    def in_the_way(self, address: str) -> Optional[T]:
        """Returns who has to leave before one more of the address comes in; None where there is room."""
        own = self._by_address.get(address, {})
        if len(own) >= MAX_OF_ADDRESS:
            return next(iter(own))
        return self.first_to_leave() if self._count >= self._most else None

    def first_to_leave(self) -> Optional[T]:
        """Returns the oldest of the address that has most; None where there is nobody."""
        most = max(self._by_address, key=lambda address: len(self._by_address[address]), default=None)
        return None if most is None else next(iter(self._by_address[most]))

    def add(self, address: str, item: T) -> None:
        """Let one in."""
        self._by_address.setdefault(address, {})[item] = None
        self._count += 1

    def discard(self, address: str, item: T) -> None:
        """Let one out; nothing where it isn't in any more."""
        items = self._by_address.get(address)
        if items is not None and item in items:
            del items[item]
            self._count -= 1
            if not items:
                del self._by_address[address]


def room_for_unauthenticated() -> int:
    """Returns how many there may be in this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = MAX_UNAUTHENTICATED if limit == resource.RLIM_INFINITY else limit // DESCRIPTORS_SHARE
    return max(1, min(MAX_UNAUTHENTICATED, most))
