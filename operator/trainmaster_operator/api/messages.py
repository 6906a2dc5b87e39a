"""Messages to people share these functions."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Returns a time as people say it: `0.4 s`, `14 s`, `5 min`, `3 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def listed(names: Sequence[str]) -> str:
    """Returns the names as one text, of many only the first three."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
