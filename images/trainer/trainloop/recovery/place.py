"""This module reads a rank's place in its attempt and its directory in memory, which the agent or torchrun names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainloop.recovery import sealed

#: The directory in memory that outlives ranks and containers (docs/protocol.md).
DIRECTORY_VARIABLE = "TRAINMASTER_MEMORY_DIR"


@dataclass(frozen=True)
class Place:
    """A place identifies a rank, its attempt and its job."""

    job: str
    attempt: int
    rank: int
    ranks: int
    local_ranks: int
    #: The number of neighbouring ranks whose parts form a whole state; None if the parts of all ranks form it.
    unit: int | None = None

    @classmethod
    def from_environment(cls, rank: int, ranks: int, unit: int | None = None) -> Place:
        """Returns this rank's place; without an agent, the attempt is always 1."""
        job, attempt = os.environ.get("TRAINMASTER_JOB_UID", ""), os.environ.get("TRAINMASTER_ATTEMPT", "1")
        return cls(job, int(attempt), rank, ranks, int(os.environ.get("LOCAL_WORLD_SIZE", "1")), unit)

    @property
    def worker(self) -> int:
        return self.rank // self.local_ranks

    @property
    def local_rank(self) -> int:
        return self.rank % self.local_ranks

    @property
    def is_first_of_worker(self) -> bool:
        return self.local_rank == 0

    def part(self, divided: bool) -> tuple[int, int]:
        """Returns the number of parts of a state, and the index of this rank's part; 1 and 0 if it isn't `divided`."""
        unit = self.unit or self.ranks
        return (unit, self.rank % unit) if divided else (1, 0)


def memory_directory(say: Callable[[str], None]) -> Path | None:
    """Returns this user's own directory in the pod's memory; None if the environment names none or it is unusable.

    If the directory is unusable, `say` is called with the reason.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        return None
    try:
        return sealed.private(Path(named))
    except (OSError, sealed.SealError) as error:
        say(f"no state is kept in memory: {DIRECTORY_VARIABLE} is {named}: {error}")
        return None


#: The path of the files that report that a rank is writing; the rank is appended (docs/protocol.md).
SAVING_VARIABLE = "TRAINMASTER_SAVING_FILE"
#: The suffix of the file that reports a planned stop.
PLANNED = ".planned"
#: Bytes per second that a slow machine writes, and the seconds that each save needs in addition.
_BYTES_A_SECOND = 200e6
_LEAST_SECONDS = 1.0


@contextmanager
def announced(rank: int, size: int) -> Iterator[None]:
    """While the context is open, announce to the agent how many seconds it may take to write `size` bytes."""
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
    """Returns how many seconds the ranks get in a planned stop; None if the agent has planned no stop."""
    named = os.environ.get(SAVING_VARIABLE)
    try:
        return float(Path(f"{named}{PLANNED}").read_text()) if named else None
    except (OSError, ValueError):
        return None


def is_the_end() -> bool:
    """Returns whether this rank certainly ends now, because its agent ends all ranks after a fault.

    Returns false in a planned stop, and without an agent.
    """
    return SAVING_VARIABLE in os.environ and planned_seconds() is None


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):  # the state is written to memory even if the disk is full
        beside.write_text(text)
        beside.replace(file)
