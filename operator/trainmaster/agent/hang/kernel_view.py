"""This module reads what the kernel shows of a rank's process and its threads: where they wait."""

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
        name, place = (children.read_text(f"/proc/{pid}/task/{thread}/{file}") for file in ("comm", "wchan"))
        lines.append(f"  thread {thread} {name.strip()}: waits in {place or '?'}")
    return "\n".join(lines)
