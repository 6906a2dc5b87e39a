"""The leader and the follower act through this interface, which `Network` implements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Union

from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.wire.joining import LeaderMessage

Delivery = Union[LeaderMessage, LeaderJoined]


class Connections(Protocol):
    """Connections are identified by their numbers (`peer`)."""

    def send(self, peers: Iterable[int], data: bytes) -> None:
        """Send these lines to followers, or to the leader; all receivers share the same bytes."""

    def stream(self, peers: Iterable[int], data: bytes) -> None:
        """Send these lines to watching operators."""

    def close(self, peer: int) -> None:
        """Close a connection; its end isn't reported."""

    def deliver(self, message: Delivery) -> None:
        """Give the planner a message of the leader, or the event that this worker has joined a leader."""

    def try_host(self, host: str) -> None:
        """End the present try, and try to join this host unless it is empty; `Follower.tried` takes the result."""
