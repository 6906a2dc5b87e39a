"""A state is written by turns into two files of the pod's memory, which are made, and pinned, once.

A new page of memory takes longer to make than to fill, and only what is pinned is filled at a device's speed, and while
the device is stuck. So a file stays, and is written over. Its head is emptied before and written last: it vouches for
what this pod's memory holds, without a checksum. A file that isn't written, or was cut off by a kill, has no head.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainloop.recovery import room, sealed
from trainloop.recovery.device import Device
from trainloop.recovery.encoding import Encoded
from trainloop.recovery.sealed import HEADER_BYTES, Seal

#: Seconds that a rank waits for another rank of its worker that writes the same state.
PATIENCE = 10.0


class File:
    """One of the files, mapped."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path, self._device = path, device
        self._inode = -1
        self._memory = torch.empty(0, dtype=torch.uint8)
        #: Why it isn't pinned, where it isn't.
        self.unpinned: str | None = None

    @property
    def seal(self) -> Seal | None:
        """Returns what it holds; None where that is nothing whole."""
        try:
            return sealed.read_seal(self.path)
        except sealed.SealError:
            return None

    def make(self, size: int) -> str | None:
        """Have a file for a state of `size` bytes, mapped and pinned; returns why there can't be one.

        Another rank of the worker may have made it, or made it anew.
        """
        needed = HEADER_BYTES + size
        try:
            found = self.path.stat()
            if found.st_size >= needed:
                if found.st_ino != self._inode:
                    with self.path.open("r+b") as stream:
                        self._map(stream.fileno(), found.st_size)
                return None
        except FileNotFoundError:
            pass
        if lacking := room.lacking(self.path.parent, needed):
            return lacking
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}{sealed.PARTIAL}")
        try:
            with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as stream:
                # All of it now: where memory ends later, a copy into a mapped file is a SIGBUS.
                os.posix_fallocate(stream.fileno(), 0, needed)
                self._map(stream.fileno(), needed)
            partial.rename(self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            return str(error)
        return None

    def _map(self, descriptor: int, size: int) -> None:
        self._memory = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        self._inode = os.fstat(descriptor).st_ino
        self.unpinned = self._device.pin(self._memory)

    def fill(self, encoded: Encoded) -> None:
        """Write a state over what is there, as far as the calling thread's queue takes it; it has no head then."""
        self.empty()
        encoded.copy_into(self._memory[HEADER_BYTES:], self._device.copy)

    def receive(self, size: int) -> torch.Tensor:
        """Returns where `size` bytes that another rank sends are put; it has no head then."""
        self.empty()
        return self._memory[HEADER_BYTES : HEADER_BYTES + size]

    def content(self, size: int) -> torch.Tensor:
        return self._memory[HEADER_BYTES : HEADER_BYTES + size]

    def close(self, seal: Seal) -> None:
        """Say what is there, whole."""
        self._write_head(sealed.head_of(seal))

    def empty(self) -> None:
        if self._memory.numel():
            self._write_head(bytes(HEADER_BYTES))

    def _write_head(self, head: bytes) -> None:
        self._memory[:HEADER_BYTES] = torch.frombuffer(bytearray(head), dtype=torch.uint8)


class Generations:
    """The files of one state: this rank's part, or what all ranks of a worker have alike."""

    def __init__(self, directory: Path, job: str, name: str, device: Device, count: int) -> None:
        self.directory, self._job = directory, job
        self._making = threading.Lock()
        self.files = [File(directory / f"{name}.{number}{sealed.MEMORY}", device) for number in range(count)]

    def make(self, file: File, size: int) -> str | None:
        """Have a file for a state of `size` bytes; returns why that can't be."""
        # Another thread may be pinning it, which may wait for a device that is stuck.
        if not self._making.acquire(timeout=PATIENCE):
            return "its memory is still being made"
        try:
            return file.make(size)
        finally:
            self._making.release()

    def make_all(self, size: int, say: Callable[[str], None]) -> None:
        """Have all files for a state of `size` bytes; says why that can't be, or is slower than it could be."""
        with self.alone():
            lacking = next(filter(None, (self.make(file, size) for file in self.files)), None)
        unpinned = next((file.unpinned for file in self.files if file.unpinned), None)
        if lacking:
            say(f"the state isn't kept in memory, {len(self.files)} x {size:,} bytes: {lacking}")
        elif unpinned:
            say(f"the state is kept in memory that isn't pinned, and copying takes longer: {unpinned}")

    def next(self, kept: tuple[int, int]) -> File:
        """Returns the file to write: not the one with the state of the age `kept`, else the oldest."""
        ages = dict[int, tuple[int, int]]()
        for number, file in enumerate(self.files):
            seal = file.seal
            ages[number] = seal.age if seal is not None and seal.job == self._job else (-1, -1)
        return self.files[min(ages, key=lambda number: (ages[number] == kept, ages[number]))]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Surrounds what one rank of the worker does after the other; one that dies meanwhile leaves it to the next."""
        with os.fdopen(os.open(self.directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.002)
            yield
