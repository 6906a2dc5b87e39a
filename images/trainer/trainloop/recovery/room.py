"""A state is written to memory only if enough is free, because a container that exceeds its limit is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trainloop.recovery.sealed import PARTIAL

#: Bytes of memory that stay free for everything else.
MARGIN = 32 << 20


@contextmanager
def made(file: Path, size: int) -> Iterator[BinaryIO]:
    """Make a file of `size` bytes, yield it, and then move it to `file`, replacing an existing one.

    Raises OSError if there isn't enough memory.
    """
    if problem := lacking(file.parent, size):
        raise OSError(problem)
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")
    try:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as stream:
            # Allocate everything now, because if memory runs out later, a copy into a mapped file raises SIGBUS.
            os.posix_fallocate(stream.fileno(), 0, size)
            yield stream
        partial.rename(file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def lacking(directory: Path, needed: int) -> str | None:
    """Returns what is lacking, as text, if another `needed` bytes don't fit into `directory`; None if they fit."""
    found = os.statvfs(directory)
    free, where = found.f_bavail * found.f_frsize, f"in {directory}"
    container = container_memory()
    unused = None if container is None else container[0] - container[1]
    for room, place in ((unused, "of the container's memory"), (_of_machine(), "of the machine's memory")):
        if room is not None and room - MARGIN < free:
            free, where = max(0, room - MARGIN), place
    return None if needed <= free else f"{needed:,} bytes are needed and {free:,} are free {where}"


def container_memory(root: Path | None = None) -> tuple[int, int] | None:
    """Returns the container's memory limit and its use without file cache, in bytes; None if there is no limit."""
    root = root or Path(os.environ.get("TRAINMASTER_CGROUP_ROOT") or "/sys/fs/cgroup")
    for limit_file, used_file, folder in (
        ("memory.max", "memory.current", root),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", root / "memory"),
    ):
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        # Without a limit, v1 shows a number slightly below the largest 64-bit number.
        if limit is not None and used is not None and limit < 1 << 62:
            return limit, used - _named(folder / "memory.stat", ("active_file", "inactive_file"))
    return None


def _of_machine() -> int | None:
    kibibytes = _named(Path("/proc/meminfo"), ("MemAvailable:",))
    return kibibytes << 10 if kibibytes else None


def _number(file: Path) -> int | None:
    """Returns the number in one of the kernel's files; None if it contains none, such as `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _named(file: Path, names: tuple[str, ...]) -> int:
    """Returns the sum of the numbers with these names in one of the kernel's files."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines if len(line) > 1 and line[0] in names)
