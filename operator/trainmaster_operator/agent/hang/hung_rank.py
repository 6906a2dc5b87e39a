"""In a stalled job, this module finds the rank that stopped first, for which all the others wait.

It only watches ranks whose progress is known, because otherwise the duration of their steps is unknown. Often only rank
0 reports progress; then it represents all ranks. If rank 0 is over its limit, it may itself be waiting for any other
rank, so the evidence of all ranks (collectives, stacks, the kernel's state) decides. Everything here is pure;
`evidence` collects the data.

The same classification serves two limits: the limit after which the ranks are restarted, and the shorter learnt one
(`progress/usual`) after which people are informed. `as_notice` returns a rank's state in view of the second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from trainmaster_operator.agent.process.stacks import threads_of
from trainmaster_operator.agent.progress.sources import FIRST_STEP_LIMIT
from trainmaster_operator.agent.progress.usual import ACTIVE_SECONDS, LEARNT_LIMIT
from trainmaster_operator.wire.ranks import RankState

# While a rank waits for its peers, its main thread has these frames, as printed by faulthandler or py-spy.
_COLLECTIVES = r"torch/distributed/|_engine_run_backward|in barrier\b"
# While a rank waits for its device, its main thread has these frames. Most functions that wait for a device are written
# in C and have no frame (Tensor.item). So the newest frame's source line counts too, but only if the rank uses a
# device.
_SYNCHRONIZES = r"torch/(?:cuda|xpu|npu|accelerator)/[^\n]*\bsynchronize\b|\bsynchronize \(torch/"
_READS_DEVICE = (
    r"\.(?:item|tolist|cpu|synchronize|nonzero)\(|\.to\([^)]*cpu|\b(?:float|int|bool)\("
    r"|torch/_tensor_str\.py|torch/_tensor\.py[^\n]*\b__format__|\b__format__ \(torch/"
)
NEWEST_FRAMES = 6


ACTIVE_AGAIN_SECONDS = 10.0
"""The shortest time until an active rank is judged again."""
MAX_GROUPS, MAX_LISTED = 4, 8
"""The most groups of ranks, and of ranks in a group, that a message lists."""


class Classification(NamedTuple):
    """Classification contains the rank that stopped first and messages about that rank, or the seconds to wait."""

    rank: int
    message: str
    """Where the rank and the others are, how long it has been silent, and its limit."""
    patience: float = 0.0
    sentence: str = ""
    """The same without the silence and the limit, which change while people read it."""


def is_over(state: RankState) -> bool:
    return state.silent_seconds is not None and 0 < state.limit_seconds < state.silent_seconds


def as_notice(state: RankState) -> RankState:
    """Returns a rank's state with the learnt limit for informing people in place of the limit for a restart.

    Each rank is judged by what its own worker has learnt, so a rank within its limit makes the others wait for it.
    """
    return state._replace(
        silent_seconds=state.quiet_seconds, limit_seconds=state.notice_seconds, limit="", patient=True
    )


def is_stopped(state: RankState) -> bool:
    """Returns whether the rank's process was stopped by a signal."""
    return state.state in ("T", "t")


def steps_of(state: RankState) -> int:
    """Returns the rank's finished steps; -1 if it hasn't reported any."""
    return -1 if state.step is None else state.step


def _most_steps(state: RankState) -> int:
    """Returns the most steps that a rank may have finished."""
    return steps_of(state) + state.unreported


def classify_stall(ranks: Mapping[int, RankState]) -> Optional[Classification]:
    """Returns which of all known ranks stopped first; None if no rank is over its limit.

    The criteria, in order: a stopped process; the fewest steps; the fewest collectives entered; a process that waits in
    the kernel for a device; a rank that waits for no other (`_innocence`); if all wait in collectives, the one that the
    fewest ranks are in; the longest silence. There are two exceptions after the first criterion. A rank in a long
    operation may still be within its limit, and have done at most as many steps as each rank that is over its limit.
    Or the named rank is active, and has been silent for less than ACTIVE_SECONDS. Then no rank counts as hung. The
    second exception doesn't apply to limits that the spec or the script sets.

    A rank may have done more steps than it reports, so the next criterion compares all ranks that may have done the
    fewest.
    """
    late = [state for state in ranks.values() if is_over(state)]
    if not late:
        return None
    stopped = [rank for rank, state in ranks.items() if is_stopped(state)]
    if stopped:
        return _named(max(stopped, key=lambda rank: ranks[rank].silent_seconds or 0.0), ranks)
    patient: Iterable[RankState] = ranks.values()
    if any(state.limit == LEARNT_LIMIT and not state.step for state in late):
        # An earlier attempt bounds the time to the first step, also of ranks in new pods, which have learnt nothing.
        patient = [state for state in patient if state.limit != FIRST_STEP_LIMIT]
    patience = max(_patience(patient, min(map(_most_steps, late))), default=0.0)
    if patience:
        return Classification(-1, "", patience)
    watched = {rank: state for rank, state in ranks.items() if state.silent_seconds is not None}
    fewest = min(map(_most_steps, watched.values()))
    behind = {rank: state for rank, state in watched.items() if steps_of(state) <= fewest}
    counted = all(state.collective is not None for state in behind.values())
    # The steps of unwatched ranks are unknown, so these are compared with the watched ranks that have done the fewest.
    others = {rank: state for rank, state in ranks.items() if rank not in watched}
    if not any(map(is_over, behind.values())):
        others = {}
    comparable = {rank: state for rank, state in others.items() if not counted or state.collective is not None}
    suspects = {**behind, **comparable}
    crowd = Counter(state.operation for state in suspects.values())

    def order(rank: int) -> tuple[int, bool, int, int, bool, float, int]:
        state = suspects[rank]
        return (
            (state.collective or 0) if counted else 0,
            state.state != "D",
            _innocence(state),
            crowd[state.operation] if _waits_for_others(state) and state.operation else 0,
            rank in others,
            -(state.silent_seconds or 0.0),
            rank,
        )

    first = min(suspects, key=order)
    silent = max(state.silent_seconds or 0.0 for state in late)
    if ranks[first].active and silent < ACTIVE_SECONDS and all(state.limit in ("", LEARNT_LIMIT) for state in late):
        return Classification(-1, "", max(silent / 2, ACTIVE_AGAIN_SECONDS))
    if first in watched:
        return _named(first, ranks, _compare(first, watched, counted))
    reporting = min(behind, key=order)
    said = f"{_describe(reporting, watched[reporting])}; rank {first} says nothing of its own progress"
    return _named(first, ranks, _compare(first, suspects, counted), said)


def waits_for(stacks: str, line: str, *, has_device: bool, alone: bool) -> str:
    """Returns what the main thread waits for, one of WAITS, judged by its newest frames; empty without a stack.

    `line`: the newest frame's source line. `alone`: the rank is the only one of its job, so if it seems to wait in a
    collective, it waits for its device.
    """
    threads = threads_of(stacks)
    if not threads:
        return ""
    frames = "\n".join(threads[0].splitlines()[1 : NEWEST_FRAMES + 1])
    # The `wait` of an asynchronous collective is written in C, and has no frame.
    in_collective = re.search(_COLLECTIVES, frames) is not None or re.search(r"\.wait\(", line) is not None
    if in_collective and not alone:
        return "collective"
    reads = has_device and (in_collective or re.search(_READS_DEVICE, f"{line}\n{frames}"))
    return "device" if reads or re.search(_SYNCHRONIZES, frames) else "nothing"


def _waits_for_others(state: RankState) -> bool:
    # In `loss.item()` a rank waits for its own unfinished collective.
    return state.waits == "collective" or state.pending


def _innocence(state: RankState) -> int:
    """Returns how certain it is that a rank waits for others, from 0 to 3."""
    # A rank that is known to do something else is a stronger suspect than a rank without stacks.
    return 3 if _waits_for_others(state) else {"": 2, "device": 1}.get(state.waits, 0)


def _patience(states: Iterable[RankState], steps: int) -> Iterable[float]:
    """Yields the remaining seconds of each rank that is in a long operation and has done at most `steps`."""
    for state in states:
        silent = state.silent_seconds
        if state.patient and silent is not None and silent <= state.limit_seconds and steps_of(state) <= steps:
            # Never 0, which would mean that no rank is in a long operation.
            yield max(state.limit_seconds - silent, 0.001)


def _named(first: int, ranks: Mapping[int, RankState], compared: str = "", silence: str = "") -> Classification:
    """Returns the classification that names a rank.

    `compared`: in what it differs from the others. `silence`: for how long it, or the ranks that wait for it, have made
    no progress; by default its own.
    """
    own = ranks[first]
    at = f" at {own.place}" if own.place else ""
    others = compared + _whereabouts(first, ranks)
    if is_stopped(own):
        head = f"rank {first} is stopped by a signal (state T){at}"
    elif at and _waits_for_others(own):
        head = f"rank {first} waits in {own.operation or 'a collective'}{at}"
    else:
        head = f"rank {first} is{at}" if at else ""
    if own.waits == "device":
        others = others if head else f"; it waits for its device{others}"
        head = head and f"{head} and waits for its device"
    if not head:
        brief = f"{_describe(first, own._replace(silent_seconds=None, limit_seconds=0.0))}{others}"
        return Classification(first, (silence or _describe(first, own)) + others, 0.0, brief)
    silence = silence or _describe(first, own).replace(f"rank {first}", "it", 1)
    return Classification(first, f"{head}{others}; {silence}", 0.0, head + others)


def _describe(rank: int, state: RankState) -> str:
    where = f" at step {state.step}" if state.step is not None else " at its first step" if state.patient else ""
    section = f", section {state.section}" if state.section else ""
    silent = "" if state.silent_seconds is None else f" for {state.silent_seconds:.0f} s"
    limit = f"; the limit is {state.limit} {state.limit_seconds:g} s" if state.limit_seconds else ""
    return f"rank {rank} made no progress{silent}{where}{section}{limit}"


def _compare(first: int, ranks: Mapping[int, RankState], counted: bool) -> str:
    own = ranks[first]
    others = [state for rank, state in ranks.items() if rank != first]
    if others and own.step is not None and all(steps_of(state) > _most_steps(own) for state in others):
        return f"; all other ranks have done step {min(map(steps_of, others))}"
    if others and counted and all((state.collective or 0) > (own.collective or 0) for state in others):
        entered = min(state.collective or 0 for state in others)
        return f"; it never entered collective {entered}, in which all other ranks wait"
    return ""


def _whereabouts(first: int, ranks: Mapping[int, RankState]) -> str:
    """Returns where the other ranks are, as far as that is known, and whether their collectives match."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(ranks.keys() - {first}):
        state, line = ranks[rank], ranks[rank].place.partition(" in ")[0]
        if _waits_for_others(state):
            key = "wait", f"in {state.operation or 'a collective'}{f' ({line})' if line else ''}"
        elif line:
            key = "are", f"at {line}"
        else:
            continue
        groups.setdefault(key, []).append(rank)
    texts = []
    for (verb, where), found in sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_GROUPS]:
        if len(found) == 1:
            texts.append(f"rank {found[0]} {'waits' if verb == 'wait' else 'is'} {where}")
        elif len(found) == len(ranks) - 1:
            texts.append(f"all other ranks {verb} {where}")
        else:
            more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
            texts.append(f"ranks {', '.join(map(str, found[:MAX_LISTED]))}{more} {verb} {where}")
    operations = {state.operation for state in ranks.values() if _waits_for_others(state) and state.operation}
    unmatched = _waits_for_others(ranks[first]) and len(operations) > 1
    return "".join(f"; {text}" for text in texts) + (" (these collectives don't match)" if unmatched else "")
