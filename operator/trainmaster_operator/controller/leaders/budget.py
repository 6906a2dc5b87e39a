"""A job's leader has a budget of bytes, lines and changes, by the job's size. One that sends more is read slowly.

Reading slowly is all that it takes: what isn't read stays with the pod, which then can't send any more. A change is
what the store changes by: each asks for a pass over the job, which costs a hundred times what its line does. A healthy
job has a few for each worker and attempt, so every attempt brings an allowance of them, and hardly any otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Lines a second: progress comes once a second from each worker, reports and workers now and then.
LINES, LINES_A_WORKER = 20.0, 5.0
# Bytes a second: a worker's progress has a few hundred for each rank.
BYTES, BYTES_A_WORKER, BYTES_A_RANK = 65_536.0, 4_096.0, 1_024.0
# Seconds of lines and of bytes that may come at once: a stream begins with all that the leader knows.
LINES_BURST, BYTES_BURST = 10.0, 3.0
# Changes that an attempt brings: a worker joins, sees it, starts, runs, ends, and its peers' ends are sent again.
CHANGES, CHANGES_A_WORKER = 10.0, 6.0
# Changes a second beyond those.
CHANGES_A_SECOND = 1.0


@dataclass
class _Allowance:
    """Allows so much a second, saved up to a limit; below nothing, until it is made up for."""

    rate: float
    most: float
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.most, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now

    def resize(self, rate: float, most: float) -> None:
        self.left += max(0.0, most - self.most)
        self.rate, self.most = rate, most

    @property
    def seconds(self) -> float:
        return max(0.0, -self.left / self.rate)


class StreamBudget:
    """Bounds what one job's leader sends, over whichever connections. `clock` is the event loop's."""

    def __init__(self, workers: int, ranks: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines = _Allowance(1.0, 0.0, 0.0, clock())
        self._bytes = _Allowance(1.0, 0.0, 0.0, clock())
        self._changes = _Allowance(CHANGES_A_SECOND, 0.0, 0.0, clock())
        self._an_attempt = 0.0
        self.resize(workers, ranks)

    def resize(self, workers: int, ranks: int) -> None:
        """Allow what a job of another size needs."""
        lines = LINES + LINES_A_WORKER * workers
        self._lines.resize(lines, LINES_BURST * lines)
        size = BYTES + BYTES_A_WORKER * workers + BYTES_A_RANK * ranks
        self._bytes.resize(size, BYTES_BURST * size)
        self._an_attempt = CHANGES + CHANGES_A_WORKER * workers
        # The attempt that is over may still be reported on.
        self._changes.resize(CHANGES_A_SECOND, 2 * self._an_attempt)

    def grant_attempt(self) -> None:
        """Allow the changes of an attempt that the operator opens."""
        self._changes.left = min(self._changes.most, self._changes.left + self._an_attempt)

    def spend(self, size: int, lines: int, changes: int) -> None:
        """Count what a leader has sent."""
        now = self._clock()
        for allowance, spent in ((self._bytes, size), (self._lines, lines), (self._changes, changes)):
            allowance.refill(now)
            allowance.left -= spent

    @property
    def seconds(self) -> float:
        """Returns how long nothing more should be read (seconds); less once an attempt is granted."""
        now = self._clock()
        for allowance in (self._bytes, self._lines, self._changes):
            allowance.refill(now)
        return max(self._bytes.seconds, self._lines.seconds, self._changes.seconds)
