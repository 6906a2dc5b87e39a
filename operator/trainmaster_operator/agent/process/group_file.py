"""Ranks read in a file which group they are in, and are woken through a FIFO (docs/protocol.md, "Continuing")."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable

from trainmaster_operator.agent.process.saved_report import write_atomically
from trainmaster_operator.wire.assignment import Assignment


def rank_variables(path: str, *, joins: bool) -> dict[str, str]:
    """Returns what a rank has in its environment to find its group by."""
    return {"TRAINMASTER_GROUP_FILE": path, **({"TRAINMASTER_JOINS": "1"} if joins else {})}


def make_fifos(path: str, ranks: Iterable[int]) -> None:
    """Make the FIFOs by which ranks are woken. Raises OSError."""
    for rank in ranks:
        unlink(f"{path}.{rank}")
        os.mkfifo(f"{path}.{rank}", 0o600)


def write_group(path: str, assignment: Assignment, processes: int) -> None:
    """Write which ranks aren't in the group of an attempt, and where its lowest rank serves the store. Raises OSError.

    `processes`: the ranks of this worker.
    """
    group = {
        "attempt": assignment.attempt,
        "absent": list(assignment.absent),
        "worldSize": assignment.world_size(processes),
        "master": assignment.master,
        "port": assignment.port,
    }
    write_atomically(path, json.dumps(group) + "\n")


def described(assignment: Assignment) -> str:
    """Returns who is in the group of an attempt, for its log."""
    absent = assignment.absent
    if not absent:
        return "with all ranks"
    more = f" and {len(absent) - 16} more" if len(absent) > 16 else ""
    return f"without rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent[:16]))}{more}"


def wake(path: str, rank: int) -> None:
    """Have a rank read the file, if it listens."""
    with contextlib.suppress(OSError):  # no reader (ENXIO), or one that hasn't read 64 KiB of wake-ups
        fd = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, b".")
        finally:
            os.close(fd)


def unlink(path: str) -> None:
    """Remove a file, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
