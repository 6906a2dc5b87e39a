"""Wraps a leader or a follower so that its methods return the actions that they requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster_operator.agent.network.messages import Action


class Decisions:
    """Decisions passes every call to the object that `make` returns."""

    def __init__(self, make: Callable[[Callable[[Action], None]], Any]) -> None:
        self._actions: list[Action] = []
        self._made = make(self._actions.append)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._made, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = value(*arguments, **named)
            actions = self._actions[:]
            self._actions.clear()
            return actions if result is None else result

        return call if callable(value) else value
