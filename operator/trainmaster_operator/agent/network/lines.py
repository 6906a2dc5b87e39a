"""Lines of JSON as they are written and read, and the pace at which a peer's lines are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.wire.limits import MAX_LINE_BYTES
from trainmaster_operator.wire.stream import LineBuffer
from trainmaster_operator.wire.values import ProtocolError, loads

MAX_BAD_LINES = 100
"""Lines of one connection that are no JSON object; each costs an exception, and a newer agent sends none."""


def json_line(data: Mapping[str, Any]) -> bytes:
    """Returns one object as a line."""
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class JsonLines:
    """The objects in the lines of a connection. A few lines that are none are passed over."""

    def __init__(self, longest: int = MAX_LINE_BYTES) -> None:
        self._lines = LineBuffer(longest)
        self._bad = 0
        self.count = 0
        """Lines that have come."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the objects that are complete now. Raises ProtocolError where these are no lines of JSON objects: one
        has no end, or many are something else."""
        for line in self._lines.feed(data):
            self.count += 1
            try:
                value = loads(line)
            except ValueError:
                value = None
            if isinstance(value, dict):
                yield value
                continue
            self._bad += 1
            if self._bad > MAX_BAD_LINES:
                raise ProtocolError(f"more than {MAX_BAD_LINES} lines are no JSON objects")


class Pace:
    """How fast a peer is read, in bytes. A line counts as LINE_BYTES at least: it costs more than its length."""

    LINE_BYTES = 1_024

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at = now

    def spend(self, size: int, lines: int, now: float) -> float:
        """Returns the seconds to wait before more is read, after so many bytes and lines; 0: none."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= max(size, max(1, lines) * self.LINE_BYTES)
        return max(0.0, -self._left / self._per_second)
