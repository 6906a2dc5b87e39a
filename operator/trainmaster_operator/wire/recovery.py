"""A worker says how long it took from a fault to the end of the next attempt's first step (docs/protocol.md)."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from trainmaster_operator.wire.limits import MAX_SECONDS
from trainmaster_operator.wire.values import mapping_in, seconds_in

_NAMES = {
    "seen": "seen",
    "told": "told",
    "stopped": "stopped",
    "launched": "launched",
    "joined": "joined",
    "restored": "restored",
    "first_step": "firstStep",
}


class Recovery(NamedTuple):
    """Seconds from the fault, by the worker's own clock, until each part was done; None where that isn't known."""

    seen: Optional[float] = None
    """The worker learned of the fault. More than 0 only for a hang, which began with the last progress."""
    told: Optional[float] = None
    """The next attempt's assignment was here."""
    stopped: Optional[float] = None
    """No process of the attempt before was left."""
    launched: Optional[float] = None
    """The next attempt's ranks, or their launcher, had been started."""
    joined: Optional[float] = None
    """The ranks had formed their process group."""
    restored: Optional[float] = None
    """The ranks had the state that they go on from."""
    first_step: Optional[float] = None
    """The ranks had done their first step."""

    @classmethod
    def within(cls, data: Any, name: str) -> Recovery | None:
        """Returns a field of a line; None where it is missing. Raises ProtocolError with what is wrong."""
        if data.get(name) is None:
            return None
        found = mapping_in(data, name)
        return cls(
            **{
                part: None if found.get(key) is None else seconds_in(found, key, MAX_SECONDS)
                for part, key in _NAMES.items()
            }
        )

    def to_wire(self) -> dict[str, float]:
        """Returns the JSON object, without what isn't known."""
        values = {key: getattr(self, part) for part, key in _NAMES.items()}
        return {key: round(value, 4) for key, value in values.items() if value is not None}
