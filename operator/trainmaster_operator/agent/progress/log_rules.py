"""The lines that one rank prints are matched with a preset, or with the job's own pattern. Pure.

Progress is a level, so of many lines that came at once only the newest that matches counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Optional

from trainmaster_operator.agent.progress.bars import Bar, Bars, measured, read_bar
from trainmaster_operator.agent.progress.presets import BAR_MARK, PRESETS, LineRule
from trainmaster_operator.wire.log_rules import compile_pattern
from trainmaster_operator.wire.ranks import RankProgress

MAX_LINE_CHARACTERS = 1_000
"""So much of a line is matched."""
MAX_BARS = 16
"""Bars of different lengths that are remembered for Hugging Face's Trainer, whose reports say which one is its own."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WHOLE = ("step", "totalSteps")


class LogRules:
    """LogRules has what the lines of one rank have said so far. `preset`: its name; a pattern goes before it."""

    def __init__(self, pattern: str, preset: str) -> None:
        self._own = compile_pattern(pattern) if pattern else None
        found = PRESETS[preset]
        self._lines: tuple[LineRule, ...] = () if pattern else found.lines
        self._mark = b"" if pattern else found.bars
        self._sums = Bars(found.first_epoch)
        self._fields: dict[str, float] = {}
        self.progress: Optional[RankProgress] = None
        """What the lines mean together; None until one has matched."""
        self.bars: dict[int, Bar] = {}
        """The newest bar of each length."""

    def read(self, data: bytes, lines: Sequence[bytes], unfinished: bytes = b"") -> bool:
        """Match what has come, and say whether it says anything new. `data`: all of it, to look for marks once;
        `unfinished`: a line that may go on, of which only a bar that is whole says anything."""
        before, bars_before = dict(self._fields), dict(self.bars)
        if self._own is not None:
            self._match(self._own, lines)
        for rule in self._lines:
            if rule.mark in data:
                self._match(rule.pattern, [line for line in lines if rule.mark in line])
        if BAR_MARK in data:
            self._read_bars([line for line in (*lines, unfinished) if BAR_MARK in line])
        if self._fields != before:
            self.progress = RankProgress.salvage(self._fields)
        return self._fields != before or self.bars != bars_before

    def _match(self, pattern: re.Pattern[str], lines: Sequence[bytes]) -> None:
        for line in reversed(lines):
            text = _text(line)
            found = pattern.search(text)
            if found is None:
                continue
            fields = read_fields(found.groupdict())
            bar = read_bar(text) if self._own is None and BAR_MARK in line else None
            self._fields.update({**fields, **({} if bar is None else measured(bar))})
            if fields:
                return

    def _read_bars(self, lines: Sequence[bytes]) -> None:
        if self._own is not None:
            return
        for line in reversed(lines):
            bar = read_bar(_text(line))
            if bar is None:
                continue
            self.bars.pop(bar.total, None)
            self.bars[bar.total] = bar
            if len(self.bars) > MAX_BARS:
                del self.bars[next(iter(self.bars))]
            if self._mark and self._mark in line:
                fields = self._sums.add(bar)
                if fields and "totalSteps" not in fields:
                    self._fields.pop("totalSteps", None)
                self._fields.update(fields)
            return


def read_fields(groups: Mapping[str, Optional[str]]) -> dict[str, float]:
    """Returns the numbers that a match has found, by the field's name."""
    fields: dict[str, float] = {}
    for name, text in groups.items():
        value = None if text is None else _number(text)
        if value is None:
            continue
        if name == "stepsPerSecond":
            if value > 0:
                fields["stepSeconds"] = 1 / value
        else:
            fields[name] = int(value) if name in _WHOLE else value
    return fields


def _text(line: bytes) -> str:
    text = line[: 4 * MAX_LINE_CHARACTERS].decode("utf-8", "replace")[:MAX_LINE_CHARACTERS]
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _number(text: str) -> Optional[float]:
    """Returns a number as people print it (12, 1.5e-3, 1,234), or a time as seconds (1:02:03); None for other texts."""
    parts = text.replace(",", "").strip().split(":")
    value = 0.0
    try:
        for part in parts[:4]:
            value = value * 60 + float(part)
    except ValueError:
        return None
    return value if len(parts) <= 4 and math.isfinite(value) and abs(value) < 1e100 else None
