"""All ranks load the same checkpoint, so a checkpoint is sent to the ranks that lack it.

A rank may lack a checkpoint that another rank has, because each node may use its own disk. The ranks also agree here on
the checkpoint that `start_from` names.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.storage import Checkpoint, CheckpointError, named, resolve
from trainloop.distributed.world import World
from trainloop.errors import ConfigError

#: Bytes of a file in each broadcast.
CHUNK = 64 << 20


def spread(world: World, checkpoint: Checkpoint, source: int, *, lacks: bool) -> None:
    """Send a valid checkpoint from the rank `source` to every writer that `lacks` an undamaged copy.

    If a disk is full, older checkpoints are deleted. Raises ConfigError on every rank if that doesn't free enough
    space.
    """
    partial, gives = storage.partial_name(checkpoint.directory, checkpoint.step), source == world.rank
    there = [file for file in checkpoint.path.iterdir() if file.is_file()] if gives else []
    files: dict[str, int] = world.from_rank(source, {file.name: file.stat().st_size for file in there})
    needed, refused = sum(files.values()), _make_room(partial, sum(files.values())) if lacks else None
    for name in files:
        copy = storage.inside(partial, name)
        with (checkpoint.path / name).open("rb") if gives else nullcontext() as reader:
            # A rank that can't write still takes part in the broadcasts.
            while chunk := world.from_rank(source, reader.read(CHUNK) if reader else b""):
                if lacks and refused is None:
                    refused = _append(copy, chunk)
    sentence = None
    if refused is not None:
        sentence = retention.refusal(checkpoint.directory, checkpoint.step, refused, needed)
        shutil.rmtree(partial, ignore_errors=True)
    elif lacks:
        storage.remove(checkpoint)
        storage.place(partial, checkpoint)
    for rank, text in enumerate(world.gather(sentence)):
        if text:
            raise ConfigError(f"rank {rank} lacks a checkpoint that others have: {text}")


def _make_room(partial: Path, needed: int) -> OSError | None:
    """Make a directory for `needed` bytes, and delete older checkpoints if necessary; returns the error, if any."""
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        return error
    if not storage.has_room(partial, needed):
        full = storage.disk_full()
        return None if retention.make_room(partial.parent, full, needed) else full
    return None


def _append(file: Path, chunk: bytes) -> OSError | None:
    """Append bytes to a file; returns the error if writing fails."""
    try:
        with file.open("ab") as stream:
            stream.write(chunk)
    except OSError as error:
        return error
    return None


def agreed(path: Path, start: str, world: World) -> Checkpoint:
    """Returns the checkpoint that `checkpoint.start_from` names for a run in `path`; collective.

    On failure, raises ConfigError on every rank.
    """
    folder, _, name = start.rpartition("/")
    directory = Path(folder).expanduser() if folder else path
    directory = path if directory.resolve() == path.resolve() else directory
    found = problem = None
    try:
        found = resolve(directory, name).name
    except (CheckpointError, OSError) as error:
        problem = str(error)
    answers = world.gather((found, problem))
    # If the checkpoint is in the run's own directory, a rank may lack it, and receives it later. If it is in another
    # directory, all ranks must see it.
    names = [name for name, _ in answers if name]
    if not names or (directory != path and len(names) < len(answers)):
        rank, text = next((rank, text) for rank, (_, text) in enumerate(answers) if text)
        raise ConfigError(f"checkpoint.start_from can't be found by rank {rank}: {text}")
    start_from = named(directory, names[0])
    assert start_from is not None
    return start_from
