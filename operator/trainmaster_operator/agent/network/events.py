"""These are what happens to the connections: they go into the executor's queue, and from there to `Network.handle`.

A `Request` is what the executor has to answer itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from trainmaster_operator.agent.value import Value

if TYPE_CHECKING:
    from trainmaster_operator.agent.network.connection import Connection


class ConnectionEvent(Value):
    """Something has happened to a connection, or on it."""


class Readable(ConnectionEvent):
    """Something has arrived on a connection."""

    peer: int


class Closed(ConnectionEvent):
    """A connection has ended."""

    peer: int


class Resolved(ConnectionEvent):
    """A try's host has an address, or a problem (and then no family)."""

    number: int
    family: int
    address: str
    problem: str = ""


class Connected(ConnectionEvent):
    """A try's connection stands, or has failed: the socket knows which."""

    number: int


class TimedOut(ConnectionEvent):
    """A try has taken too long."""

    number: int


class Upgraded(ConnectionEvent):
    """A connection belongs to the leader from now on: a follower's, with its first bytes, or an operator's stream."""

    connection: Connection
    is_follower: bool
    rest: bytes = b""


class Acknowledged(ConnectionEvent):
    """The operator has recorded all reports up to `seq`."""

    seq: int


class StacksRequested(ConnectionEvent):
    """The operator asks for the stacks of all ranks, under this name."""

    request: str


class Pushed(Value):
    """Somebody with the token has sent what should be an assignment: answer the connection."""

    peer: int
    data: Any


class StateRequested(Value):
    """Somebody with the token asks for this agent's state: answer the connection."""

    peer: int


class MetricsRequested(Value):
    """Somebody asks for the metrics: give their text to `Network.show_metrics`."""


Request = Union[Pushed, StateRequested, MetricsRequested]
NetworkEvent = Union[ConnectionEvent, Request]
