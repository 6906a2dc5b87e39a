"""The package's connections and pure modules exchange these messages. A `peer` is a connection's number.

Actions are requests of `leader` and `follower` to the connections. Events happen on the connections: they go into the
executor's queue, and from there to `Network.handle`; the executor itself handles a `Request`. The agent's own worker is
a follower like the others, under the number OWN, which is no real connection.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

from trainmaster_operator.agent.connection import Closed, PeerConnection, Readable
from trainmaster_operator.agent.planner.events import LeaderJoined
from trainmaster_operator.wire.joining import LeaderMessage

OWN = 0
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
    """Close a connection without an event for its end."""

    peer: int


class Deliver(NamedTuple):
    """Give the planner a message of the leader, or the news that this worker has joined one."""

    message: Delivery


class Try(NamedTuple):
    """Try to join this host; the answer has the same `number`."""

    number: int
    host: str


class CancelTry(NamedTuple):
    """Cancel the present try."""


LeaderAction = Union[Send, SendToStreams, Close, Deliver]
FollowerAction = Union[Send, Close, Deliver, Try, CancelTry]


class Resolved(NamedTuple):
    """The address of a try's host was found, or there is a problem (and then no family)."""

    number: int
    family: int
    address: str
    problem: str = ""


class Connected(NamedTuple):
    """A try's connection is open, or has failed: the socket knows which."""

    number: int


class TimedOut(NamedTuple):
    """A try has taken too long."""

    number: int


class Upgraded(NamedTuple):
    """A connection now belongs to the leader: a follower's, with its first bytes, or an operator's stream."""

    connection: PeerConnection
    is_follower: bool
    rest: bytes = b""


class Acknowledged(NamedTuple):
    """The operator has recorded all reports up to `seq`."""

    seq: int


class StacksRequested(NamedTuple):
    """The operator requests the stacks of all ranks, under this name."""

    request: str


class Pushed(NamedTuple):
    """An authorized client has sent an assignment: answer the connection."""

    peer: int
    data: Any


class StateRequested(NamedTuple):
    """An authorized client requests this agent's state: answer the connection."""

    peer: int


class MetricsRequested(NamedTuple):
    """A client requests the metrics: give their text to `Server.show_metrics`."""


ConnectionEvent = Union[Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested]
CONNECTION_EVENTS = (Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested)
Request = Union[Pushed, StateRequested, MetricsRequested]
NetworkEvent = Union[ConnectionEvent, Request]
