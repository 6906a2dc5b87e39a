"""This module finds the rank of a stalled job that stopped first, the one that all the others wait for.

Only ranks whose progress is known are watched: of a script that says nothing, nobody knows how long its step takes.
Often it is rank 0 alone that says anything. Then it stands for all of them: when it is over its limit, each of the
others may be the one that it waits for, and what all of them show (collectives, stacks, the kernel's state) decides.
Everything here is pure; `evidence` collects what it works on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Optional

from trainmaster.agent.hang.stacks import threads_of
from trainmaster.agent.settings import Settings
from trainmaster.agent.value import Value
from trainmaster.wire.evidence import RankState
from trainmaster.wire.progress import RankProgress

# Where a rank's main thread stands while it waits for its peers, by the frames that faulthandler or py-spy print.
_WAITS = r"torch/distributed/|_engine_run_backward|torch/cuda/(?:streams|__init__)\.py.*synchronize|in barrier\b"
NEWEST_FRAMES = 6


class Classification(Value):
    """The rank that stopped first and a message about it; or how many seconds more there is reason to wait."""

    rank: int
    message: str
    patience: float = 0.0


class Waiting(Value):
    """A rank waits in a collective, and for so long by what it has answered."""

    has_done_some: bool
    """Whether it has done collectives before."""
    seconds: float
    timeout: float
    """What the script gives the collective, in seconds; 0: nothing of its own."""


def observe_rank(settings: Settings, progress: RankProgress | None, silent_seconds: float) -> RankState:
    """Returns a rank's state by its progress file; None is the progress of a rank that never wrote any."""
    if progress is None:
        return RankState()
    limit_seconds, limit, patient = _limit(settings, progress)
    return RankState(progress.step, progress.section or "", silent_seconds, limit_seconds, limit, patient)


def observe_waiting(settings: Settings, waiting: Waiting) -> RankState:
    """Returns the state of a rank of which only the collective is known that it waits in."""
    limit, name = settings.progress_timeout, "failurePolicy.hang.progressSeconds"
    if not waiting.has_done_some:
        limit, name = settings.first_step_timeout, "failurePolicy.hang.firstStepSeconds"
    if limit and waiting.timeout > limit:
        limit, name = waiting.timeout, "the collective's own timeout"
    return RankState(None, "", waiting.seconds, limit, name, not waiting.has_done_some)


def is_over(state: RankState) -> bool:
    """Returns whether a rank has been silent for longer than it may."""
    return state.silent_seconds is not None and 0 < state.limit_seconds < state.silent_seconds


def is_stopped(state: RankState) -> bool:
    """Returns whether somebody has stopped the rank's process."""
    return state.state in ("T", "t")


def steps_of(state: RankState) -> int:
    """Returns the steps done; -1 for a rank that hasn't written any."""
    return -1 if state.step is None else state.step


def classify_stall(ranks: Mapping[int, RankState]) -> Optional[Classification]:
    """Returns which of all known ranks stopped first; None where no rank is over its limit.

    In order: a process that somebody has stopped; the fewest steps; the fewest collectives entered; one that waits for
    a device; one that isn't itself in a collective; the longest silence. Before all but the first: while a rank is at
    something long, its time for that not over, and has done no more steps than those who wait for it, nobody hangs.
    """
    late = [state for state in ranks.values() if is_over(state)]
    if not late:
        return None
    stopped = [rank for rank, state in ranks.items() if is_stopped(state)]
    if stopped:
        first = max(stopped, key=lambda rank: ranks[rank].silent_seconds or 0.0)
        return Classification(first, f"{_describe(first, ranks[first])}\nrank {first} is stopped by a signal (state T)")
    patience = max(_patience(ranks.values(), min(map(steps_of, late))), default=0.0)
    if patience:
        return Classification(-1, "", patience)
    watched = {rank: state for rank, state in ranks.items() if state.silent_seconds is not None}
    counted = all(state.collective is not None for state in watched.values())
    # Of the others no step is known, so they can only be told from those that have done the fewest.
    others = {rank: state for rank, state in ranks.items() if rank not in watched}
    comparable = {rank: state for rank, state in others.items() if not counted or state.collective is not None}
    suspects = {**watched, **comparable}
    fewest = min(map(steps_of, late))

    def order(rank: int) -> tuple[int, int, bool, bool, bool, float, int]:
        state = suspects[rank]
        return (
            steps_of(state) if rank in watched else fewest,
            (state.collective or 0) if counted else 0,
            state.state != "D",
            state.waits,
            rank in others,
            -(state.silent_seconds or 0.0),
            rank,
        )

    first = min(suspects, key=order)
    if first in watched:
        return Classification(first, _describe(first, watched[first]) + _compare(first, watched, counted))
    reporting = min(watched, key=order)
    said = f"{_describe(reporting, watched[reporting])}; rank {first} says nothing of its own progress"
    return Classification(first, said + _compare(first, suspects, counted))


def waits_in_collective(stacks: str) -> bool:
    """Returns whether the main thread is in a collective, by its newest frames."""
    threads = threads_of(stacks)
    return bool(threads and re.search(_WAITS, "\n".join(threads[0].splitlines()[1 : NEWEST_FRAMES + 1])))


def _limit(settings: Settings, progress: RankProgress) -> tuple[float, str, bool]:
    if progress.section_seconds:
        return progress.section_seconds, "sectionSeconds", True
    if not progress.step:
        return settings.first_step_timeout, "failurePolicy.hang.firstStepSeconds", True
    return settings.progress_timeout, "failurePolicy.hang.progressSeconds", False


def _patience(states: Iterable[RankState], steps: int) -> Iterable[float]:
    """Yields the seconds that are left to each rank at something long that has done no more than `steps`."""
    for state in states:
        silent = state.silent_seconds
        if state.patient and silent is not None and silent <= state.limit_seconds and steps_of(state) <= steps:
            # Never 0, which would say that nobody is at something long.
            yield max(state.limit_seconds - silent, 0.001)


def _describe(rank: int, state: RankState) -> str:
    where = f" at step {state.step}" if state.step is not None else " at its first step" if state.patient else ""
    section = f", section {state.section}" if state.section else ""
    silent = "" if state.silent_seconds is None else f" for {state.silent_seconds:.0f} s"
    limit = f"; the limit is {state.limit} {state.limit_seconds:g} s" if state.limit_seconds else ""
    return f"rank {rank} made no progress{silent}{where}{section}{limit}"


def _compare(first: int, ranks: Mapping[int, RankState], counted: bool) -> str:
    """Returns why it was this rank and not another."""
    own = ranks[first]
    others = [state for rank, state in ranks.items() if rank != first]
    if not others:
        return ""
    if own.step is not None and all(steps_of(state) > own.step for state in others):
        return f"; all other ranks have done step {min(map(steps_of, others))}"
    if counted and all((state.collective or 0) > (own.collective or 0) for state in others):
        entered = min(state.collective or 0 for state in others)
        return f"; it never entered collective {entered}, in which all other ranks wait"
    if not own.waits and all(state.waits for state in others):
        return "; all other ranks wait in a collective"
    return ""
