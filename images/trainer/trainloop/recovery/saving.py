"""A rank that writes its state says so to the agent, whose SIGKILL waits as long as the rank needs, and no longer; and
the agent says to its ranks whether a stop is planned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The file whose name, with the rank behind it, says that a rank is writing (docs/protocol.md).
SAVING_VARIABLE = "TRAINMASTER_SAVING_FILE"
#: What follows in the name of the file that says that a stop is planned.
PLANNED = ".planned"
#: What a slow machine writes in a second (bytes), and what a save costs besides (seconds).
_BYTES_A_SECOND = 200e6
_LEAST_SECONDS = 1.0


@contextmanager
def announced(rank: int, size: int) -> Iterator[None]:
    """Surrounds the writing of `size` bytes: the agent is told how many seconds this may take."""
    named = os.environ.get(SAVING_VARIABLE)
    if not named:
        yield
        return
    file = Path(f"{named}.{rank}")
    _replace(file, f"{_LEAST_SECONDS + size / _BYTES_A_SECOND:.1f}")
    try:
        yield
    finally:
        _replace(file, "0")


def planned_seconds() -> float | None:
    """Returns the seconds that a stop which the agent has planned gives the ranks; None where it says of none."""
    named = os.environ.get(SAVING_VARIABLE)
    try:
        return float(Path(f"{named}{PLANNED}").read_text()) if named else None
    except (OSError, ValueError):
        return None


def is_the_end() -> bool:
    """Returns whether this rank is ended in any case: there is an agent, which after a fault ends all ranks."""
    return SAVING_VARIABLE in os.environ and planned_seconds() is None


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):  # a full disk is no reason not to write to memory
        beside.write_text(text)
        beside.replace(file)
