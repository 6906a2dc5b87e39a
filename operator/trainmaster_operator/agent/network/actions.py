"""The pure modules of this package ask the connections to do this. A `peer` is the number of a connection.

The agent's own worker is a follower like the others, whose connection is none: OWN.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.wire.joining import LeaderMessage

OWN = 0
Delivery = Union[LeaderMessage, LeaderJoined]


class Send(NamedTuple):
    """Send these lines to followers, or to the leader; the bytes are kept once for all of them."""

    peers: tuple[int, ...]
    data: bytes


class SendToStreams(NamedTuple):
    """Send these lines to the operators that watch."""

    peers: tuple[int, ...]
    data: bytes


class Close(NamedTuple):
    """Close a connection; that isn't reported as its end."""

    peer: int


class Deliver(NamedTuple):
    """Give the planner a message of the leader, or that one was joined."""

    message: Delivery


class Try(NamedTuple):
    """Try to join this host; `number` comes back with the answer."""

    number: int
    host: str


class CancelTry(NamedTuple):
    """Give up the try that is going on."""


class LeaveLeader(NamedTuple):
    """Try to join another leader, because the present one doesn't answer in a stall."""


LeaderAction = Union[Send, SendToStreams, Close, Deliver]
FollowerAction = Union[Send, Close, Deliver, Try, CancelTry]
