"""A rank has a place in its attempt, and a directory in memory, which the agent or torchrun name."""

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
    """A place is which rank of which attempt of which job this is."""

    job: str
    attempt: int
    rank: int
    ranks: int
    local_ranks: int
    #: Neighbouring ranks that have a whole state together, where each has a part of it; None: all ranks.
    unit: int | None = None

    @classmethod
    def from_environment(cls, rank: int, ranks: int, unit: int | None = None) -> Place:
        """Returns this rank's place; without an agent all attempts are the first."""
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
        """Returns the number of ranks that hold a state together, and which of them this is."""
        unit = self.unit or self.ranks
        return (unit, self.rank % unit) if divided else (1, 0)


def memory_directory(say: Callable[[str], None]) -> Path | None:
    """Returns this user's own directory in the pod's memory; None where none is named, or it can't be used, which `say`
    reports.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        return None
    try:
        return sealed.private(Path(named))
    except (OSError, sealed.SealError) as error:
        say(f"no state is kept in memory: {DIRECTORY_VARIABLE} is {named}: {error}")
        return None


#: Names a file; with the rank appended, the file reports that the rank is writing (docs/protocol.md).
SAVING_VARIABLE = "TRAINMASTER_SAVING_FILE"
#: The suffix of the file that reports a planned stop.
PLANNED = ".planned"
#: Bytes that a slow machine writes in a second, and the seconds that a save costs on top.
_BYTES_A_SECOND = 200e6
_LEAST_SECONDS = 1.0


@contextmanager
def announced(rank: int, size: int) -> Iterator[None]:
    """Surrounds the writing of `size` bytes, and reports to the agent how many seconds this may take."""
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
    """Returns the seconds that a planned stop gives the ranks; None where the agent has planned none."""
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
