"""The ConfigMap `<job>-logs` keeps the ends of the workers' logs, for people and for `kubectl dtj logs`.

`worker-0.log` is text that plain kubectl shows. `worker-0.times` contains the data for merging the workers' lines: the
time of each line (as base-36 differences in milliseconds, to save space), and whether earlier lines are missing. Anyone
may have edited the ConfigMap, so `KeptLog.parse` accepts any content.

A container's log can contain several attempts. The agent prints `--- attempt 2 ---` at the start of attempt 2, and
lines of ranks begin with `[rank 3]: `. Other processes in the container could print such a mark too, so a mark counts
only if its number is higher than the previous mark's. On request, the kubelet writes the time before each line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import decimal, loads, mapping

# Maximum bytes kept of one worker's log.
LONGEST_LOG = 64 * 1024

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY = re.compile(r"worker-(\d{1,9})\.log")
# Bytes of the fixed part of a `times` entry (braces, names, first time), and of each further time and its line break.
_OVERHEAD_BYTES, _TIME_BYTES = 40, 12


def logs_name(job: str) -> str:
    """Returns the name of the ConfigMap."""
    return f"{job}-logs"


def log_key(worker: int) -> str:
    """Returns the key of a worker's log in the ConfigMap."""
    return f"worker-{worker}.log"


def times_key(worker: int) -> str:
    """Returns the key of the times of a worker's log."""
    return f"worker-{worker}.times"


@dataclass(frozen=True)
class KeptLog:
    """KeptLog is the end of one worker's log: its lines and their times (milliseconds since the epoch)."""

    lines: tuple[str, ...] = ()
    times: tuple[int, ...] | None = None
    """The time of each line, or None if the times are unknown."""
    cut: bool = False
    """Whether earlier lines are missing."""

    def to_data(self, worker: int) -> dict[str, str]:
        """Returns the entries of the ConfigMap's data."""
        data = {log_key(worker): "".join(f"{line}\n" for line in self.lines)}
        if self.times is not None or self.cut:
            known = {"cut": self.cut, **({} if self.times is None else {"times": _encode(self.times)})}
            data[times_key(worker)] = json.dumps(known, separators=(",", ":"))
        return data

    def ending(self, limit: int) -> KeptLog:
        """Returns the last complete lines whose entries in the ConfigMap fit into `limit` bytes.

        If the last line alone is too long, its end is returned.
        """
        first, left = len(self.lines), limit - _OVERHEAD_BYTES
        while first > 0:
            size = len(self.lines[first - 1].encode(errors="replace")) + 1 + self._time_bytes(first)
            if size > left:
                break
            left -= size
            first -= 1
        if first == 0:
            return self
        if first == len(self.lines):
            raw = self.lines[-1].encode(errors="replace")
            end = raw[max(0, len(raw) - max(0, left - _TIME_BYTES)) :].decode(errors="ignore")
            times = None if self.times is None else self.times[-1:]
            return KeptLog((end,), times, cut=True) if end else KeptLog(cut=True)
        return KeptLog(self.lines[first:], None if self.times is None else self.times[first:], cut=True)

    def before(self, line: str, time: int | None) -> KeptLog:
        """Returns the lines that precede a pod's log, which begins with `line` at `time`.

        If the end of this log comes from the same pod, that end is left out. It begins at the first mark of the attempt
        that `line` announces (or of a later attempt). If `line` isn't a mark, it begins at `time`, or if times are
        unknown, at a line equal to `line`.
        """
        attempt, times = marked_attempt(line), self.times
        for at, own in enumerate(self.lines):
            if attempt is not None:
                begins = (marked_attempt(own) or 0) >= attempt
            elif times is not None and time is not None:
                begins = times[at] >= time
            else:
                begins = own == line
            if begins:
                return KeptLog(self.lines[:at], None if times is None else times[:at], self.cut)
        return self

    def continued(self, later: KeptLog) -> KeptLog:
        """Returns this log, followed by a later log, which may repeat the end of this log."""
        if not later.lines:
            return self
        earlier = self._without_end(later) or self.before(
            later.lines[0], later.times[0] if later.times is not None else None
        )
        if not earlier.lines:
            return KeptLog(later.lines, later.times, self.cut or later.cut)
        times = None
        if earlier.times is not None and later.times is not None:
            times = (*earlier.times, *later.times)
        return KeptLog((*earlier.lines, *later.lines), times, self.cut)

    def _without_end(self, later: KeptLog) -> KeptLog | None:
        """Returns this log without the last lines that `later` repeats at equal times, or None if it repeats none.

        `later` may begin before these lines, because more lines are kept if there is more space.
        """
        if self.times is None or later.times is None:
            return None
        theirs, end = set(zip(later.lines, later.times, strict=True)), len(self.lines)
        while end and (self.lines[end - 1], self.times[end - 1]) in theirs:
            end -= 1
        return None if end == len(self.lines) else KeptLog(self.lines[:end], self.times[:end], self.cut)

    @classmethod
    def parse(cls, data: Mapping[str, Any], worker: int) -> KeptLog | None:
        """Parses a worker's log in the data of the ConfigMap. Returns None if the log is missing."""
        text = data.get(log_key(worker))
        if not isinstance(text, str):
            return None
        lines = tuple(text.removesuffix("\n").split("\n")) if text else ()
        try:
            known = mapping(loads(str(data.get(times_key(worker)) or "{}")))
        except ValueError:
            known = {}
        times = _decode(known.get("times"))
        return cls(lines, times if times is not None and len(times) == len(lines) else None, known.get("cut") is True)

    def _time_bytes(self, at: int) -> int:
        """Returns the maximum bytes that the time of the line before index `at` needs."""
        if self.times is None:
            return 0
        return len(_to_base_36(self.times[at - 1] - self.times[at - 2])) + 1 if at > 1 else 0


def kept_workers(data: Mapping[str, Any]) -> list[int]:
    """Returns the workers whose logs are kept, according to the keys of the ConfigMap."""
    matches = map(_KEY.fullmatch, data)
    indexes = (decimal(match[1], MAX_INDEX) for match in matches if match)
    return sorted({index for index in indexes if index is not None})


def _encode(times: tuple[int, ...]) -> str:
    return " ".join(_to_base_36(time - before) for time, before in zip(times, (0, *times), strict=False))


def _decode(text: object) -> tuple[int, ...] | None:
    if not isinstance(text, str):
        return None
    try:
        return tuple(accumulate(int(word, 36) for word in text.split(" "))) if text else ()
    except ValueError:
        return None


def _to_base_36(number: int) -> str:
    digits, rest = "", abs(number)
    while rest or not digits:
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return f"-{digits}" if number < 0 else digits


_MARK = re.compile(r"--- attempt (\d{1,9}) ---")


def marked_attempt(line: str) -> int | None:
    """Returns the number of the attempt that a mark announces, or None for any other line."""
    match = _MARK.fullmatch(line) if line.startswith("---") else None
    return int(match[1]) if match else None


def lines_of_attempt(lines: Sequence[str], attempt: int, *, newest: int, whole: bool) -> Sequence[str]:
    """Returns an attempt's lines without the mark, or no lines if they might belong to another attempt.

    `newest` is the newest attempt, and `whole` means that the log still contains its first line. If so, the lines
    before the first mark belong to the preceding attempt. If not, they may belong to an attempt whose mark is missing.
    """
    marks: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        begins = marked_attempt(line)
        if begins is not None and begins > (marks[-1][1] if marks else 0):
            marks.append((at, begins))
    # An artificial mark after the last line ends the last attempt.
    marks.append((len(lines), max(newest, marks[-1][1] if marks else 0) + 1))
    for (at, begins), (end, _) in pairwise(marks):
        if begins == attempt:
            return lines[at + 1 : end]
    end, following = marks[0]
    return lines[:end] if attempt < following and (whole or following == attempt + 1) else ()


# Minimum and maximum characters of a time with seconds, nanoseconds and a zone.
_SHORTEST, _LONGEST = 20, 35


class StampedLine(NamedTuple):
    """StampedLine is a line's text, and its time in seconds since the epoch, or None if unknown."""

    time: float | None
    text: str


def stamped_line(line: str) -> StampedLine:
    """Splits a line into its time and its text."""
    end = line.find(" ", _SHORTEST, _LONGEST + 1)
    if end < 0:
        # An empty line may consist of only a time.
        end = len(line)
    if not _SHORTEST <= end <= _LONGEST or line[10] != "T" or line[4] != "-":
        return StampedLine(None, line)
    time = to_datetime(line[:end], zoned=True)
    return StampedLine(None, line) if time is None else StampedLine(time.timestamp(), line[end + 1 :])
