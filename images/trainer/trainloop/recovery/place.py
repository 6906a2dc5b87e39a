"""A rank has a place in its attempt, and a directory in memory; the agent or torchrun names both."""

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
    #: The number of neighbouring ranks that together hold a whole state in parts; None: all ranks.
    unit: int | None = None

    @classmethod
    def from_environment(cls, rank: int, ranks: int, unit: int | None = None) -> Place:
        """Returns this rank's place; without an agent the attempt is always the first."""
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
        """Returns the number of ranks that hold a state together, and this rank's index among them."""
        unit = self.unit or self.ranks
        return (unit, self.rank % unit) if divided else (1, 0)


def memory_directory(say: Callable[[str], None]) -> Path | None:
    """Returns this user's own directory in the pod's memory; None if none is named or it is unusable.

    `say` is called with the reason if the directory is unusable.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        return None
    try:
        return sealed.private(Path(named))
    except (OSError, sealed.SealError) as error:
        say(f"no state is kept in memory: {DIRECTORY_VARIABLE} is {named}: {error}")
        return None


#: The path that, with the rank appended, is a file that reports that the rank is writing (docs/protocol.md).
SAVING_VARIABLE = "TRAINMASTER_SAVING_FILE"
#: The suffix of the file that reports a planned stop.
PLANNED = ".planned"
#: Bytes that a slow machine writes per second, and the seconds that each save needs in addition.
_BYTES_A_SECOND = 200e6
_LEAST_SECONDS = 1.0


@contextmanager
def announced(rank: int, size: int) -> Iterator[None]:
    """Report to the agent, while the context is open, how many seconds writing `size` bytes may take."""
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
    """Returns the seconds that a planned stop gives the ranks; None if the agent has planned no stop."""
    named = os.environ.get(SAVING_VARIABLE)
    try:
        return float(Path(f"{named}{PLANNED}").read_text()) if named else None
    except (OSError, ValueError):
        return None


def is_the_end() -> bool:
    """Returns whether this rank is bound to end, because an agent ends all ranks after a fault."""
    return SAVING_VARIABLE in os.environ and planned_seconds() is None


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(OSError):  # a full disk is no reason not to write to memory
        beside.write_text(text)
        beside.replace(file)
