"""A rank that writes its state says so, and how long it needs, in a file, and is told in one that a stop is planned
(docs/protocol.md, "State in memory").
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Optional

MAX_BYTES = 64


def say_planned(path: str, seconds: float) -> None:
    """Tell ranks that a stop is planned, which gives them `seconds`; comes before SIGTERM."""
    with contextlib.suppress(OSError):  # a full disk: they write their state at once, as after a failure
        partial = f"{path}.planned.partial"
        with open(partial, "w") as stream:
            stream.write(f"{seconds:.1f}")
        os.replace(partial, f"{path}.planned")


def saving_ranks(path: str, ranks: Sequence[int]) -> dict[int, float]:
    """Returns the seconds that ranks ask for, by local rank; `ranks` are their global numbers."""
    found = {local_rank: saving_seconds(f"{path}.{rank}") for local_rank, rank in enumerate(ranks)}
    return {local_rank: seconds for local_rank, seconds in found.items() if seconds is not None}


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
