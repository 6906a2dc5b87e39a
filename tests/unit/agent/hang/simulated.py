"""A job's days pass in seconds: simulated ranks, and the agents' real knowledge of them (`Sources`, `Usual`, `Stall`,
`Notices`).

A job is a list of `Phase`s, in each of which every rank does one thing. The agents look every POLL_SECONDS, as real
ones do, but moments at which nothing can happen are skipped. The results of stacks and kernel counters are given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Literal

from tests.signer import environment
from trainmaster_operator.agent.hang.diagnosis import Notices, Stall
from trainmaster_operator.agent.hang.hung_rank import classify_stall
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.progress.sources import Sources
from trainmaster_operator.agent.progress.usual import Usual
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.joining import Stalled
from trainmaster_operator.wire.ranks import WAITS, RankProgress, RankState
from trainmaster_operator.wire.stream import EvidenceLine, StallLine

POLL_SECONDS = 0.25
EVIDENCE_SECONDS = 1.0
"""How long the collection of evidence takes (`vitals.WINDOW_SECONDS`)."""
PRINT_EVERY = 10
"""A script that prints lines does so every so many steps."""
COLLECTIVE, _, NOTHING = WAITS
Script = Literal["sections", "heartbeat", "lines"]


@dataclass(frozen=True)
class Phase:
    """One thing that all ranks do, at whose end they make progress together.

    `worker`: the rank that does it while the others wait for it in a collective; None if all ranks do it. `active`:
    whether a rank that does it computes, reads or writes. `stops_agents`: whether the whole node stands still.
    """

    seconds: float
    section: str = "train"
    worker: int | None = None
    active: bool = True
    steps: int = 1
    stops_agents: bool = False
    evidence: dict[int, RankState] = field(default_factory=dict)
    """Contains the differences in the evidence of some ranks."""


def steps(seconds: float, count: int, chance: random.Random) -> Iterator[Phase]:
    """Yields steps whose durations differ a little, and rarely a lot; several together if an agent sees them so."""
    together = max(1, round(POLL_SECONDS / seconds))
    for _ in range(-(-count // together)):
        slow = 3.0 if chance.random() < 0.001 else 1.0
        yield Phase(seconds * together * slow * chance.lognormvariate(0.0, 0.15), steps=together)


def a_day(step: float, hours: float, chance: random.Random) -> Iterator[Phase]:
    """Yields training with evaluations, saves, recompilations, a slow disk and a paused node."""
    left, number = hours * 3_600, 0
    while left > 0:
        number += 1
        block = [*steps(step, max(int(600 * chance.uniform(0.5, 1.5) / step), 20), chance)]
        if number % 2:
            all_ranks = chance.random() < 0.5
            block.append(Phase(chance.uniform(20, 400), "evaluate", None if all_ranks else 0, steps=0))
        else:
            # While a disk is slow, the process waits in state D, or its bytes trickle.
            seconds = chance.uniform(60, 240) if chance.random() < 0.3 else chance.uniform(2, 30)
            block.append(Phase(seconds, "checkpoint", 0, steps=0))
        if number % 5 == 0:
            block.append(Phase(chance.uniform(15, 120), worker=chance.choice([None, 1])))
        if number % 7 == 0:
            block.append(Phase(chance.uniform(10, 900), active=False, stops_agents=True))
        left -= sum(phase.seconds for phase in block)
        yield from block


HANGS = {
    "a deadlock in own code": RankState(waits=NOTHING, place="train.py:41 in step: `lock.acquire()`"),
    "sleep": RankState(waits=NOTHING, place="train.py:42 in step: `time.sleep(1e9)`"),
    "SIGSTOP": RankState(state="T"),
    "a missing collective": RankState(waits=NOTHING, place="train.py:60 in main: `results = queue.get()`"),
    "a loader that never answers": RankState(waits=NOTHING, place="train.py:44 in step: `batch = next(batches)`"),
    "a blocked disk": RankState(waits=NOTHING, place="train.py:45 in save: `open(path)`"),
    "mismatched collectives": RankState(waits=COLLECTIVE, operation="broadcast", place="train.py:46 in step: `x`"),
}


def hang(kind: str, rank: int) -> Phase:
    """Returns a phase without end in which a rank hangs, and the others wait for it."""
    return Phase(math.inf, worker=rank, active=False, evidence={rank: HANGS[kind]})


class Heartbeats:
    """Stands for the progress files of one rank."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankProgress] = {}
        self.progressed_at: dict[int, float] = {}
        self.first_step_at: dict[int, float] = {}
        self.counted: set[int] = set()
        self.changed = False

    def poll(self, _now: float) -> bool:
        changed, self.changed = self.changed, False
        return changed


class Worker:
    """Holds what one worker's agent knows of its only rank."""

    def __init__(self, rank: int, script: Script, start: float) -> None:
        self.rank, self.script = rank, script
        settings = read_settings({**environment(), "TRAINMASTER_WORKER": str(rank)})
        self.heartbeats, self.usual = Heartbeats(), Usual()
        self.rule = SimpleNamespace(progress=None, bars={})
        self.printed: Any = SimpleNamespace(
            changed=False,
            rules={},
            progressed_at={},
            printed_at={},
            first_step_at={},
            is_asked_for=True,
            is_strict=False,
            given_up=False,
        )
        counters: Any = SimpleNamespace(poll=lambda *_: None, waiting=lambda _: None, moved_at={})
        own = range(rank, rank + 1)
        self.sources = Sources(settings, own, start, self.heartbeats, self.printed, counters, self.usual)  # type: ignore[arg-type]
        self.stall = Stall(1, rank, own)
        self.printed_step = 0

    def show(self, step: int, section: str, now: float) -> None:
        """Report progress as the script does."""
        rank = self.rank
        if self.script == "lines":
            if step // PRINT_EVERY == self.printed_step // PRINT_EVERY:
                return
            self.printed_step = step
            self.printed.rules[rank] = self.rule
            self.rule.progress = RankProgress(step=step)
            self.printed.progressed_at[rank] = self.printed.printed_at[rank] = now
            self.printed.first_step_at.setdefault(rank, now)
            self.printed.changed = True
            return
        shown = section if self.script == "sections" else "train"
        before = self.heartbeats.ranks.get(rank)
        self.heartbeats.ranks[rank] = RankProgress(step=step, section=shown)
        if before is None or (before.step, before.section) != (step, shown):
            self.heartbeats.progressed_at[rank] = now
            self.heartbeats.changed = True
        if step:
            self.heartbeats.first_step_at.setdefault(rank, now)


class Simulation:
    """Runs a job of several workers with one rank each. `notices` and `hung` are what people and ranks get of it."""

    def __init__(self, script: Script, workers: int = 2) -> None:
        self.now = 0.0
        self.workers = [Worker(rank, script, 0.0) for rank in range(workers)]
        self.leader = Notices()
        self.notices: list[tuple[float, StallLine]] = []
        self.hung: list[tuple[float, int]] = []
        self._step = 0
        self._asked_at = math.inf
        self._looked_at = 0.0
        self._patient_until = 0.0

    def run(self, phases: Iterable[Phase], most_seconds: float = math.inf) -> None:
        """Let phases pass; the last one ends after `most_seconds`."""
        for phase in phases:
            begun, end = self.now, self.now + min(phase.seconds, most_seconds)
            if not phase.steps:
                self._show(phase.section)
            if phase.stops_agents:
                self.now = self._looked_at = end
                for worker in self.workers:
                    worker.sources.wake(end)
                continue
            self._pass_silence(phase, begun, end)
            if phase.seconds <= most_seconds:
                self._step += phase.steps
                self._show("train")
                self.now = end
                if end - self._looked_at >= POLL_SECONDS:
                    self._look(phase)

    def _show(self, section: str) -> None:
        for worker in self.workers:
            worker.show(self._step, section, self.now)

    def _pass_silence(self, phase: Phase, begun: float, end: float) -> None:
        """Look during a phase, from the time on at which a limit can be exceeded."""
        self.now = max(begun, self._looked_at + POLL_SECONDS)
        while self.now < end:
            states = self._look(phase)
            known = [state for state in states.values() if state.quiet_seconds is not None]
            left = min((state.notice_seconds - (state.quiet_seconds or 0.0) for state in known), default=60.0)
            # In a long silence, nothing changes within a second.
            often = POLL_SECONDS if self.now - begun < 60 else 1.0
            self.now += max(left - 1.0, often)
        self.now = end

    def _states(self, phase: Phase) -> dict[int, RankState]:
        found = {}
        for worker in self.workers:
            rank = worker.rank
            does_it = phase.worker in (None, rank)
            state = worker.sources.state(rank, self.now)._replace(active=does_it and phase.active)
            if does_it:
                known = phase.evidence.get(rank, RankState(waits=NOTHING, place="train.py:70 in step: `x = y`"))
            else:
                known = RankState(waits=COLLECTIVE, operation="all_reduce", place="train.py:52 in step: `x`")
            found[rank] = state._replace(
                waits=known.waits, state=known.state, place=known.place, operation=known.operation
            )
        return found

    def _look(self, phase: Phase) -> dict[int, RankState]:
        self._looked_at = now = self.now
        moment = Now(now, now)
        for worker in self.workers:
            worker.sources.poll(now)
        states = self._states(phase)
        for worker in self.workers:
            for action in worker.stall.notice([states[worker.rank]], now):
                message = action.message if isinstance(action, SendToLeader) else None
                if not isinstance(message, Stalled):
                    self._inform(self.leader.resumed(worker.rank, moment))
                elif self.leader.stalled(worker.rank, 1, len(self.workers), now) is not None:
                    self._asked_at = now
        if now >= self._asked_at + EVIDENCE_SECONDS:
            self._asked_at = math.inf
            for rank, state in states.items():
                self.leader.diagnosis.add(rank, EvidenceLine(1, rank, {rank: state}, notice=True))
            self._inform(self.leader.conclude((), moment))
        if now >= self._patient_until:
            found = classify_stall(states)
            if found is not None and not found.patience:
                self.hung.append((now, found.rank))
            self._patient_until = now + (1.0 if found is None else found.patience or math.inf)
        return states

    def _inform(self, line: StallLine | None) -> None:
        if line is not None:
            self.notices.append((self.now, line))


@dataclass(frozen=True)
class Seen:
    """How long a hang lasted until people were informed and the ranks restarted, and whether the rank was named."""

    kind: str
    step: float
    seconds: float
    restart: float
    is_right: bool


def see(kind: str, step: float, script: Script, chance: random.Random) -> Seen:
    """Let a rank of a job hang at some time, and return what is seen of it."""
    job, rank = Simulation(script, 4), chance.randrange(4)
    job.run(steps(step, chance.randrange(120, 400), chance))
    begun = job.now
    job.run([replace(hang(kind, rank))], 2_000.0)
    at, line = job.notices[0] if job.notices else (math.inf, StallLine(1))
    restarted = job.hung[0][0] if job.hung else math.inf
    return Seen(kind, step, at - begun, restarted - begun, line.rank == rank and job.hung[0][1] == rank)
