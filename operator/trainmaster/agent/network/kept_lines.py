"""The last line of each worker, as it goes out to whoever begins to follow: bounded, however large the lines are."""

from __future__ import annotations

from collections.abc import Callable


class KeptLines:
    """At most `most` bytes in all. A line that doesn't fit isn't kept, and neither is the worker's older one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._lines: dict[int, tuple[int, bytes]] = {}

    def keep(self, worker: int, attempt: int, line: bytes) -> None:
        """Keep a worker's line of an attempt in place of its older one."""
        _, older = self._lines.pop(worker, (0, b""))
        self._size -= len(older)
        if self._size + len(line) <= self._most:
            self._lines[worker] = attempt, line
            self._size += len(line)

    def forget(self, but: Callable[[int, int], bool]) -> None:
        """Forget all lines but those that are wanted, by worker and attempt."""
        self._lines = {worker: kept for worker, kept in self._lines.items() if but(worker, kept[0])}
        self._size = sum(len(line) for _, line in self._lines.values())

    def all(self) -> list[bytes]:
        """What is kept."""
        return [line for _, line in self._lines.values()]
