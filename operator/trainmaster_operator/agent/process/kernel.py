"""This module reads the kernel's counters of this container, and its view of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Optional

from trainmaster_operator.agent.process import children

_V1_NO_LIMIT = 1 << 62
"""A v1 limit above this means that there is no limit, because v1 then shows almost the largest 64-bit number."""
# These are the device files of NVIDIA, AMD, Intel, Ascend and others (Linux, Documentation/accel).
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci", "/dev/accel/")


def oom_kill_count(cgroup_root: str) -> int:
    """Returns the number of out-of-memory kills in this container's cgroup; 0 if it can't be read (cgroup-v2.rst)."""
    for folder, first_version in _folders(cgroup_root):
        counts = _numbers(os.path.join(folder, "memory.oom_control" if first_version else "memory.events"))
        if "oom_kill" in counts:
            return counts["oom_kill"]
    return 0


def free_memory(cgroup_root: str) -> Optional[int]:
    """Returns how many bytes this container may still use, counting reclaimable page cache as free; None: no limit."""
    used, most = used_memory(cgroup_root)
    return None if used is None or most is None else max(0, most - used)


def used_memory(cgroup_root: str) -> tuple[Optional[int], Optional[int]]:
    """Returns the bytes that this container uses, without reclaimable page cache, and its limit; None if unknown."""
    found: tuple[Optional[int], Optional[int]] = None, None
    for folder, first_version in _folders(cgroup_root):
        files = ("limit_in_bytes", "usage_in_bytes") if first_version else ("max", "current")
        most, now = (children.read_text(os.path.join(folder, f"memory.{name}")).strip() for name in files)
        if now.isdigit():
            cache = _numbers(os.path.join(folder, "memory.stat"))
            used = max(0, int(now) - cache.get("total_inactive_file" if first_version else "inactive_file", 0))
            if most.isdigit() and int(most) < _V1_NO_LIMIT:
                return used, int(most)
            found = (used, None) if found[0] is None else found
    return found


def used_cpu(cgroup_root: str) -> tuple[Optional[float], Optional[float]]:
    """Returns the processor time that this container has used (seconds) and its limit (cores); None if unknown."""
    for folder, first_version in _folders(cgroup_root, "cpuacct"):
        if first_version:
            used, scale = children.read_text(os.path.join(folder, "cpuacct.usage")).strip(), 1e9
        else:
            used, scale = str(_numbers(os.path.join(folder, "cpu.stat")).get("usage_usec", "")), 1e6
        if used.isdigit():
            return int(used) / scale, _cpu_limit(cgroup_root)
    return None, None


def _cpu_limit(cgroup_root: str) -> Optional[float]:
    for folder, first_version in _folders(cgroup_root, "cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if first_version else ("cpu.max",)
        parts = " ".join(children.read_text(os.path.join(folder, name)) for name in files).split()
        if len(parts) == 2 and all(map(str.isdigit, parts)) and int(parts[1]):
            return int(parts[0]) / int(parts[1])
    return None


def _folders(cgroup_root: str, controller_of_v1: str = "memory") -> Iterator[tuple[str, bool]]:
    """Yields the folders of this process's cgroup and of the root cgroup, and whether each is v1 (cgroups(7))."""
    lines = (line.split(":", 2) for line in children.read_text("/proc/self/cgroup").splitlines())
    own = {controller: parts[2] for parts in lines if len(parts) == 3 for controller in parts[1].split(",")}
    for controller, root in (("", cgroup_root), (controller_of_v1, os.path.join(cgroup_root, controller_of_v1))):
        yield os.path.join(root, own.get(controller, "").lstrip("/")), bool(controller)
        yield root, bool(controller)


def _numbers(path: str) -> dict[str, int]:
    """Returns the numbers in one of the kernel's files, by name."""
    pairs = (line.split() for line in children.read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def has_device(pid: int) -> bool:
    """Returns whether a process has an accelerator open."""
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{number}").startswith(_DEVICES) for number in os.listdir(folder))
    except OSError:
        return False


def describe_process(pid: int) -> str:
    """Returns the kernel's description of a process and its threads (proc(5)). The process needn't cooperate."""
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

    The kernel shows 0 if the thread isn't waiting, or if the agent may not see it (fs/proc/base.c, `proc_pid_wchan`).
    """
    if place not in ("", "0"):
        return f"waits in {place}"
    state = children.status_of(thread).get("State", "gone")
    return "runs" if state.startswith("R") else state
