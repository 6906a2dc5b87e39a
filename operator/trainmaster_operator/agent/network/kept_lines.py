"""The last lines of each worker, as an operator gets them that begins to watch: bounded, however large they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainmaster_operator.agent.network.lines import json_line
from trainmaster_operator.wire.limits import MAX_KEPT_OUTPUT_BYTES, MAX_PROCESSES, MAX_RANKS_IN_LINE
from trainmaster_operator.wire.stream import ProgressLine

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


class KeptProgress(KeptLines):
    """The lines say how far ranks are, and the step of each rank is known from them."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._steps: dict[int, tuple[int, dict[int, int]]] = {}
        """The attempt of each worker's last progress, and the step of each of its ranks."""

    def add(self, line: ProgressLine) -> bytes:
        """Keep a worker's progress; returns the line as it is sent."""
        data = json_line(line.to_wire())
        self.keep(line.worker, line.attempt, part_of(line.ranks), data)
        attempt, steps = self._steps.get(line.worker, (line.attempt, {}))
        if attempt != line.attempt or len(steps) > MAX_PROCESSES:
            steps = {}
        steps.update((rank, -1 if progress.step is None else progress.step) for rank, progress in line.ranks.items())
        self._steps[line.worker] = line.attempt, steps
        return data

    def slowest_step(self, worker: int, attempt: int) -> int:
        """Returns the step of a worker's slowest rank in an attempt, -1 where it never said."""
        known, steps = self._steps.get(worker, (-1, {}))
        return min(steps.values(), default=-1) if known == attempt else -1

    def _drop(self, worker: int) -> None:
        super()._drop(worker)
        self._steps.pop(worker, None)


class KeptOutputs:
    """KeptOutputs has what workers printed last that have ended; of too much the oldest is forgotten."""

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}

    def keep(self, worker: int, line: bytes) -> None:
        """Keep what a worker printed last, in place of what it printed before."""
        self._lines.pop(worker, None)
        self._lines[worker] = line
        while sum(map(len, self._lines.values())) > MAX_KEPT_OUTPUT_BYTES:
            del self._lines[next(iter(self._lines))]

    def all(self) -> list[bytes]:
        """Returns what is kept, the newest last."""
        return list(self._lines.values())


def part_of(ranks: Iterable[int]) -> int:
    """Names a line of a worker by its ranks, because one with many sends several."""
    return min(ranks, default=0)
