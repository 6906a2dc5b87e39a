"""Wraps a leader or a follower so that its methods return the actions that they requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from trainmaster_operator.agent.network.connections import Connections, Delivery


class Send(NamedTuple):
    peers: tuple[int, ...]
    data: bytes


class SendToStreams(NamedTuple):
    peers: tuple[int, ...]
    data: bytes


class Close(NamedTuple):
    peer: int


class Deliver(NamedTuple):
    message: Delivery


class Try(NamedTuple):
    host: str


Action = Send | SendToStreams | Close | Deliver | Try


class Requests:
    """Requests are connections that only keep what was requested of them."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def send(self, peers: Iterable[int], data: bytes) -> None:
        self.actions.append(Send(tuple(peers), data))

    def stream(self, peers: Iterable[int], data: bytes) -> None:
        self.actions.append(SendToStreams(tuple(peers), data))

    def close(self, peer: int) -> None:
        self.actions.append(Close(peer))

    def deliver(self, message: Delivery) -> None:
        self.actions.append(Deliver(message))

    def try_host(self, host: str) -> None:
        self.actions.append(Try(host))


class Decisions:
    """Decisions passes every call to the object that `make` returns."""

    def __init__(self, make: Callable[[Connections], Any]) -> None:
        self._requests = Requests()
        self._made = make(self._requests)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._made, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = value(*arguments, **named)
            actions = self._requests.actions[:]
            self._requests.actions.clear()
            return actions if result is None else result

        return call if callable(value) else value
