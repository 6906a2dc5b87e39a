"""A sealed file contains a state and a seal, which names job, attempt and step and shows that the state is complete.

On a disk, the file is written under another name, and renamed after the last byte and the seal are written. So a file
with a sealed file's name is complete. A checksum detects later damage. It is a CRC-32, which a core computes at 4 GB/s;
SHA-256 would reach 0.5 to 2 GB/s. Forgery needn't be detected, because only the user can open the directory. Files in
the pod's memory (`generations`) can't get damaged, so they have no checksum.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import threading
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainloop.recovery.encoding import ALIGNMENT, Encoded

#: Bytes before the state, for the seal.
HEADER_BYTES = 64 * ALIGNMENT
_MAGIC = "trainmaster state 1"
_SUFFIX = ".sealed"
#: The suffix of files in the pod's memory, which are overwritten again and again.
MEMORY = ".memory"
PARTIAL = ".partial"
#: A number beyond any step or attempt.
_LARGEST = 1 << 53


class SealError(ValueError):
    """A file has no seal or doesn't match its seal; the message names the file."""


@dataclass(frozen=True, order=True)
class Seal:
    """A seal describes the state in a file.

    The greater of two seals is the newer one: the attempt is compared first, because each attempt continued from an
    earlier attempt's state.
    """

    attempt: int
    step: int
    #: The number of parts of the state, and the index of this part. They are 1 and 0 if each rank has the whole state.
    parts: int
    part: int
    job: str
    size: int
    checksum: int = 0  # 0: there is none

    @property
    def age(self) -> tuple[int, int]:
        """Returns the sort key of states: the attempt and the step."""
        return self.attempt, self.step

    @property
    def name(self) -> str:
        return name_of(self.attempt, self.step, self.part, self.parts)


def name_of(attempt: int, step: int, part: int, parts: int) -> str:
    """Returns the name of a sealed file."""
    return f"{attempt}-{step}-{part}-of-{parts}{_SUFFIX}"


def private(directory: Path) -> Path:
    """Returns the directory within `directory` that only this user can read; makes it if necessary.

    Raises SealError if it belongs to another user or others may open it, and OSError if it can't be made.
    """
    own = directory / f"user-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SealError(f"{own} isn't a directory of this user's alone")
    return own


def write(directory: Path, encoded: Encoded, job: str, attempt: int, step: int, parts: int = 1, part: int = 0) -> Path:
    """Write, seal and sync a state; returns its file. Raises OSError if writing fails."""
    partial = _partial(directory, name_of(attempt, step, part, parts))
    try:
        # Unbuffered, because a buffer would copy each tensor once more.
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as stream:
            stream.seek(HEADER_BYTES)
            checksum = 0
            for chunk in encoded.chunks():
                checksum = zlib.crc32(chunk, checksum)
                while chunk:
                    chunk = chunk[stream.write(chunk) :]
            seal = Seal(attempt, step, parts, part, job, encoded.size, checksum)
            stream.seek(0)
            stream.write(head_of(seal))
            os.fsync(stream.fileno())
        file = partial.rename(directory / seal.name)
        _sync(directory)
        return file
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def head_of(seal: Seal) -> bytes:
    """Returns the first bytes of a file with this seal."""
    return json.dumps({"magic": _MAGIC, **asdict(seal)}).encode().ljust(HEADER_BYTES)


def read_seal(file: Path) -> Seal | None:
    """Returns the seal of a file without reading its state; None for a file in the pod's memory with an empty head.

    Raises SealError if the file has no valid seal.
    """
    try:
        with file.open("rb") as stream:
            text, size = stream.read(HEADER_BYTES), os.fstat(stream.fileno()).st_size
            if file.suffix == MEMORY and text and not any(text):
                return None
            head = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise SealError(f"{file} has no seal: {str(error)[:200]}") from None
    seal = seal_of(head)
    if seal is None or head.get("magic") != _MAGIC or (seal.name != file.name and file.suffix != MEMORY):
        raise SealError(f"{file} has no seal that goes with its name")
    if size < HEADER_BYTES + seal.size:
        raise SealError(f"{file} has {size} bytes, its seal lists {HEADER_BYTES + seal.size}")
    return seal


def seal_of(plain: Any) -> Seal | None:
    """Returns the seal in a plain value from another rank; None if it isn't a seal."""
    try:
        seal = Seal(**{name: plain[name] for name in Seal.__dataclass_fields__})
    except (TypeError, KeyError):
        return None
    numbers = (seal.attempt, seal.step, seal.parts, seal.part, seal.size, seal.checksum)
    plausible = all(type(number) is int and 0 <= number < _LARGEST for number in numbers)
    return seal if plausible and isinstance(seal.job, str) and seal.part < seal.parts else None


def sealed_files(directory: Path, job: str, *, adopting: bool = False) -> tuple[dict[Seal, Path], list[str]]:
    """Returns the sealed files of `job` by their seals, and messages about the unusable ones.

    With `adopting`, files of other jobs count as attempt 0, which precedes the first attempt, because on a disk a job
    may continue from another job.
    """
    found, wrong = dict[Seal, Path](), list[str]()
    for file in sorted((*directory.glob(f"*{_SUFFIX}"), *directory.glob(f"*{MEMORY}"))):
        try:
            seal = read_seal(file)
        except SealError as error:
            wrong.append(str(error))
            continue
        if seal is None:
            continue
        if seal.job == job:
            found[seal] = file
        elif adopting:
            found[replace(seal, attempt=0)] = file
        else:
            wrong.append(f"{file} is of another job")
    return found, wrong


def read(file: Path, seal: Seal) -> torch.Tensor:
    """Returns a memory map of a sealed file's state. Raises SealError if its bytes don't match the seal."""
    try:
        with file.open("rb") as stream:
            # A private, writable mapping, because torch warns of read-only memory.
            mapped = mmap.mmap(stream.fileno(), HEADER_BYTES + seal.size, flags=mmap.MAP_PRIVATE)
    except (OSError, ValueError) as error:
        raise SealError(f"{file} can't be read: {error}") from None
    return verified(torch.frombuffer(mapped, dtype=torch.uint8)[HEADER_BYTES:], seal, str(file))


def verified(data: torch.Tensor, seal: Seal, name: str) -> torch.Tensor:
    """Returns `data`. Raises SealError if the seal has a checksum that `data` doesn't match."""
    if seal.checksum and zlib.crc32(data.numpy().data) != seal.checksum:
        raise SealError(f"{name} doesn't have the checksum in its seal")
    return data


def _partial(directory: Path, name: str) -> Path:
    """Returns the path of an unfinished file. It names the writing thread, because two threads may write at once."""
    return directory / f"{name}.{threading.get_native_id()}{PARTIAL}"


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(file: Path) -> None:
    """Delete a file unless another rank of the worker has already deleted it."""
    file.unlink(missing_ok=True)


def empty(file: Path) -> None:
    """Delete a file. A file in the pod's memory only loses its seal, and stays to be overwritten."""
    if file.suffix != MEMORY:
        remove(file)
        return
    with suppress(FileNotFoundError), file.open("r+b") as stream:
        stream.write(bytes(HEADER_BYTES))


def clean(directory: Path) -> None:
    """Delete half-written files whose writing threads were killed."""
    for file in directory.glob(f"*{PARTIAL}"):
        thread = file.name.removesuffix(PARTIAL).rpartition(".")[2]
        if not Path("/proc", thread).exists():
            remove(file)
