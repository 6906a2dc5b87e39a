"""A state is written alternately into two files of the pod's memory, which are created and pinned only once.

Creating a page of memory takes longer than filling it. Only pinned memory can be filled at a device's speed, or while
the device is stuck. So files are kept and overwritten. A file's head is emptied first and written last. If a write is
interrupted, the file has no head. So a head shows that the content is complete, and no checksum is needed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from trainloop.recovery import room, sealed
from trainloop.recovery.device import Device
from trainloop.recovery.encoding import Encoded
from trainloop.recovery.sealed import HEADER_BYTES, Seal

#: Seconds that a rank waits while another rank of its worker writes the same state.
PATIENCE = 10.0
#: Bytes by which a state may outgrow its file's first size, in addition to a fraction of that size.
_SLACK = 256 << 10


class File:
    """This is one of the two files, mapped into memory."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path, self._device = path, device
        self._inode = -1
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._before = list[torch.Tensor]()
        #: Why the file isn't pinned; None if it is.
        self.unpinned: str | None = None

    @property
    def seal(self) -> Seal | None:
        """Returns the seal of the file's content; None if the file contains no complete state."""
        try:
            return sealed.read_seal(self.path)
        except sealed.SealError:
            return None

    def make(self, size: int, *, stuck: bool = False) -> None:
        """Make, map and pin a file for a state of `size` bytes; while the device is `stuck`, don't pin it.

        Another rank of the worker may already have made or replaced the file. Raises OSError if there is no room for
        it.
        """
        needed = HEADER_BYTES + size
        with self._alone():
            try:
                found = self.path.stat().st_size
            except FileNotFoundError:
                found = -1
            if found < needed:
                # A state grows a little from step to step, and making a file takes longer than writing it.
                with room.made(self.path, needed + size // 64 + _SLACK):
                    pass
        with self.path.open("r+b") as stream:
            about = os.fstat(stream.fileno())
            if about.st_ino != self._inode:
                # The old mapping stays: a queue may be writing to it, and its pages are pinned.
                self._before.append(self._memory)
                self._memory = torch.frombuffer(mmap.mmap(stream.fileno(), about.st_size), dtype=torch.uint8)
                self._inode = about.st_ino
                self.unpinned = "the device is stuck" if stuck else self._device.pin(self._memory)

    def _alone(self) -> AbstractContextManager[Any]:
        return alone(self.path.with_suffix(".lock"))

    def is_being_written(self) -> bool:
        """Returns whether any rank of this worker is writing a snapshot into the file."""
        try:
            descriptor = self.claim()
        except FileNotFoundError:
            return False
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def claim(self) -> int | None:
        """Returns a descriptor that excludes other writers while it is open; None if another writer holds one."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def fill(self, encoded: Encoded) -> None:
        """Queue the copies that overwrite the content with a state, and leave the head empty."""
        self.empty()
        encoded.copy_into(self._memory[HEADER_BYTES:], self._device.copy)

    def receive(self, size: int) -> torch.Tensor:
        """Empty the head; returns the memory into which `size` bytes from another rank are received."""
        self.empty()
        return self.content(size)

    def content(self, size: int) -> torch.Tensor:
        return self._memory[HEADER_BYTES : HEADER_BYTES + size]

    def close(self, seal: Seal) -> None:
        """Write the seal, because the content is complete."""
        self._write_head(sealed.head_of(seal))

    def empty(self) -> None:
        if self._memory.numel():
            self._write_head(bytes(HEADER_BYTES))

    def _write_head(self, head: bytes) -> None:
        self._memory[:HEADER_BYTES] = torch.frombuffer(bytearray(head), dtype=torch.uint8)


class Generations:
    """Generations are the files for one state: this rank's part, or the state that all ranks of a worker share."""

    def __init__(self, directory: Path, job: str, name: str, device: Device, count: int) -> None:
        self._directory, self._name, self._job, self._device = directory, name, job, device
        self.files = [File(directory / f"{name}.{number}{sealed.MEMORY}", device) for number in range(count)]
        #: Held while a thread makes a file, which may wait for a stuck device.
        self._making = threading.Lock()

    def make(self, file: File, size: int, *, stuck: bool = False) -> None:
        """Call `File.make`, which only one thread at a time may do. Raises OSError if there is no room."""
        if not self._making.acquire(timeout=PATIENCE):
            raise OSError("its memory is still being made")
        try:
            file.make(size, stuck=stuck)
        finally:
            self._making.release()

    def make_all(self, size: int, kept: tuple[int, int], say: Callable[[str], None]) -> None:
        """Make all files for a state of `size` bytes.

        Calls `say` on failure and if memory isn't pinned. The file with the state of age `kept` stays unchanged.
        """
        self._device.enter_thread()
        ages = self._ages()
        try:
            for file in self.files:
                self.make(file, 0 if ages[file] == kept else size)
        except OSError as error:
            say(f"the state isn't kept in memory, {len(self.files)} x {size:,} bytes: {error}")
            return
        if unpinned := next((file.unpinned for file in self.files if file.unpinned), None):
            say(f"the state is kept in memory that isn't pinned, and copying takes longer: {unpinned}")

    def next(self, kept: tuple[int, int], *, spare: bool = False) -> File:
        """Returns the oldest file that nobody is writing.

        The file with the state of age `kept` is returned only if `spare` is true and there is no other. Raises OSError
        if there is no file.
        """
        ages = self._ages()
        for file in sorted(self.files, key=lambda file: (ages[file] == kept, ages[file])):
            if (ages[file] != kept or spare) and not file.is_being_written():
                return file
        raise OSError("one is being written, and the other one has the newest snapshot")

    def writing(self) -> AbstractContextManager[Any]:
        """Returns a lock that makes the ranks of a worker take turns when they write the same state."""
        return alone(self._directory / f"{self._name}.lock")

    def _ages(self) -> dict[File, tuple[int, int]]:
        seals = {file: file.seal for file in self.files}
        return {
            file: seal.age if seal is not None and seal.job == self._job else (-1, -1) for file, seal in seals.items()
        }


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock between processes, which is released if the process dies.

    Raises OSError if another process still holds it after `PATIENCE` seconds.
    """
    with os.fdopen(os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
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
