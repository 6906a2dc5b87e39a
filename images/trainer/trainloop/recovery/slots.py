"""A rank's own small state, such as its random generators', is copied into the pod's memory at the end of every step.

It lies in a file that the rank has mapped, so a step costs a copy and no call of the kernel, and what was copied
outlives a rank that is killed. The file has two slots for the newest step and the one before, because ranks that
survive may be one step apart, and two for the newest snapshot and the one before. A slot's head is written after its
content and has its checksum, so a slot that a kill has cut off is known.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from trainloop.recovery import room
from trainloop.recovery.encoding import ALIGNMENT, Encoded
from trainloop.recovery.sealed import remove

#: Job (its checksum), attempt, step, rank, length and checksum of what is encoded.
_HEAD = struct.Struct("<IQQIQI")
_PAGE = mmap.PAGESIZE
_SLOTS = 4
_SUFFIX = ".slots"
_PARTIAL = ".partial"


class Slots:
    """Writes one rank's slots."""

    def __init__(self, directory: Path, job: str, attempt: int, rank: int) -> None:
        self._file = directory / f"{attempt}-{rank}{_SUFFIX}"
        self._job, self._attempt, self._rank = zlib.crc32(job.encode()), attempt, rank
        self._mapped: mmap.mmap | None = None
        self._capacity = 0
        self._kept = 2  # the slot of the newest snapshot: 2 or 3

    def write(self, step: int, encoded: Encoded) -> None:
        """Write what is to outlive this rank as it is after `step`. Raises OSError where there is no room for it."""
        self._put(step % 2, step, encoded.size, encoded.chunks())

    def written(self, step: int) -> bytes | None:
        """Returns what was written after `step`, one of the last two; None where it isn't there any more."""
        if self._mapped is None:
            return None
        begin = step % 2 * (_HEAD_BYTES + self._capacity)
        _, _, at, _, length, checksum = _HEAD.unpack_from(self._mapped, begin)
        content = self._mapped[begin + _HEAD_BYTES : begin + _HEAD_BYTES + length]
        return content if at == step and zlib.crc32(content) == checksum else None

    def keep(self, step: int) -> None:
        """Keep what was written after `step`, the newest, until that was done twice more: a snapshot goes with it."""
        if (content := self.written(step)) is not None:
            self._kept = 5 - self._kept
            self._put(self._kept, step, len(content), [content])

    def _put(self, slot: int, step: int, length: int, chunks: Iterable[bytes | memoryview]) -> None:
        if self._mapped is None or length > self._capacity:
            self._make(length)
        assert self._mapped is not None
        begin = slot * (_HEAD_BYTES + self._capacity)
        end, checksum = begin + _HEAD_BYTES, 0
        for chunk in chunks:
            self._mapped[end : end + len(chunk)] = chunk
            end, checksum = end + len(chunk), zlib.crc32(chunk, checksum)
        head = (self._job, self._attempt, step, self._rank, length, checksum)
        self._mapped[begin : begin + _HEAD.size] = _HEAD.pack(*head)

    def _make(self, needed: int) -> None:
        """Make a file with slots of at least so many bytes, in place of a smaller one, whose content goes with it."""
        capacity = needed + needed // 8 + -(needed + needed // 8) % _PAGE
        size = _SLOTS * (_HEAD_BYTES + capacity)
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


def read(directory: Path, job: str, attempt: int, step: int) -> dict[int, bytes]:
    """Returns what ranks have left in `directory` of a step, by rank. What isn't whole is left out."""
    found = dict[int, bytes]()
    for file in directory.glob(f"{attempt}-*{_SUFFIX}"):
        try:
            data = file.read_bytes()
        except OSError:
            continue
        for begin in (slot * (len(data) // _SLOTS) for slot in range(_SLOTS)):
            if len(data) < begin + _HEAD_BYTES:
                continue
            owner, of, at, rank, length, checksum = _HEAD.unpack_from(data, begin)
            content = data[begin + _HEAD_BYTES : begin + _HEAD_BYTES + length]
            whole = len(content) == length and length and zlib.crc32(content) == checksum
            if whole and (owner, of, at) == (zlib.crc32(job.encode()), attempt, step):
                found[rank] = content
    return found


def clean(directory: Path, attempts: set[int | None]) -> None:
    """Delete what ranks have left of other attempts than these."""
    for file in directory.glob(f"*{_SUFFIX}"):
        if file.name.partition("-")[0] not in map(str, attempts):
            remove(file)
