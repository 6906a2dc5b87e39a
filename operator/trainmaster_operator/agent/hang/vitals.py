"""This module finds whether a silent rank's processes compute, read or write, from the kernel's counters (proc(5)).

A rank that waits for others, for a lock or for an answer does none of these. Its own threads may still run a little (a
monitor, the heartbeat of a library), so a process counts as active from BUSY of one core on, or from BUSY_BYTES a
second. A process in state D waits for a disk or a device; it counts as active for DISK_SECONDS, because a slow disk is
no hang, and then no longer, because a lost file server is one. Processes below the rank count for it: loaders,
compilers, uploads.

NCCL's ranks use a core while they wait for their device. So a rank with an open device isn't active if torch's flight
recorder has shown the same unfinished collective twice (`evidence`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from trainmaster_operator.agent.process import children

BUSY, BUSY_BYTES = 0.05, 65_536
WINDOW_SECONDS = 1.0
"""The shortest time over which use is measured. It contains 5 of the kernel's ticks if a process uses BUSY."""
REMEMBERED_SECONDS = 3.0
"""For this long after its last use a process counts as active, because work on a busy machine has pauses."""
DISK_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """Use is what a rank's processes have used until a moment."""

    at: float
    seconds: float
    transferred: int


class Vitals:
    """Vitals keeps the use of a worker's ranks. `sample` it about once a second while a rank is silent."""

    def __init__(self) -> None:
        self._last: dict[int, Use] = {}
        self._active_at: dict[int, float] = {}
        self._disk_since: dict[int, float] = {}

    def sample(self, pids: Mapping[int, int], now: float) -> None:
        """Measure the processes of these ranks, whose pids are given."""
        table = children.process_table()
        below: dict[int, list[int]] = {}
        for process in table.values():
            below.setdefault(process.parent, []).append(process.pid)
        for rank, pid in pids.items():
            tree = [pid]
            for each in tree:
                tree.extend(below.get(each, []))
            use = Use(now, sum(map(_processor_seconds, tree)), sum(map(_transferred, tree)))
            waits_for_disk = any(each in table and table[each].state == "D" for each in tree)
            self._add(rank, use, waits_for_disk=waits_for_disk)

    def is_active(self, rank: int, now: float) -> bool:
        return now - self._active_at.get(rank, -1e9) <= REMEMBERED_SECONDS

    def _add(self, rank: int, use: Use, *, waits_for_disk: bool) -> None:
        last, self._last[rank] = self._last.get(rank), use
        if not waits_for_disk:
            self._disk_since.pop(rank, None)
        elif use.at - self._disk_since.setdefault(rank, use.at) <= DISK_SECONDS:
            self._active_at[rank] = use.at
        # The use of a process that has ended since is missing, so the difference may be negative.
        if last is not None and use.at > last.at:
            window = use.at - last.at
            used, bytes_ = use.seconds - last.seconds, use.transferred - last.transferred
            if used / window >= BUSY or bytes_ / window >= BUSY_BYTES:
                self._active_at[rank] = use.at


def _processor_seconds(pid: int) -> float:
    _, fields = children.stat_of(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else 0.0


def _transferred(pid: int) -> int:
    lines = (line.partition(": ") for line in children.read_text(f"/proc/{pid}/io").splitlines())
    return sum(int(value) for name, _, value in lines if name in ("rchar", "wchar") and value.isdigit())
