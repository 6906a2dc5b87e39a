"""The agent assigns the next attempt to running ranks by a file, and wakes each rank by a FIFO (docs/protocol.md).

The file contains the newest attempt, so missed or repeated wake-ups do no harm.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELDS = ("attempt", "worldSize", "absent", "master", "port")
_MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Order:
    """An order describes one attempt: the ranks of its group, and their meeting point.

    `unit` is the number of neighbouring ranks that hold a state together. These ranks train together or not at all.
    """

    attempt: int
    size: int
    absent: frozenset[int] = frozenset()
    master: str = ""
    port: int = 0
    unit: int = 1

    @property
    def present(self) -> tuple[int, ...]:
        """Returns the ranks that train, which all belong to complete units."""
        incomplete = {rank // self.unit for rank in self.absent}
        return tuple(rank for rank in range(self.size) if rank // self.unit not in incomplete)

    @property
    def idle(self) -> frozenset[int]:
        """Returns the ranks that wait until their unit is complete again."""
        return frozenset(range(self.size)) - self.absent - frozenset(self.present)

    @property
    def server(self) -> int:
        """Returns the lowest rank that isn't absent, which serves the store at the address that the agents know."""
        return min(frozenset(range(self.size)) - self.absent)


def parse(text: str) -> Order | None:
    """Returns the order in a file's text; None if the text is no valid order."""
    try:
        data: Any = json.loads(text)
        attempt, size, absent, master, port = (data[name] for name in _FIELDS)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(absent, list) or not all(type(each) is int for each in (attempt, size, port, *absent)):
        return None
    order = Order(attempt, size, frozenset(absent), str(master), port)
    good = attempt > 0 and 0 < port < 65536 and 0 < size <= _MOST_RANKS and order.absent < frozenset(range(size))
    return order if good else None


class Orders:
    """This class reads orders in a thread, and calls `received` with each order."""

    def __init__(self, file: Path, rank: int, received: Callable[[Order], None]) -> None:
        self._file, self._received = file, received
        # The FIFO is opened for writing too, so that opening doesn't wait for a writer, and there is never an
        # end-of-file.
        self._fifo = os.open(f"{file}.{rank}", os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=self._follow, daemon=True, name="orders").start()

    def read(self) -> Order | None:
        """Returns the order in the file; None if the file has no valid order."""
        try:
            return parse(self._file.read_text())
        except (OSError, UnicodeDecodeError):
            return None

    def _follow(self) -> None:
        while True:
            if (order := self.read()) is not None:
                self._received(order)
            os.read(self._fifo, 64)
