"""This module reads what the kernel shows of a rank's process and its threads: where they wait, what they have open."""

from __future__ import annotations

import os

from trainmaster_operator.agent.process import children

# NVIDIA, AMD, Intel, Ascend and others (Linux, Documentation/accel).
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci", "/dev/accel/")


def has_device(pid: int) -> bool:
    """Returns whether a process has an accelerator open."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{number}").startswith(_DEVICES) for number in os.listdir(folder))
    except OSError:
        return False


def describe_process(pid: int) -> str:
    """Returns what the kernel shows of a process and its threads, without its help (proc(5))."""
    status = children.status_of(pid)
    lines = [f"pid {pid} {status.get('Name', '')}: {status.get('State', 'gone')}"]
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:32]
    except OSError:
        threads = []
    for thread in threads:
        folder = f"/proc/{pid}/task/{thread}"
        name = children.read_text(f"{folder}/comm").strip()
        lines.append(f"  thread {thread} {name}: {_at(children.read_text(f'{folder}/wchan'), int(thread))}")
    return "\n".join(lines)


def _at(place: str, thread: int) -> str:
    """Returns where a thread waits. The kernel says 0 where it doesn't, and where it won't say (fs/proc/base.c,
    `proc_pid_wchan`): then the thread's state has to do."""
    if place not in ("", "0"):
        return f"waits in {place}"
    state = children.status_of(thread).get("State", "gone")
    return "runs" if state.startswith("R") else state
