"""What the kernel says of this process, by /proc."""

from __future__ import annotations

import os


def descriptors() -> set[int]:
    """Returns the descriptors that are open."""
    found = set(map(int, os.listdir("/proc/self/fd")))
    return {fd for fd in found if target(fd)}


def target(fd: int) -> str:
    """Returns what a descriptor is of; empty: it isn't open."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def threads() -> int:
    """Returns how many threads there are."""
    return len(os.listdir("/proc/self/task"))


def oom_score() -> str:
    """Returns what is added to this process's chance to be taken first where memory is short (proc(5))."""
    try:
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def set_oom_score(text: str) -> None:
    """Set it; without effect in a sandbox that lacks it."""
    if not text:
        return
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        # Then there is nothing to set back either.
        return
