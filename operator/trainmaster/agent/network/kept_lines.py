"""The last lines of each worker, as an operator gets them that begins to watch: bounded, however large they are."""

from __future__ import annotations

from collections.abc import Callable

from trainmaster.wire.limits import MAX_PROCESSES, MAX_RANKS_IN_LINE

MAX_PARTS = MAX_PROCESSES // MAX_RANKS_IN_LINE
"""Lines of one worker: as many as its ranks can need."""


class KeptLines:
    """At most `most` bytes in all. A line that doesn't fit isn't kept, and neither is the one whose place it takes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._attempts: dict[int, int] = {}
        self._lines: dict[int, dict[int, bytes]] = {}

    def keep(self, worker: int, attempt: int, part: int, line: bytes) -> None:
        """Keep a worker's line of an attempt in place of an older one with the same ranks, which `part` names."""
        if self._attempts.get(worker) != attempt:
            self._drop(worker)
        self._attempts[worker] = attempt
        lines = self._lines.setdefault(worker, {})
        self._size -= len(lines.pop(part, b""))
        while len(lines) >= MAX_PARTS:
            self._size -= len(lines.pop(next(iter(lines))))
        if self._size + len(line) <= self._most:
            lines[part] = line
            self._size += len(line)

    def forget(self, but: Callable[[int, int], bool]) -> None:
        """Forget all lines but those that are wanted, by worker and attempt."""
        for worker, attempt in list(self._attempts.items()):
            if not but(worker, attempt):
                self._drop(worker)

    def all(self) -> list[bytes]:
        """Returns what is kept."""
        return [line for lines in self._lines.values() for line in lines.values()]

    def _drop(self, worker: int) -> None:
        self._attempts.pop(worker, None)
        self._size -= sum(map(len, self._lines.pop(worker, {}).values()))
