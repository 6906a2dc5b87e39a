"""The kernel's counters of this container are read here."""

from __future__ import annotations

import os


def oom_kill_count(cgroup_root: str) -> int:
    """Returns how often the kernel has killed for memory in this container's cgroup; 0 where it can't be read.

    cgroup v2: `memory.events` (Documentation/admin-guide/cgroup-v2.rst); v1: `memory.oom_control`.
    """
    own = _own_cgroups()
    for path in (
        os.path.join(cgroup_root, own.get("", "").lstrip("/"), "memory.events"),
        os.path.join(cgroup_root, "memory.events"),
        os.path.join(cgroup_root, "memory", own.get("memory", "").lstrip("/"), "memory.oom_control"),
        os.path.join(cgroup_root, "memory", "memory.oom_control"),
    ):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill" and value.strip().isdigit():
                        return int(value)
        except OSError:
            continue
    return 0


def _own_cgroups() -> dict[str, str]:
    """Returns this process's cgroup by controller ("" for the unified one), from /proc/self/cgroup (cgroups(7))."""
    own: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                for controller in controllers.split(","):
                    own[controller] = path
    except (OSError, ValueError):
        return own
    return own
