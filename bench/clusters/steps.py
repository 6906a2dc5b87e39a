"""Reads the steps that ranks have recorded (`bench.programs.stepping_ranks`)."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

# A cold start of four ranks takes a third of this on a busy machine.
NEW_STEP_SECONDS = 120.0


class Steps:
    """Steps reads the ranks' file of steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        # The time of each step, by attempt, rank and step.
        self.done: dict[int, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        # Micro-batches (or samples) that all ranks together used, by attempt and step, and their full number by step.
        self.parts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.whole: dict[int, int] = {}
        self.pids: dict[tuple[int, int], int] = {}

    def poll(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].decode().splitlines():
            at, attempt, rank, pid, step, parts, whole = line.split()
            self.done[int(attempt)][int(rank)][int(step)] = float(at)
            self.parts[int(attempt)][int(step)] += int(parts)
            self.whole[int(step)] = int(whole)
            self.pids[int(attempt), int(rank)] = int(pid)

    def is_steady(self, attempt: int, ranks: int, steps: int) -> bool:
        """Returns whether each rank of an attempt has done this many steps in the attempt."""
        newest = self.done.get(attempt, {})
        return len(newest) == ranks and all(len(each) >= steps for each in newest.values())

    def furthest(self, attempt: int) -> int:
        """Returns the furthest step that a rank has done in this or an earlier attempt; 0 if there is none."""
        before = [ranks for number, ranks in self.done.items() if number <= attempt]
        return max((step for ranks in before for steps in ranks.values() for step in steps), default=0)

    def made_until(self, at: float) -> int:
        """Returns the furthest step that a rank had done at the time `at`; 0 if there was none."""
        all_steps = [steps for ranks in self.done.values() for steps in ranks.values()]
        return max((step for steps in all_steps for step, done in steps.items() if done <= at), default=0)

    def seconds_of_last(self, attempt: int, count: int) -> float:
        """Returns how long the last `count` steps up to an attempt's end took, which must be repeated."""
        last = self.furthest(attempt)
        when = [
            {step: at for step, at in steps.items() if last - count <= step <= last}
            for number, ranks in self.done.items()
            if number <= attempt
            for steps in ranks.values()
        ]
        # The slowest rank's time is used. If the very first step is repeated, its beginning isn't known.
        return max((max(each.values()) - min(each.values()) for each in when if each), default=0.0) if count else 0.0

    async def first_new(
        self, attempt: int, since: float, ranks: Collection[int], seconds: float = NEW_STEP_SECONDS
    ) -> tuple[float, int]:
        """Waits until each of these ranks has done a new step in an attempt after `attempt`.

        Returns the time at which the slowest rank finished this step, and the number of repeated steps. Steps that
        ranks of `attempt` did after the fault, before they detected it, don't count as new.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            reached = self.furthest(attempt)
            back = [self._first_beyond(attempt, rank, reached, since) for rank in ranks]
            if None not in back:
                later = [steps for number, done in self.done.items() if number > attempt for steps in done.values()]
                return max(at for at in back if at), max(0, reached - min(min(steps) for steps in later) + 1)
            await asyncio.sleep(0.02)
        raise TimeoutError(f"no new step within {seconds:g} s after attempt {attempt}")

    def _first_beyond(self, attempt: int, rank: int, step: int, since: float) -> float | None:
        later = (ranks[rank] for number, ranks in self.done.items() if number > attempt and rank in ranks)
        return min((at for steps in later for each, at in steps.items() if each > step and at > since), default=None)

    async def joined(self, attempt: int, rank: int, seconds: float = NEW_STEP_SECONDS) -> tuple[float, int]:
        """Waits for a lost rank's first step in an attempt after `attempt`; returns its time and attempt."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            later = [
                (min(ranks[rank].values()), number)
                for number, ranks in self.done.items()
                if number > attempt and rank in ranks
            ]
            if later:
                return min(later)
            await asyncio.sleep(0.02)
        raise TimeoutError(f"rank {rank} isn't back within {seconds:g} s after attempt {attempt}")

    async def made(self, attempt: int, ranks: Collection[int], count: int, seconds: float = NEW_STEP_SECONDS) -> None:
        """Waits until each of these ranks has done `count` steps in an attempt or in later ones."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            later = [done for number, done in self.done.items() if number >= attempt]
            if all(sum(len(done.get(rank, ())) for done in later) >= count for rank in ranks):
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(f"no {count} steps within {seconds:g} s in attempt {attempt}")

    def gap_before(self, attempt: int, ranks: Collection[int]) -> float:
        """Returns the longest time between a rank's last step before an attempt and its first step from then on."""
        gaps = []
        for rank in ranks:
            first = min(
                at for number, done in self.done.items() if number >= attempt for at in done.get(rank, {}).values()
            )
            times = [at for done in self.done.values() for at in done.get(rank, {}).values() if at < first]
            gaps.append(first - max(times))
        return max(gaps)

    def longest_gap(self, ranks: Collection[int], since: float, until: float) -> float:
        """Returns the longest time between two steps of one of these ranks, if it ended between the two times."""
        gaps = []
        for rank in ranks:
            times = sorted(at for done in self.done.values() for at in done.get(rank, {}).values())
            gaps += [at - before for before, at in itertools.pairwise(times) if since < at <= until]
        return max(gaps, default=0.0)

    def whole_step(self, ranks: int) -> float:
        """Returns the median time of the steps in which all ranks took part."""
        gaps = [
            after - before
            for done in self.done.values()
            if len(done) == ranks
            for before, after in itertools.pairwise(sorted(next(iter(done.values())).values()))
        ]
        return statistics.median(gaps)

    def shares(self, attempt: int, until: float) -> list[float]:
        """Returns the part of a complete batch that each step after an attempt used, until the time `until`."""
        found = []
        for number, ranks in self.done.items():
            for step, count in self.parts[number].items() if number > attempt else ():
                times = [done[step] for done in ranks.values() if step in done]
                # A rank may be lost in an attempt's last step before it records its samples.
                if len(times) == len(ranks) and max(times) <= until:
                    found.append(count / self.whole[step])
        return found
