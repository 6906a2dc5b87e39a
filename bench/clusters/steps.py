"""What ranks have written down of their steps (`bench.programs.stepping_ranks`) is read here."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path

# A cold start of four ranks takes a third of this on a busy machine.
NEW_STEP_SECONDS = 120.0


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

    def is_steady(self, attempt: int, ranks: int) -> bool:
        """Returns whether all ranks of an attempt have done new steps for a while."""
        newest = self.done.get(attempt, {})
        return len(newest) == ranks and all(len(each) > 30 for each in newest.values())

    def furthest(self, attempt: int) -> int:
        """Returns the furthest step that any rank has done in this attempt or one before; 0 before the first."""
        before = [ranks for number, ranks in self.done.items() if number <= attempt]
        return max((step for ranks in before for steps in ranks.values() for step in steps), default=0)

    def seconds_of_last(self, attempt: int, count: int) -> float:
        """Returns how long the last `count` steps of an attempt and those before it have taken: work to be repeated."""
        last = self.furthest(attempt)
        when = [
            {step: at for step, at in steps.items() if last - count <= step <= last}
            for number, ranks in self.done.items()
            if number <= attempt
            for steps in ranks.values()
        ]
        # Of the rank that has most of them; where the first of all steps is repeated nobody knows when it began.
        return max((max(each.values()) - min(each.values()) for each in when if each), default=0.0) if count else 0.0

    async def first_new(
        self, attempt: int, since: float, ranks: int, seconds: float = NEW_STEP_SECONDS
    ) -> tuple[float, int]:
        """Waits for a later attempt's first step that nobody had done in `attempt` or before.

        Returns when the slowest rank had done it, and how many steps had been done again. What ranks of `attempt` did
        after the fault, before they noticed it, counts as done before.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            reached = self.furthest(attempt)
            newest = max(self.done, default=0)
            if newest > attempt:
                back = self._first_beyond(newest, reached, since, ranks)
                if back is not None:
                    begun = min(min(steps) for steps in self.done[newest].values())
                    return back, max(0, reached - begun + 1)
            await asyncio.sleep(0.02)
        raise TimeoutError(f"no new step within {seconds:g} s after attempt {attempt}")

    def _first_beyond(self, attempt: int, step: int, since: float, ranks: int) -> float | None:
        firsts = []
        for steps in self.done[attempt].values():
            later = [at for each, at in steps.items() if each > step and at > since]
            if not later:
                return None
            firsts.append(min(later))
        return max(firsts) if len(firsts) == ranks else None
