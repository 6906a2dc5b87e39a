"""The lines of a container's log begin with the time at which the container runtime read them, where that is asked for.

The kubelet writes it as RFC 3339 with nanoseconds, in UTC or in the node's own zone; a line that was long enough to be
split by the runtime has it once, at its beginning.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

# Characters of a time with seconds, nanoseconds and a zone.
_SHORTEST, _LONGEST = 20, 35


class StampedLine(NamedTuple):
    """StampedLine is a line and its time in seconds since the epoch, None where it has none."""

    time: float | None
    text: str


def stamped_line(line: str) -> StampedLine:
    """Splits a line into its time and its text. What has no time is text as a whole."""
    end = line.find(" ", _SHORTEST, _LONGEST + 1)
    if end < 0 or line[10] != "T" or line[4] != "-":
        # An empty line's time may stand alone.
        end = len(line)
        if not _SHORTEST <= end <= _LONGEST or line[10] != "T" or line[4] != "-":
            return StampedLine(None, line)
    try:
        at = datetime.fromisoformat(line[:end])
    except ValueError:
        return StampedLine(None, line)
    return StampedLine(None, line) if at.tzinfo is None else StampedLine(at.timestamp(), line[end + 1 :])
