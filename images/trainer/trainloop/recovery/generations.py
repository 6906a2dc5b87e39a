"""A state is written alternately into two files of the pod's memory, which are made, and pinned, once.

A new page of memory takes longer to make than to fill, and only pinned memory is filled at a device's speed, and while
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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from trainloop.recovery import room, sealed
from trainloop.recovery.device import Device
from trainloop.recovery.encoding import Encoded
from trainloop.recovery.sealed import HEADER_BYTES, Seal

#: Seconds that a rank waits for another rank of its worker that writes the same state.
PATIENCE = 10.0
#: Bytes that a state may grow by, in the file that was made for it, plus a part of its own size.
_SLACK = 256 << 10


class File:
    """One of the files, mapped."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path, self._device = path, device
        self._inode = -1
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._before = list[torch.Tensor]()
        #: Why it isn't pinned, where it isn't.
        self.unpinned: str | None = None

    @property
    def seal(self) -> Seal | None:
        """Returns what it holds; None where that is nothing whole."""
        try:
            return sealed.read_seal(self.path)
        except sealed.SealError:
            return None

    def make(self, size: int, *, stuck: bool = False) -> None:
        """Have a file for a state of `size` bytes, mapped and pinned. While the device is `stuck` nothing is pinned.
        Raises OSError where there can't be one.

        Another rank of the worker may have made it, or replaced it.
        """
        needed = HEADER_BYTES + size
        with self._alone():
            try:
                found = self.path.stat().st_size
            except FileNotFoundError:
                found = -1
            if found < needed:
                # A state grows a little from step to step, and to make a file takes longer than to write it.
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
        """Returns whether a snapshot is on its way into the file, this rank's or another one's of the worker."""
        try:
            descriptor = self.claim()
        except FileNotFoundError:
            return False
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def claim(self) -> int | None:
        """Returns a descriptor, while which is open nobody else writes the file; None where somebody does."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def fill(self, encoded: Encoded) -> None:
        """Write a state over what is there, as far as the calling thread's queue takes it; it has no head then."""
        self.empty()
        encoded.copy_into(self._memory[HEADER_BYTES:], self._device.copy)

    def receive(self, size: int) -> torch.Tensor:
        """Returns where `size` bytes that another rank sends are put; it has no head then."""
        self.empty()
        return self.content(size)

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
        self._directory, self._name, self._job, self._device = directory, name, job, device
        self.files = [File(directory / f"{name}.{number}{sealed.MEMORY}", device) for number in range(count)]
        #: Another thread may be making a file, which may wait for a device that is stuck.
        self._making = threading.Lock()

    def make(self, file: File, size: int, *, stuck: bool = False) -> None:
        """Make a file as `File.make` does, one thread after the other."""
        if not self._making.acquire(timeout=PATIENCE):
            raise OSError("its memory is still being made")
        try:
            file.make(size, stuck=stuck)
        finally:
            self._making.release()

    def make_all(self, size: int, kept: tuple[int, int], say: Callable[[str], None]) -> None:
        """Have all files for a state of `size` bytes; reports why that can't be, or is slower than it could be. The one
        with the state of the age `kept` stays as it is.
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
        """Returns the file to write: the oldest that isn't being written. The one with the state of the age `kept` is
        only taken with `spare`, if there is no other. Raises OSError where there is none.
        """
        ages = self._ages()
        for file in sorted(self.files, key=lambda file: (ages[file] == kept, ages[file])):
            if (ages[file] != kept or spare) and not file.is_being_written():
                return file
        raise OSError("one is being written, and the other one has the newest snapshot")

    def writing(self) -> AbstractContextManager[Any]:
        """Surrounds what one rank of the worker does after the other, where they write the same."""
        return alone(self._directory / f"{self._name}.lock")

    def _ages(self) -> dict[File, tuple[int, int]]:
        seals = {file: file.seal for file in self.files}
        return {
            file: seal.age if seal is not None and seal.job == self._job else (-1, -1) for file, seal in seals.items()
        }


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Lets in one process at a time; one that dies inside leaves it to the next. Raises OSError where it takes too
    long.
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
