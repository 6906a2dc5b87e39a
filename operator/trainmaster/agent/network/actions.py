"""What the pure parts of this package ask the connections to do. A `peer` is the number of a connection.

The agent's own worker is a follower like the others, whose connection is none: OWN.
"""

from __future__ import annotations

from typing import Union

from trainmaster.agent.value import Value
from trainmaster.wire.joining import LeaderMessage

OWN = 0


class Send(Value):
    """Send these lines to followers, or to the leader; the bytes are kept once for all of them."""

    peers: tuple[int, ...]
    data: bytes


class Publish(Value):
    """Send these lines on the streams of operators."""

    peers: tuple[int, ...]
    data: bytes


class Close(Value):
    """Close a connection; that isn't reported as its end."""

    peer: int


class Deliver(Value):
    """The leader's message to this agent's own worker."""

    message: LeaderMessage


class Try(Value):
    """Try to join this host; `number` comes back with the answer."""

    number: int
    host: str


class CancelTry(Value):
    """Give up the try that is going on."""


class Introduce(Value):
    """Introduce this worker to the leader that was joined this moment: who it is, and what it has reported."""


class LeaveLeader(Value):
    """Try to join another leader, because the present one doesn't answer in a stall."""


LeaderAction = Union[Send, Publish, Close, Deliver]
FollowerAction = Union[Send, Close, Deliver, Try, CancelTry, Introduce]
