"""This module reads what the kernel shows of a rank's process: its state, its threads, and where they wait."""

from __future__ import annotations

import os

from trainmaster.agent.process import children


def describe_process(pid: int) -> str:
    """Returns what the kernel shows of a process and its threads, without its help (proc(5))."""
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


def process_state(pid: int) -> str:
    """Returns the kernel's letter for a process: R, S, D, T (stopped), t (traced), Z; X where it is gone."""
    return children.status_of(pid).get("State", "X")[:1]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""
