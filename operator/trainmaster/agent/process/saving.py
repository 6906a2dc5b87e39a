"""A rank that writes its state says so, and how long it needs, in a file (docs/protocol.md, "State in memory")."""

from __future__ import annotations

import math
import os
from typing import Optional

MAX_BYTES = 64


def saving_seconds(path: str) -> Optional[float]:
    """Returns the seconds that a rank asks for, 0 once it has written; None where it asks for none, or for nonsense."""
    try:
        # A rank may have left anything there; a named pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            seconds = float(os.read(fd, MAX_BYTES))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None
    return seconds if seconds >= 0 and math.isfinite(seconds) else None
