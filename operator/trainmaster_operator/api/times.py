"""Times are seconds since the epoch in the code, and RFC 3339 in the status.

Milliseconds are kept, because recoveries take tenths of a second. Clocks jump, because NTP corrects them or the
operator moves to another machine. So a negative interval counts as zero.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from trainmaster_operator.wire.values import MAX_TIME


def to_text(seconds: float) -> str:
    """Returns `2026-11-21T04:00:00.123Z`, rounded up, so that no wait ends early."""
    milliseconds = math.ceil(_shown(seconds) * 1000 - 1e-6)
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def to_whole_text(seconds: float) -> str:
    """Returns `2026-11-21T04:00:00Z`, as Kubernetes writes the times of conditions (metav1.Time)."""
    return f"{datetime.fromtimestamp(math.floor(_shown(seconds)), UTC):%Y-%m-%dT%H:%M:%SZ}"


def to_micro_text(seconds: float) -> str:
    """Returns `2026-11-21T04:00:00.123456Z`, as Kubernetes writes the times of Leases (metav1.MicroTime)."""
    return f"{datetime.fromtimestamp(_shown(seconds), UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _shown(seconds: float) -> float:
    """Limits a time to the range that can be formatted (1970 to 9999), because anyone may have edited a status."""
    return min(seconds, MAX_TIME) if seconds >= 0 else 0.0


def to_datetime(value: object, *, zoned: bool = False) -> datetime | None:
    """Parses RFC 3339. Returns None for anything that isn't a time.

    A time without a zone counts as UTC, or as invalid if `zoned` is set.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if moment is None or moment.tzinfo is not None:
        return moment
    return None if zoned else moment.replace(tzinfo=UTC)


def to_seconds(value: object) -> float | None:
    """Returns the seconds since the epoch for a time in RFC 3339, or None for anything else.

    A status can be edited, so it can contain anything.
    """
    moment = to_datetime(value)
    return None if moment is None else moment.timestamp()


def since(now: float, text: str | None) -> float:
    """Returns the seconds from a time in the status until now, or 0 if the time is missing or in the future."""
    moment = to_seconds(text)
    return 0.0 if moment is None else max(now - moment, 0.0)


def duration(seconds: float) -> str:
    """Returns a readable duration such as `0.4 s`, `14 s`, `5 min` or `3 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
