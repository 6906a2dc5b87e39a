"""A pod prepares data only once if that is slow; its other ranks, and later attempts, map the result into memory.

The result is a file in TRAINMASTER_MEMORY_DIR. Its name is the hash of everything that the data depends on, so stale
data is never used. Outside a pod, or without space, each rank prepares its own data.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainloop.recovery import room, sealed
from trainloop.recovery.encoding import ALIGNMENT, Encoded, EncodingError, decode
from trainloop.recovery.place import DIRECTORY_VARIABLE


def prepared(depends_on: Sequence[object], prepare: Callable[[], Any]) -> Any:
    """Returns the result of `prepare`, which consists of tensors on the host and plain values.

    These may be nested in dicts, lists and tuples. `depends_on` lists everything that the data depends on: plain
    values, and paths of files, whose current state counts. Tensors that another rank has prepared are mapped, but if
    this rank changes them, no other rank sees that.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if not named:
        return prepare()
    try:
        directory = sealed.private(Path(named))
        lock = os.open(directory / "prepared.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, sealed.SealError):
        # The code that keeps the state reports why the directory can't be used.
        return prepare()
    try:
        # The rank of the pod that gets the lock first prepares the data, and the others wait. If a rank is killed, its
        # lock is released.
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = directory / f"{_hash(depends_on)}.prepared"
        if (found := _read(file)) is not None:
            return found
        value = prepare()
        _write(file, value)
        return value
    finally:
        os.close(lock)


def _hash(depends_on: Sequence[object]) -> str:
    def plain(value: object) -> object:
        if not isinstance(value, Path):
            return value
        status = value.stat()
        return [str(value), status.st_size, status.st_mtime_ns]

    return hashlib.sha256(json.dumps([plain(value) for value in depends_on]).encode()).hexdigest()[:32]


def _write(file: Path, value: Any) -> None:
    encoded = Encoded(value)
    if room.lacking(file.parent, encoded.size):
        return
    partial, checksum = file.with_suffix(".preparing"), 0
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(bytes(ALIGNMENT))
            for chunk in encoded.chunks():
                checksum = zlib.crc32(chunk, checksum)
                stream.write(chunk)
            stream.seek(0)
            stream.write(checksum.to_bytes(4, "big"))
        partial.rename(file)
    except OSError:
        partial.unlink(missing_ok=True)


def _read(file: Path) -> Any:
    """Returns a file's content; None if it is missing or damaged."""
    try:
        with file.open("rb") as stream:
            # A private, writable mapping, because torch warns about read-only memory.
            mapped = mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE)
        data = torch.frombuffer(mapped, dtype=torch.uint8)
        if zlib.crc32(data[ALIGNMENT:].numpy().data) != int.from_bytes(mapped[:4], "big"):
            return None
        return decode(data[ALIGNMENT:])
    except (OSError, ValueError, EncodingError):
        return None
