"""What happens to the connections: these values go into the executor's queue, and from there to `Network.handle`.

Those in `Request` and below are what the executor itself has to answer or to act on.
"""

from __future__ import annotations

from typing import Any, Union

from trainmaster.agent.value import Value


class Readable(Value):
    """Something has arrived on a connection."""

    peer: int


class Closed(Value):
    """A connection has ended."""

    peer: int


class Resolved(Value):
    """A try's host has an address, or a problem (and then no family)."""

    number: int
    family: int
    address: str
    problem: str = ""


class Connected(Value):
    """A try's connection stands, or has failed: the socket knows which."""

    number: int


class TimedOut(Value):
    """A try has taken too long."""

    number: int


NetworkEvent = Union[Readable, Closed, Resolved, Connected, TimedOut]


class Pushed(Value):
    """Somebody with the token has sent what should be an assignment: answer the connection."""

    peer: int
    data: Any


class StateRequested(Value):
    """Somebody with the token asks for this agent's state: answer the connection."""

    peer: int


class MetricsRequested(Value):
    """Somebody asks for the metrics: give their text to `Network.show_metrics`."""
