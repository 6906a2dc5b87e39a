"""Parses durations as kubectl does: in Go's format (time.ParseDuration), or as seconds without a unit."""

from __future__ import annotations

import re

import typer

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
# Each unit in seconds. Unicode has two characters for the prefix micro.
_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(rf"({_NUMBER})({'|'.join(_UNITS)})", re.ASCII)
# Go counts nanoseconds in 64 bits.
_MOST_SECONDS = 2**63 / 1e9


def seconds(value: str) -> float:
    """Parses a duration as kubectl does: 30, 30s, 500ms, 1.5h, 1h30m. Raises BadParameter."""
    if re.fullmatch(_NUMBER, value, re.ASCII):
        total = float(value)
    elif value and not _PART.sub("", value):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise typer.BadParameter(f"{value!r} is no duration; use seconds, or 30s, 5m, 1h30m, 500ms")
    if total >= _MOST_SECONDS:
        raise typer.BadParameter(f"{value!r} is too long; use less than 292 years")
    return total
