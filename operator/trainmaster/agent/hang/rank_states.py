"""Hangs: ranks that live but make no progress, and which of them all the others wait for.

A rank that is over its limit makes its agent ask all workers of the job (`evidence`, `diagnosis`); `judge`
then names one rank of all, or finds that there is a good reason to wait. Only ranks that have written progress are
watched: of a script that never does, nobody knows how long its step takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from trainmaster.agent.hang.stacks import threads_of
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.settings import Settings
from trainmaster.wire.states import SECTIONS
from trainmaster.wire.values import text, whole

# Where a rank's main thread stands while it waits for its peers, by the frames that faulthandler or py-spy print.
_WAITS = re.compile(
    r"torch/distributed/|_engine_run_backward|torch/cuda/(?:streams|__init__)\.py.*synchronize|in barrier\b"
)
MAX_FRAMES = 6


class Standing(NamedTuple):
    """How one rank stands; times in seconds."""

    rank: int
    step: Optional[int] = None
    section: str = ""
    silent: Optional[float] = None
    """Since its last progress; None of a rank that never wrote any."""
    limit: float = 0.0
    """How long it may be silent where it is; 0: for ever."""
    setting: str = ""
    """Where the limit comes from."""
    patient: bool = False
    """Whether that limit is for something longer than a step: the first step, or what a section asks for."""
    state: str = ""
    """The kernel's letter for its process: T is stopped, D waits for a device, X is gone."""
    collective: Optional[int] = None
    """The last collective that it has entered, by torch's flight recorder."""
    waits: bool = False
    """Whether its main thread is in a collective, by its stack."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON object of docs/protocol.md, without what is unknown."""
        wire = {
            "step": self.step,
            "section": self.section or None,
            "silentSeconds": None if self.silent is None else round(self.silent, 3),
            "limitSeconds": self.limit or None,
            "limit": self.setting or None,
            "patient": self.patient or None,
            "state": self.state or None,
            "collective": self.collective,
            "waits": self.waits or None,
        }
        return {name: value for name, value in wire.items() if value is not None}


class Verdict(NamedTuple):
    """The rank that stopped first and a sentence about it; or how many seconds more there is reason to wait."""

    rank: int
    sentence: str
    patience: float = 0.0


def standings(
    settings: Settings, heartbeats: Heartbeats, ranks: range, started_at: float, now: float
) -> list[Standing]:
    """How this worker's ranks stand by their progress files; times are monotonic seconds."""
    found = []
    for rank in ranks:
        progress = heartbeats.ranks.get(str(rank))
        if progress is None:
            found.append(Standing(rank))
            continue
        limit, setting, patient = _limit(settings, progress)
        silent = now - heartbeats.progressed_at.get(str(rank), started_at)
        found.append(Standing(rank, progress.get("step"), progress.get("section", ""), silent, limit, setting, patient))
    return found


def is_over(standing: Standing) -> bool:
    """Whether a rank has been silent for longer than it may."""
    return standing.silent is not None and 0 < standing.limit < standing.silent


def is_stopped(standing: Standing) -> bool:
    """Whether somebody has stopped its process."""
    return standing.state in ("T", "t")


def steps_of(standing: Standing) -> int:
    """Steps done; less than none of a rank that hasn't written any progress."""
    return -1 if standing.step is None else standing.step


def judge(ranks: Sequence[Standing]) -> Verdict | None:
    """Which rank stopped first, of all that are known; None where no rank is over its limit.

    In order: a process that somebody has stopped; the fewest steps; the fewest collectives entered; one that waits for
    a device; one that isn't itself in a collective; the longest silence. Before all but the first: while a rank is at
    something long, its time for that not over, and has done no more steps than those who wait for it, nobody hangs.
    """
    late = [standing for standing in ranks if is_over(standing)]
    if not late:
        return None
    stopped = [standing for standing in ranks if is_stopped(standing)]
    if stopped:
        first = max(stopped, key=lambda standing: standing.silent or 0.0)
        return Verdict(first.rank, f"{_describe(first)}\nrank {first.rank} is stopped by a signal (state T)")
    steps = min(steps_of(standing) for standing in late)
    busy = [
        standing.limit - standing.silent
        for standing in ranks
        if standing.patient
        and standing.silent is not None
        and standing.silent <= standing.limit
        and steps_of(standing) <= steps
    ]
    if busy:
        return Verdict(-1, "", patience=max(busy))
    watched = [standing for standing in ranks if standing.silent is not None]
    counted = all(standing.collective is not None for standing in watched)
    first = min(
        watched,
        key=lambda standing: (
            steps_of(standing),
            (standing.collective or 0) if counted else 0,
            standing.state != "D",
            standing.waits,
            -(standing.silent or 0.0),
            standing.rank,
        ),
    )
    return Verdict(first.rank, _describe(first) + _compare(first, watched, counted))


def standing_from_wire(rank: int, data: Mapping[str, Any]) -> Standing:
    """What a member says of one of its ranks, bounded."""
    section = data.get("section")
    return Standing(
        rank,
        whole(data.get("step")),
        section if section in SECTIONS else "",
        _seconds(data.get("silentSeconds")),
        _seconds(data.get("limitSeconds")) or 0.0,
        text(data.get("limit"), 64),
        data.get("patient") is True,
        text(data.get("state"), 1),
        whole(data.get("collective")),
        data.get("waits") is True,
    )


def waits_in_collective(stacks: str) -> bool:
    """Whether the main thread stands in a collective, by its newest frames."""
    threads = threads_of(stacks)
    return bool(threads and _WAITS.search("\n".join(threads[0].splitlines()[1 : MAX_FRAMES + 1])))


def _limit(settings: Settings, progress: Mapping[str, Any]) -> tuple[float, str, bool]:
    if progress.get("sectionSeconds"):
        return float(progress["sectionSeconds"]), "sectionSeconds", True
    if not progress.get("step"):
        return settings.first_step_timeout, "failurePolicy.hang.firstStepSeconds", True
    return settings.progress_timeout, "failurePolicy.hang.progressSeconds", False


def _describe(standing: Standing) -> str:
    where = f"step {standing.step}" if standing.step is not None else "its first step"
    section = f", section {standing.section}" if standing.section else ""
    silent = "" if standing.silent is None else f" for {standing.silent:.0f} s"
    limit = f"; the limit is {standing.setting} {standing.limit:g} s" if standing.limit else ""
    return f"rank {standing.rank} made no progress{silent} at {where}{section}{limit}"


def _compare(first: Standing, ranks: Sequence[Standing], counted: bool) -> str:
    """Why it was this one and not another."""
    others = [standing for standing in ranks if standing.rank != first.rank]
    if not others:
        return ""
    if all(steps_of(standing) > steps_of(first) for standing in others):
        return f"; all other ranks have done step {min(steps_of(standing) for standing in others)}"
    if counted and all((standing.collective or 0) > (first.collective or 0) for standing in others):
        entered = min(standing.collective or 0 for standing in others)
        return f"; it never entered collective {entered}, in which all other ranks wait"
    if not first.waits and all(standing.waits for standing in others):
        return "; all other ranks wait in a collective"
    return ""


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        return None
    return float(value)
