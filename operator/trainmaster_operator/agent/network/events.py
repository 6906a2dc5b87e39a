"""These are what happens to the connections: they go into the executor's queue, and from there to `Network.handle`.

A `Request` is what the executor has to answer itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Union

if TYPE_CHECKING:
    from trainmaster_operator.agent.network.connection import Connection


class Readable(NamedTuple):
    """Something has arrived on a connection."""

    peer: int


class Closed(NamedTuple):
    """A connection has ended."""

    peer: int


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

    connection: Connection
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
    """Somebody asks for the metrics: give their text to `Network.show_metrics`."""


ConnectionEvent = Union[Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested]
CONNECTION_EVENTS = (Readable, Closed, Resolved, Connected, TimedOut, Upgraded, Acknowledged, StacksRequested)
Request = Union[Pushed, StateRequested, MetricsRequested]
NetworkEvent = Union[ConnectionEvent, Request]
