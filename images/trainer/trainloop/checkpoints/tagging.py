"""Tags are set, deleted and resolved here, for a run with `checkpoint.start_from` and for `trainloop checkpoints`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainloop.checkpoints.storage import TAG, TAGS, Checkpoint, complete, make_directory, named, sync, tags
from trainloop.checkpoints.verification import CheckpointError
from trainloop.errors import ConfigError, listed

if TYPE_CHECKING:
    from trainloop.distributed.world import World


def set_tag(checkpoint: Checkpoint, tag: str) -> None:
    """Give a checkpoint a tag, which another one may have had. Raises CheckpointError for what can't be a tag."""
    if not TAG.fullmatch(tag):
        raise CheckpointError(
            f"{tag!r} can't be a tag: up to 100 letters, digits, '.', '_' and '-' can, that don't begin with '.', '-' "
            "or 'step-'"
        )
    file = checkpoint.directory / TAGS / tag
    make_directory(file.parent)
    temporary = file.with_name(f".{tag}-{os.getpid()}")
    temporary.write_text(f"{checkpoint.name}\n")
    sync(temporary)
    temporary.replace(file)
    sync(file.parent)


def delete_tag(directory: Path, tag: str) -> None:
    """Take a tag from its checkpoint. Raises CheckpointError where there is no such tag."""
    if tag not in tags(directory):
        raise CheckpointError(f"{directory} has no tag {tag!r}: it has {listed(sorted(tags(directory))) or 'none'}")
    (directory / TAGS / tag).unlink()
    sync(directory / TAGS)


def resolve(directory: Path, tag_or_name: str) -> Checkpoint:
    """Returns the checkpoint of `directory` with this tag or name. Raises CheckpointError where there is none."""
    known = tags(directory)
    found = named(directory, known.get(tag_or_name, tag_or_name))
    if found is not None and found.path.is_dir():
        return found
    there = sorted(tag for tag, name in known.items() if (directory / name).is_dir())
    names = [one.name for one in complete(directory)]
    choice = f"tags are {listed(there) or 'none'}, checkpoints {listed(names) or 'none'}"
    if tag_or_name in known:
        raise CheckpointError(
            f"{tag_or_name!r} is the tag of {known[tag_or_name]}, which was deleted from {directory}: copy it back, or "
            f"name another one ({choice})"
        )
    raise CheckpointError(f"{tag_or_name!r} is neither a tag nor a checkpoint of {directory}: {choice}")


def agreed(path: Path, start: str, world: World) -> Checkpoint:
    """Returns the checkpoint that `checkpoint.start_from` names for a run in `path`; collective. Raises ConfigError on
    every rank alike.
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
    # Each node's own disk may lack it, and is given it; another directory has to be seen by all.
    names = [name for name, _ in answers if name]
    if not names or (directory != path and len(names) < len(answers)):
        rank, text = next((rank, text) for rank, (_, text) in enumerate(answers) if text)
        raise ConfigError(f"checkpoint.start_from can't be found by rank {rank}: {text}")
    start_from = named(directory, names[0])
    assert start_from is not None
    return start_from
