"""This module reads the kernel's counters of this container, and its view of a process."""

from __future__ import annotations

import os
from typing import Optional

from trainmaster_operator.agent.process import children

_V1_LIMIT = "memory.limit_in_bytes"
_V1_NO_LIMIT = 1 << 62
"""If there is no limit, v1 shows a number slightly below the largest 64-bit number."""


def oom_kill_count(cgroup_root: str) -> int:
    """Returns the number of out-of-memory kills in this container's cgroup; 0 if it can't be read.

    cgroup v2: `memory.events` (Documentation/admin-guide/cgroup-v2.rst); v1: `memory.oom_control`.
    """
    own = _own_cgroups()
    for path in (
        os.path.join(cgroup_root, own.get("", "").lstrip("/"), "memory.events"),
        os.path.join(cgroup_root, "memory.events"),
        os.path.join(cgroup_root, "memory", own.get("memory", "").lstrip("/"), "memory.oom_control"),
        os.path.join(cgroup_root, "memory", "memory.oom_control"),
    ):
        for line in children.read_text(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return 0


def free_memory(cgroup_root: str) -> Optional[int]:
    """Returns the bytes that this container may still use, including reclaimable page cache; None: no limit.

    cgroup v2: `memory.max`, `memory.current` and `memory.stat`; v1: `memory.limit_in_bytes` and so on.
    """
    own = _own_cgroups()
    v1 = os.path.join(cgroup_root, "memory")
    for folder, limit, used, cache in (
        (os.path.join(cgroup_root, own.get("", "").lstrip("/")), "memory.max", "memory.current", "inactive_file"),
        (cgroup_root, "memory.max", "memory.current", "inactive_file"),
        (
            os.path.join(v1, own.get("memory", "").lstrip("/")),
            _V1_LIMIT,
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
        (v1, _V1_LIMIT, "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = (_first_line(os.path.join(folder, name)) for name in (limit, used))
        if not most.isdigit() or not now.isdigit() or int(most) >= _V1_NO_LIMIT:
            continue
        lines = (line.split() for line in children.read_text(os.path.join(folder, "memory.stat")).splitlines())
        droppable = sum(int(line[1]) for line in lines if len(line) == 2 and line[0] == cache and line[1].isdigit())
        return max(0, int(most) - int(now) + droppable)
    return None


def _first_line(path: str) -> str:
    return children.read_text(path).partition("\n")[0].strip()


def _own_cgroups() -> dict[str, str]:
    """Returns this process's cgroup by controller ("" for the unified one), from /proc/self/cgroup (cgroups(7))."""
    lines = (line.split(":", 2) for line in children.read_text("/proc/self/cgroup").splitlines())
    return {controller: parts[2] for parts in lines if len(parts) == 3 for controller in parts[1].split(",")}


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
    """Returns the kernel's description of a process and its threads, without its help (proc(5))."""
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
    """Returns the kernel function in which a thread waits, else the thread's state.

    The kernel shows 0 if the thread isn't waiting, or without permission (fs/proc/base.c, `proc_pid_wchan`).
    """
    if place not in ("", "0"):
        return f"waits in {place}"
    state = children.status_of(thread).get("State", "gone")
    return "runs" if state.startswith("R") else state
