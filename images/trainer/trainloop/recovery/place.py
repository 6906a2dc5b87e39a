"""A rank has a place in its attempt, and a directory in memory, which the agent or torchrun name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainloop.recovery import sealed

#: The directory in memory that outlives ranks and containers (docs/protocol.md).
DIRECTORY_VARIABLE = "TRAINMASTER_MEMORY_DIR"


@dataclass(frozen=True)
class Place:
    """A place says which rank of which attempt of which job this is, and where its worker's memory is."""

    directory: Path
    job: str
    attempt: int
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls, rank: int, ranks: int, say: Callable[[str], None]) -> Place | None:
        """Returns this rank's place; None where no directory is named, or it can't be used, which is said."""
        named = os.environ.get(DIRECTORY_VARIABLE)
        if not named:
            return None
        try:
            directory = sealed.private(Path(named))
        except (OSError, sealed.SealError) as error:
            say(f"no state is kept in memory: {DIRECTORY_VARIABLE} is {named}: {error}")
            return None
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return cls(
            directory,
            os.environ.get("TRAINMASTER_JOB_UID", ""),
            int(os.environ.get("TRAINMASTER_ATTEMPT", "1")),
            rank,
            ranks,
            int(os.environ.get("LOCAL_RANK", "0")),
            local_ranks,
        )
