"""Hangs: ranks that live but make no progress; and what can be seen of them from outside before they are ended.

Only ranks that have written progress are watched: of a script that never does, nobody knows how long its step takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from trainmaster.agent import children
from trainmaster.agent.progress import Heartbeats
from trainmaster.agent.settings import Settings

STACKS_SECONDS = 1.0


class Stall(NamedTuple):
    """The rank that made no progress for the longest time, and the sentence that says so."""

    rank: int
    sentence: str


def find_stall(settings: Settings, heartbeats: Heartbeats, started_at: float, now: float) -> Optional[Stall]:
    """The first rank that is over its limit; times are monotonic seconds.

    The limit is the section's own where it asks for one, the first step's until a first step is done, else the step's.
    """
    worst: tuple[float, Stall] | None = None
    for rank, progress in heartbeats.ranks.items():
        limit, name = _limit(settings, progress)
        silent = now - heartbeats.progressed_at.get(rank, started_at)
        if limit <= 0 or silent <= limit:
            continue
        where = f"step {progress['step']}" if "step" in progress else "its first step"
        section = f", section {progress['section']}" if "section" in progress else ""
        sentence = (
            f"rank {rank} made no progress for {silent:.0f} s at {where}{section}; the limit is {name} {limit:g} s"
        )
        if worst is None or silent > worst[0]:
            worst = (silent, Stall(int(rank), sentence))
    return None if worst is None else worst[1]


def _limit(settings: Settings, progress: Mapping[str, Any]) -> tuple[float, str]:
    if progress.get("sectionSeconds"):
        return float(progress["sectionSeconds"]), "sectionSeconds"
    if not progress.get("step"):
        return settings.first_step_timeout, "failurePolicy.hang.firstStepSeconds"
    return settings.progress_timeout, "failurePolicy.hang.progressSeconds"


def look_at(pid: int) -> str:
    """What the kernel says of a process and its threads, without its help (proc(5))."""
    status = children.status_of(pid)
    lines = [f"pid {pid} {status.get('Name', '')}: {status.get('State', 'gone')}"]
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:32]
    except OSError:
        threads = []
    for thread in threads:
        name = _read(f"/proc/{pid}/task/{thread}/comm").strip()
        lines.append(f"  thread {thread} {name}: waits in {_read(f'/proc/{pid}/task/{thread}/wchan') or '?'}")
    return "\n".join(lines)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped the process (SIGSTOP, a debugger)."""
    return children.status_of(pid).get("State", "")[:1] in ("T", "t")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""
