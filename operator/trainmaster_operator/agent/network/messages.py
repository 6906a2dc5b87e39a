"""The connections and the pure modules of this package exchange these messages. A `peer` is the number of a connection.

Actions are what `leader` and `follower` ask the connections to do. Events are what happens to the connections: they go
into the executor's queue, and from there to `Network.handle`; a `Request` is for the executor itself. The agent's own
worker is a follower like the others, whose connection is none: OWN.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from trainmaster_operator.agent.connection import Closed, PeerConnection, Readable
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
    """Give up the present try."""


LeaderAction = Union[Send, SendToStreams, Close, Deliver]
FollowerAction = Union[Send, Close, Deliver, Try, CancelTry]


class Resolved(NamedTuple):
    """A try's host has an address, or a problem (and then no family)."""

    number: int
    family: int
    address: str
    problem: str = ""


class Connected(NamedTuple):
    """A try's connection stands, or has failed: the socket knows which."""

    number: int


class TimedOut(NamedTuple):
    """A try has taken too long."""

    number: int


class Upgraded(NamedTuple):
    """A connection belongs to the leader from now on: a follower's, with its first bytes, or an operator's stream."""

    connection: PeerConnection
    is_follower: bool
    rest: bytes = b""


class Acknowledged(NamedTuple):
    """The operator has recorded all reports up to `seq`."""

    seq: int


class StacksRequested(NamedTuple):
    """The operator asks for the stacks of all ranks, under this name."""

    request: str


class Pushed(NamedTuple):
    """Somebody with the token has sent what should be an assignment: answer the connection."""

    peer: int
    data: Any


class StateRequested(NamedTuple):
    """Somebody with the token asks for this agent's state: answer the connection."""

    peer: int


class MetricsRequested(NamedTuple):
    """Somebody asks for the metrics: give their text to `Server.show_metrics`."""


ConnectionEvent = Union[Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested]
CONNECTION_EVENTS = (Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested)
Request = Union[Pushed, StateRequested, MetricsRequested]
NetworkEvent = Union[ConnectionEvent, Request]
