"""Evidence is the state of a rank while its job stalled (docs/protocol.md, "A stalled rank")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES, MAX_REASON, MAX_SECONDS
from trainmaster_operator.wire.progress import ranks_of
from trainmaster_operator.wire.states import SECTIONS
from trainmaster_operator.wire.values import is_number, shown, text, whole

WAITS = ("collective", "device", "nothing")


class RankState(NamedTuple):
    """RankState is one rank's state in a stall; its times are in seconds."""

    step: Optional[int] = None
    section: str = ""
    silent_seconds: Optional[float] = None
    """The time since its last progress; None where the rank never wrote any."""
    limit_seconds: float = 0.0
    """It may be silent for so long where it is; 0 is for ever."""
    limit: str = ""
    """The limit comes from this setting."""
    patient: bool = False
    """The limit is for something longer than a step: the first step, or what a section asks for."""
    state: str = ""
    """The kernel's letter for its process: T is stopped, D waits for a device, X is gone."""
    collective: Optional[int] = None
    """It has entered this collective last, by torch's flight recorder."""
    waits: str = ""
    """Its main thread waits for this, by its stack: one of WAITS; empty where it has given none."""
    pending: bool = False
    """A collective that it has entered isn't done, by torch's flight recorder."""
    unreported: int = 0
    """It may have done so many steps more, because it reports steps less often than it does them."""
    text: str = ""
    """A person reads here the stacks of all its threads, and what the kernel shows of them."""

    @classmethod
    def parse(cls, data: object, most: int = MAX_EVIDENCE_BYTES) -> RankState:
        """Check and bound a rank's state, its text to `most` characters. Raises ProtocolError."""
        if not isinstance(data, Mapping):
            raise ProtocolError(f"evidence.ranks: {shown(data)} is not an object")
        section, waits = data.get("section"), data.get("waits")
        return cls(
            step=whole(data.get("step")),
            unreported=whole(data.get("unreported")) or 0,
            section=section if isinstance(section, str) and section in SECTIONS else "",
            silent_seconds=_seconds(data.get("silentSeconds")),
            limit_seconds=_seconds(data.get("limitSeconds")) or 0.0,
            limit=text(data.get("limit"), MAX_REASON),
            patient=data.get("patient") is True,
            state=text(data.get("state"), 1),
            collective=whole(data.get("collective")),
            pending=data.get("pending") is True,
            waits=waits if isinstance(waits, str) and waits in WAITS else "",
            text=text(data.get("text"), most),
        )

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object, without what is unknown."""
        wire = {
            "step": self.step,
            "unreported": self.unreported or None,
            "section": self.section or None,
            "silentSeconds": None if self.silent_seconds is None else round(self.silent_seconds, 3),
            "limitSeconds": self.limit_seconds or None,
            "limit": self.limit or None,
            "patient": self.patient or None,
            "state": self.state or None,
            "collective": self.collective,
            "pending": self.pending or None,
            "waits": self.waits or None,
            "text": self.text,
        }
        return {name: value for name, value in wire.items() if value is not None}


def parse_ranks(value: object) -> dict[int, RankState]:
    """Returns the `ranks` of an evidence line, their texts bounded together. Raises ProtocolError."""
    found: dict[int, RankState] = {}
    left = MAX_EVIDENCE_BYTES
    for rank, data in ranks_of(value, "evidence.ranks").items():
        found[rank] = RankState.parse(data, left)
        left -= len(found[rank].text)
    return found


def _seconds(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value < MAX_SECONDS else None
