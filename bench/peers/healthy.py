"""Measures a healthy step beside plain DDP's: its time, and the processor time of all its processes.

A machine's speed changes within seconds by more than the measured difference. So both programs are kept running, and
alternate every second (`bench.programs.parts.await_turn`) in the order A B B A, which cancels a steady change. Each
such round gives one difference, and the result is the median of all differences. Its standard error is under a quarter
of a percent, for a goal of half a percent.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.clusters.steps import Steps

# The first steps of each rank's turn aren't counted, because the rank may have waited for its turn.
FIRST_STEPS = 2
# If no rank makes a step in this time, the program has stopped.
STILL_SECONDS = 0.1
START_SECONDS = 120.0
NOBODY = "nobody"


@dataclass(frozen=True)
class Turn:
    """Turn contains the seconds of one turn's steps.

    These are the median and mean time, and the processor time of the ranks' processes without and with their watchers.
    """

    median: float
    mean: float
    processor: float
    watched: float


@dataclass
class Program:
    """Program is a group of ranks that alternates with other groups."""

    name: str
    steps: Steps
    ranks: int
    turns: list[Turn] = field(default_factory=list)
    #: Processes whose processor time is measured: the ranks and their children, and (`watchers`) the agents and theirs.
    processes: list[int] = field(default_factory=list)
    watchers: list[int] = field(default_factory=list)

    def count(self) -> int:
        """Returns the number of steps that all ranks together have done."""
        self.steps.poll()
        return sum(len(done) for ranks in self.steps.done.values() for done in ranks.values())

    def find_processes(self) -> None:
        group, own, all_of_them = max(self.steps.done), set[int](), set[int]()
        for rank in range(self.ranks):
            process = psutil.Process(self.steps.pids[group, rank])
            # In a pod all other processes are the agent's children.
            agents = [each for each in process.parents() if "agent" in " ".join(each.cmdline())]
            own |= _tree(process)
            all_of_them |= _tree(agents[-1] if agents else process)
        self.processes, self.watchers = sorted(own), sorted(all_of_them - own)


def _tree(process: psutil.Process) -> set[int]:
    return {each.pid for each in (process, *process.children(recursive=True))}


def _processor(processes: Sequence[int]) -> float:
    """Returns the exact processor time of these processes, without those that have ended."""
    # Linux's clock of another process (clock_getcpuclockid(3)). /proc has only hundredths of a second.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in processes if psutil.pid_exists(pid))


class Turns:
    """Turns lets several programs alternate on one machine."""

    def __init__(self, file: Path) -> None:
        self._file, self.programs = file, list[Program]()
        self.give(NOBODY)

    def variables(self, name: str) -> dict[str, str]:
        """Returns the environment variables that a program's ranks need."""
        return {"TURN_FILE": str(self._file), "TURN": name}

    def give(self, name: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(name)
        new.replace(self._file)

    async def start(self, program: Program) -> None:
        """Starts a program, and pauses it when its ranks have done steps for a while."""
        self.give(program.name)
        deadline = time.monotonic() + START_SECONDS
        while not program.steps.is_steady(max(program.steps.done, default=0), program.ranks, 30):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{program.name} doesn't train")
            await asyncio.sleep(0.1)
            program.steps.poll()
        await self._stop(program)
        program.find_processes()
        self.programs.append(program)

    async def warm_up(self, seconds: float) -> None:
        """Runs a round that isn't counted, so that later setup isn't counted as a step's cost."""
        await self.round(seconds)
        for program in self.programs:
            program.turns.clear()

    async def round(self, seconds: float) -> None:
        """Gives each program two turns of this many seconds."""
        for program in (*self.programs, *reversed(self.programs)):
            program.turns.append(await self._turn(program, seconds))

    async def _turn(self, program: Program, seconds: float) -> Turn:
        made, since = program.count(), time.time()
        own, watching = _processor(program.processes), _processor(program.watchers)
        self.give(program.name)
        await asyncio.sleep(seconds)
        await self._stop(program)
        made = program.count() - made
        own, watching = _processor(program.processes) - own, _processor(program.watchers) - watching
        [done] = [
            ranks for ranks in program.steps.done.values() if max(max(each.values()) for each in ranks.values()) > since
        ]
        gaps = []
        for steps in done.values():
            times = sorted(at for at in steps.values() if at > since)[FIRST_STEPS:]
            gaps += [after - before for before, after in itertools.pairwise(times)]
        return Turn(statistics.median(gaps), statistics.mean(gaps), own / made, (own + watching) / made)

    async def _stop(self, program: Program) -> None:
        self.give(NOBODY)
        before = -1
        while before != (before := program.count()):
            await asyncio.sleep(STILL_SECONDS)


COLUMNS = ["", "plain, ms", "this, ms", "difference", "standard error", "middle half of all", "rounds"]
MEASURES = {
    "median": "a step, median",
    "mean": "a step, mean",
    "processor": "a rank's processor time in it",
    "watched": "with its agent's",
}


def rows(program: Program, plain: Program, title: str) -> list[list[object]]:
    """Returns a program's rows: how much slower its steps are than plain DDP's in the same round."""
    found: list[list[object]] = []
    for measure, name in MEASURES.items():
        own, bare = (_by_round([getattr(turn, measure) for turn in each.turns]) for each in (program, plain))
        differences = [ours / theirs - 1 for ours, theirs in zip(own, bare, strict=True)]
        low, middle, high = quartiles(differences)
        found.append(
            [
                f"{title}: {name}",
                f"{statistics.median(bare) * 1e3:.2f}",
                f"{statistics.median(own) * 1e3:.2f}",
                f"{middle:+.2%}",
                f"{error_of_median(differences):.2%}",
                f"{low:+.2%} to {high:+.2%}",
                len(differences),
            ]
        )
    return found


def _by_round(values: Sequence[float]) -> list[float]:
    return [statistics.mean(pair) for pair in zip(values[::2], values[1::2], strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def error_of_median(values: Sequence[float]) -> float:
    """Returns the standard error of the median of values that are normally distributed except for outliers."""
    low, _, high = quartiles(values)
    return math.sqrt(math.pi / 2 / len(values)) * (high - low) / 1.349
