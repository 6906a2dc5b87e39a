"""What ranks have written down of their steps (`bench.programs.stepping_ranks`) is read here."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


class Steps:
    """Steps reads what the ranks have written down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        # By attempt, rank and step: when it was done.
        self.done: dict[int, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        self.pids: dict[tuple[int, int], int] = {}

    def poll(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].decode().splitlines():
            at, attempt, rank, pid, step = line.split()
            self.done[int(attempt)][int(rank)][int(step)] = float(at)
            self.pids[int(attempt), int(rank)] = int(pid)

    def furthest(self) -> int:
        return max((step for ranks in self.done.values() for steps in ranks.values() for step in steps), default=0)

    def first_beyond(self, step: int, after: float, ranks: int) -> float | None:
        """Returns when the slowest rank had done its first step beyond one; None before all ranks have."""
        newest = self.done[max(self.done)]
        firsts = [
            min((at for each, at in steps.items() if each > step and at > after), default=None)
            for steps in newest.values()
        ]
        return None if len(firsts) < ranks or None in firsts else max(at for at in firsts if at is not None)
