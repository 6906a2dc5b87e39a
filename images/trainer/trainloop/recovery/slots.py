"""A rank's own small state, such as its random generators', is copied into the pod's memory at the end of every step.

It lies in a file that the rank has mapped, so a step costs a copy and no call of the kernel, and what was copied
outlives a rank that is killed. The file has two slots, for the newest step and the one before, because ranks that
survive may be one step apart. A slot's head is written after its content and has its checksum, so a slot that a kill
has cut off is known.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

from trainloop.recovery import room
from trainloop.recovery.encoding import ALIGNMENT, Encoded
from trainloop.recovery.sealed import remove

#: Job (its checksum), attempt, step, ranks of the attempt, this rank, length and checksum of what is encoded.
_HEAD = struct.Struct("<IQQIIQI")
_PAGE = mmap.PAGESIZE
_SUFFIX = ".slots"
_PARTIAL = ".partial"


class Slots:
    """Writes one rank's slots."""

    def __init__(self, directory: Path, job: str, attempt: int, rank: int, ranks: int) -> None:
        self._file = directory / f"{attempt}-{rank}{_SUFFIX}"
        self._job, self._attempt, self._rank, self._ranks = zlib.crc32(job.encode()), attempt, rank, ranks
        self._mapped: mmap.mmap | None = None
        self._capacity = 0

    def write(self, step: int, encoded: Encoded) -> None:
        """Write what is to outlive this rank as it is after `step`. Raises OSError where there is no room for it."""
        content = b"".join(encoded.chunks())
        if self._mapped is None or len(content) > self._capacity:
            self._make(len(content))
        assert self._mapped is not None
        begin = step % 2 * (_HEAD_BYTES + self._capacity)
        self._mapped[begin + _HEAD_BYTES : begin + _HEAD_BYTES + len(content)] = content
        head = (self._job, self._attempt, step, self._ranks, self._rank, len(content), zlib.crc32(content))
        self._mapped[begin : begin + _HEAD.size] = _HEAD.pack(*head)

    def _make(self, needed: int) -> None:
        """Make a file with slots of at least so many bytes, in place of a smaller one, whose content goes with it."""
        capacity = needed + needed // 8 + -(needed + needed // 8) % _PAGE
        size = 2 * (_HEAD_BYTES + capacity)
        if lacking := room.lacking(self._file.parent, size):
            raise OSError(lacking)
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}{_PARTIAL}")
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as stream:
            # All of it now: where memory ends later, a copy into a mapped file is a SIGBUS.
            os.posix_fallocate(stream.fileno(), 0, size)
            self._mapped, self._capacity = mmap.mmap(stream.fileno(), size), capacity
        partial.rename(self._file)

    def close(self) -> None:
        """Delete the file."""
        remove(self._file)


_HEAD_BYTES = _HEAD.size + -_HEAD.size % ALIGNMENT


def read(directory: Path, job: str, attempt: int, step: int) -> dict[int, tuple[int, bytes]]:
    """Returns what ranks have left in `directory` of a step, by rank: how many ranks they were, and its bytes. What
    isn't whole is left out.
    """
    found = dict[int, tuple[int, bytes]]()
    for file in directory.glob(f"{attempt}-*{_SUFFIX}"):
        try:
            data = file.read_bytes()
        except OSError:
            continue
        half = len(data) // 2
        for begin in (0, half):
            if len(data) < begin + _HEAD_BYTES:
                continue
            owner, of, at, ranks, rank, length, checksum = _HEAD.unpack_from(data, begin)
            content = data[begin + _HEAD_BYTES : begin + _HEAD_BYTES + length]
            whole = len(content) == length and length and zlib.crc32(content) == checksum
            if whole and (owner, of, at) == (zlib.crc32(job.encode()), attempt, step):
                found[rank] = (ranks, content)
    return found


def clean(directory: Path, attempt: int) -> None:
    """Delete what ranks have left of attempts before this one."""
    for file in directory.glob(f"*{_SUFFIX}"):
        if file.name.partition("-")[0] != str(attempt):
            remove(file)
