"""The leader and the follower request these actions of the connections. A `peer` is a connection's number."""

from __future__ import annotations

from typing import NamedTuple, Union

from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.wire.joining import LeaderMessage

Delivery = Union[LeaderMessage, LeaderJoined]


class Send(NamedTuple):
    """Send these lines to followers, or to the leader; all receivers share the same bytes."""

    peers: tuple[int, ...]
    data: bytes


class SendToStreams(NamedTuple):
    """Send these lines to the watching operators."""

    peers: tuple[int, ...]
    data: bytes


class Close(NamedTuple):
    """Close a connection; its end isn't reported."""

    peer: int


class Deliver(NamedTuple):
    """Give the planner a message of the leader, or the news that this worker has joined one."""

    message: Delivery


class Try(NamedTuple):
    """Try to join this host instead of the present one; `Follower.tried` takes the result."""

    host: str


class CancelTry(NamedTuple):
    """Cancel the present try; its result isn't reported."""


Action = Union[Send, SendToStreams, Close, Deliver, Try, CancelTry]
