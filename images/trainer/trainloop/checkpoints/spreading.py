"""Where each node has a disk of its own, one that lacks a checkpoint is given it by one that has it."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

from trainloop.checkpoints import room, storage
from trainloop.checkpoints.storage import Checkpoint
from trainloop.distributed.world import World
from trainloop.errors import ConfigError

#: Bytes of a file that travel in one broadcast.
CHUNK = 64 << 20


def spread(world: World, checkpoint: Checkpoint, source: int, *, lacks: bool) -> None:
    """Bring a valid checkpoint from the rank `source` to every writer that `lacks` it (or has a damaged one).

    On a full disk older checkpoints make room for it. Raises ConfigError on every rank alike where that isn't enough.
    """
    partial, gives = storage.partial_name(checkpoint.directory, checkpoint.step), source == world.rank
    there = [file for file in checkpoint.path.iterdir() if file.is_file()] if gives else []
    files: dict[str, int] = world.from_rank(source, {file.name: file.stat().st_size for file in there})
    needed, refused = sum(files.values()), _make_room(partial, sum(files.values())) if lacks else None
    for name in files:
        copy = storage.inside(partial, name)
        with (checkpoint.path / name).open("rb") if gives else nullcontext() as reader:
            # A rank whose disk refuses takes part in the others' broadcasts.
            while chunk := world.from_rank(source, reader.read(CHUNK) if reader else b""):
                if lacks and refused is None:
                    refused = _append(copy, chunk)
    sentence = None
    if refused is not None:
        sentence = room.refusal(checkpoint.directory, checkpoint.step, refused, needed)
        shutil.rmtree(partial, ignore_errors=True)
    elif lacks:
        storage.remove(checkpoint)
        storage.place(partial, checkpoint)
    for rank, text in enumerate(world.gather(sentence)):
        if text:
            raise ConfigError(f"rank {rank} lacks a checkpoint that others have: {text}")


def _make_room(partial: Path, needed: int) -> OSError | None:
    """Make a directory for `needed` bytes, for which older checkpoints may go; returns why it can't be made."""
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        return error
    if not storage.has_room(partial, needed):
        full = storage.disk_full()
        return None if room.make(partial.parent, full, needed) else full
    return None


def _append(file: Path, chunk: bytes) -> OSError | None:
    """Write bytes at a file's end; returns why the disk refuses."""
    try:
        with file.open("ab") as stream:
            stream.write(chunk)
    except OSError as error:
        return error
    return None
