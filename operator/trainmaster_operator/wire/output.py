"""An agent that ends sends its leader the end of what it has printed, and the leader keeps that for an operator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.limits import MAX_INDEX, MAX_KEPT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, MAX_UID
from trainmaster_operator.wire.values import is_whole, shown, text, time_in, whole_in

_HEAD_BYTES, _TIME_BYTES = 512, 14
"""What stands around the lines, and each line's time."""
_LEAST_BYTES = 1_024


class OutputLine(NamedTuple):
    """OutputLine is the end of what a worker's container has printed, in attempt `attempt` and before."""

    attempt: int
    worker: int
    uid: str
    lines: tuple[str, ...]
    times: tuple[int, ...]
    """When each line was printed, in milliseconds since the epoch."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> OutputLine:
        """Check a line, in which `worker` may be missing. Raises ProtocolError."""
        lines, after = data.get("lines"), data.get("after")
        if not isinstance(lines, list) or not isinstance(after, list) or len(lines) != len(after):
            raise ProtocolError(f"output.lines: {shown(lines)} and {shown(after)} aren't two lists of one length")
        if not all(map(is_whole, after)):
            raise ProtocolError("output.after: these aren't all whole numbers of milliseconds")
        begin = round(time_in(data, "at") * 1_000)
        times = tuple(begin + milliseconds for milliseconds in after)
        lines = [text(line, MAX_OUTPUT_BYTES).replace("\n", " ").replace("\x00", "") for line in lines]
        worker = whole_in({"worker": 0, **data}, "worker", MAX_INDEX)
        return cls(whole_in(data, "attempt"), worker, text(data.get("uid"), MAX_UID), tuple(lines), times)

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        begin = min(self.times, default=0)
        return {
            "type": "output",
            "attempt": self.attempt,
            "worker": self.worker,
            "uid": self.uid,
            "lines": list(self.lines),
            "at": begin / 1_000,
            "after": [time - begin for time in self.times],
        }


def output_share(workers: int) -> int:
    """Returns how long the line of one of so many workers may be, so that a leader can keep them all [bytes]."""
    return max(_LEAST_BYTES, min(MAX_OUTPUT_BYTES, MAX_KEPT_OUTPUT_BYTES // max(workers, 1)))


def newest_lines(lines: Iterable[tuple[int, str]], limit: int) -> list[tuple[int, str]]:
    """Returns the last lines, with their times, of which a line of at most `limit` bytes can be made."""
    kept: list[tuple[int, str]] = []
    left = limit - _HEAD_BYTES
    for time, line in reversed(list(lines)):
        left -= len(json.dumps(line)) + _TIME_BYTES
        if left < 0:
            break
        kept.append((time, line))
    return kept[::-1]
