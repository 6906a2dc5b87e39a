"""Formats the age of a timestamp as `kubectl get` prints it (k8s.io/apimachinery `pkg/util/duration`)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

UNKNOWN = "<unknown>"


@lru_cache(maxsize=4096)
def seconds_since_epoch(timestamp: str) -> float:
    """Parses RFC 3339, with or without fractions of a second."""
    return datetime.fromisoformat(timestamp).astimezone(UTC).timestamp()


def human_duration(seconds: float) -> str:
    """Formats seconds as `HumanDuration` does: at most two units, coarser for longer times.

    90 s is `90s`, 200 s is `3m20s`, 3 days `3d`.
    """
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 60 * 2:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 60 * 3:
        return f"{minutes}m"
    hours = whole // 3600
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 24 * 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if hours < 24 * 365 * 2:
        return f"{days}d"
    years = days // 365
    if hours < 24 * 365 * 8:
        rest = days - years * 365
        return f"{years}y{rest}d" if rest else f"{years}y"
    return f"{years}y"


def age(timestamp: str | None, now: float) -> str:
    """Returns the Age column: the time from a timestamp until `now` (seconds since the epoch)."""
    return human_duration(now - seconds_since_epoch(timestamp)) if timestamp else UNKNOWN
