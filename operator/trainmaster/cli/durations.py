"""Durations on the command line are kubectl's."""

from __future__ import annotations

import re

import typer


def seconds(value: str) -> float:
    """Parses a duration as kubectl does: 30, 30s, 5m, 1h30m. Raises BadParameter."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", value)
    if not value or parts is None:
        raise typer.BadParameter(f"{value!r} is no duration; use seconds, or 30s, 5m, 1h30m")
    hours, minutes, rest = (float(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + rest
