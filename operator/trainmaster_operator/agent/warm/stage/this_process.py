"""This module reads the kernel's data about this process in /proc, and forks it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

_FORKED_WITH_CARE = frozenset({"jemalloc_bg_thd"})
"""The kernel's names of threads that a fork may lose. jemalloc's own fork handler makes the child work without
jemalloc's thread (`background_thread_postfork_child`). Importing pyarrow starts this thread, and pandas and
scikit-learn import pyarrow.
"""


def fork() -> int:
    """Fork without Python's warning about other threads. The stage itself checks which threads matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def descriptors() -> set[int]:
    found = set(map(int, os.listdir("/proc/self/fd")))
    return {fd for fd in found if target(fd)}


def target(fd: int) -> str:
    """Returns a descriptor's target; empty if it isn't open."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def thread_ids() -> set[int]:
    """Returns the kernel's ids of this process's threads."""
    return set(map(int, os.listdir("/proc/self/task")))


def threads() -> dict[int, str]:
    """Returns the names of the threads that a fork would lose."""
    threading = sys.modules.get("threading")
    known = {} if threading is None else {each.native_id: each.name for each in threading.enumerate()}
    found = {}
    for number in thread_ids() - {os.getpid()}:
        name = _line(f"/proc/self/task/{number}/comm")
        if name and name not in _FORKED_WITH_CARE:
            found[number] = known.get(number, name)
    return found


def has_children() -> bool:
    """Returns whether this process has children that it hasn't waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def oom_score() -> str:
    """Returns this process's adjustment of its OOM score (proc(5))."""
    return _line("/proc/self/oom_score_adj")


def set_oom_score(text: str) -> None:
    """Set the adjustment of the OOM score. This has no effect in a sandbox that lacks the file."""
    if not text:
        return
    with contextlib.suppress(OSError):  # if it can't be set, it needn't be restored either
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(text)


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
