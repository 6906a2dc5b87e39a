"""Checkpoints are directories on a file system: atomic, checked, and never all gone. This module knows files only, no
ranks and no tensors' meaning.

A checkpoint is a directory `step-<step>.<version>` that appears by one rename, after its files and a manifest with
their SHA-256 have been written and synced; it counts when the rename is synced too. What isn't complete has another
name (`.saving-…`) and is never read. A step that is saved again (after a rollback) gets the next version, nothing
is overwritten. Which one is the newest is a matter of when they were written, not of their steps.

A tag is a file `tags/<tag>` whose content is a checkpoint's name.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainloop.checkpoints.verification import CheckpointError, inspect, write_manifest

STATE = "state.pt"
CONFIGURATION = "config.yaml"
TAGS = "tags"
_NAME = re.compile(r"step-([0-9]{9,})\.([0-9]+)")
TAG = re.compile(r"(?!step-)[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_PARTIAL = ".saving-"


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint lies in `directory`; checkpoints are ordered by step, then version."""

    step: int
    version: int
    directory: Path
    #: What the manifest says, where it was read: when the checkpoint was written [s], and what it was made from.
    created: float = field(default=0.0, compare=False)
    about: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"step-{self.step:09d}.{self.version}"

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def results(self) -> dict[str, float]:
        """Returns what the run had measured when it was saved."""
        results = self.about.get("results")
        found = results.items() if isinstance(results, dict) else ()
        return {name: float(value) for name, value in found if isinstance(value, int | float)}


class Survey(NamedTuple):
    """What a directory has: its complete checkpoints, the one that was written last first, and what is wrong with every
    other `step-…` directory, by its name; damage within a file isn't seen.
    """

    whole: list[Checkpoint]
    broken: dict[str, str]


def named(directory: Path, name: str) -> Checkpoint | None:
    """Returns the checkpoint that would have this name in `directory`, or None where it is no checkpoint's name."""
    form = _NAME.fullmatch(name)
    checkpoint = Checkpoint(int(form[1]), int(form[2]), directory) if form else None
    return checkpoint if checkpoint and checkpoint.name == name else None


def survey(directory: Path) -> Survey:
    """Returns what a directory has; reads every manifest."""
    whole, broken = list[Checkpoint](), dict[str, str]()
    for entry in sorted(directory.glob("step-*")):
        checkpoint = named(directory, entry.name)
        if checkpoint is None and entry.is_dir():
            broken[entry.name] = f"{entry} isn't named as a checkpoint: step-<9 digits>.<version>"
        if checkpoint is not None:
            try:
                manifest = inspect(entry)
                whole.append(replace(checkpoint, created=manifest["created"], about=manifest["about"]))
            except CheckpointError as error:
                broken[entry.name] = str(error)
    return Survey(sorted(whole, key=lambda one: (one.created, one), reverse=True), broken)


def complete(directory: Path) -> list[Checkpoint]:
    """Returns every complete checkpoint, the one that was written last first; partial ones are not among them."""
    return survey(directory).whole


def next_version(directory: Path, step: int) -> int:
    """Returns the version that a checkpoint of `step` gets: the next free one, whatever lies under the others. A tag
    whose checkpoint was deleted by hand must not become another one's.
    """
    names = [*(entry.name for entry in directory.glob("step-*")), *tags(directory).values()]
    taken = [named(directory, name) for name in names]
    return 1 + max((one.version for one in taken if one and one.step == step), default=0)


def tags(directory: Path) -> dict[str, str]:
    """Returns the name of a checkpoint by tag; files that are no tags are left out."""
    files = [file for file in sorted((directory / TAGS).glob("*")) if TAG.fullmatch(file.name) and file.is_file()]
    contents = {file.name: file.read_text(errors="replace").strip() for file in files}
    return {tag: name for tag, name in contents.items() if named(directory, name)}


def write(
    directory: Path,
    step: int,
    state: dict[str, Any],
    about: dict[str, Any],
    partial: Path | None = None,
    configuration: str = "",
    version: int | None = None,
    found: Survey | None = None,
) -> Checkpoint:
    """Write a checkpoint of `step` with `state`: nested dicts and lists of plain values and tensors.

    `about` goes into the manifest, `configuration` (YAML) beside it; files that are in `partial` already become part of
    the checkpoint. Without a `version` it gets the next free one; `found` is the directory's survey, where the caller
    has made one. Raises CheckpointError when the disk refuses.
    """
    import torch  # where it is used: `trainloop checkpoints list` needn't wait for it

    checkpoint = Checkpoint(step, version or next_version(directory, step), directory)
    partial, needed = partial or partial_name(directory, step), size_of(state)
    newest = (found or survey(directory)).whole[:1]
    for last in (False, True):
        try:
            partial.mkdir(parents=True, exist_ok=True)
            if not has_room(partial, needed):
                raise disk_full()
            # As a stream, because torch hides the disk's own error where it opens the file itself.
            with (partial / STATE).open("wb") as stream:
                torch.save(state, stream)
            if configuration:
                (partial / CONFIGURATION).write_text(configuration)
            # Later than the newest one by its own clock too: another node's may be ahead.
            created = max([time.time(), *(one.created + 0.001 for one in newest)])
            write_manifest(partial, step, about, created)
            place(partial, checkpoint)
        except (OSError, RuntimeError) as error:
            from trainloop.checkpoints import room  # which few runs need

            if (partial / STATE).is_file():
                needed = max(needed, (partial / STATE).stat().st_size)
                (partial / STATE).unlink()  # its bytes are free for the next try
            if last or not room.make(directory, error, needed, about.get("parent")):
                # While what ranks have written before lies there: that is free afterwards, and was needed too.
                sentence = room.refusal(directory, step, error, needed)
                shutil.rmtree(partial, ignore_errors=True)
                raise CheckpointError(sentence) from error
        else:
            break
    return replace(checkpoint, created=created, about=about)


def size_of(state: Any) -> int:
    """Returns the bytes of the tensors in nested dicts and lists; memory that several share counts once."""
    memory, todo = dict[int, int](), [state]
    while todo:
        value = todo.pop()
        if hasattr(value, "untyped_storage"):
            whole = value.untyped_storage()
            memory[whole.data_ptr()] = whole.nbytes()
        elif isinstance(value, dict | list | tuple):
            todo += value.values() if isinstance(value, dict) else value
    return sum(memory.values())


def has_room(directory: Path, needed: int) -> bool:
    """Returns whether the file system of `directory` says that it has `needed` bytes for this user."""
    found = shutil.disk_usage(directory)
    return found.free >= needed or not found.total  # some file systems of a network say 0 of 0


def disk_full() -> OSError:
    """Returns the error of a disk that is full, for what isn't begun because there is no room for it."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def partial_name(directory: Path, step: int) -> Path:
    """Returns a new name for what will be the checkpoint of `step`."""
    return directory / f"{_PARTIAL}{step:09d}-{os.getpid()}-{time.monotonic_ns()}"


def inside(directory: Path, name: object) -> Path:
    """Returns the path of a file that another rank names. Raises CheckpointError where it leads out of `directory`."""
    if not isinstance(name, str) or name in ("", ".", "..") or name != Path(name).name:
        raise CheckpointError(f"another rank names a file in {directory} {name!r}, which is no file's name")
    return directory / name


def place(partial: Path, checkpoint: Checkpoint) -> None:
    """Give a complete directory the checkpoint's name; when this returns it is on the disk, whatever happens to the
    machine: its files, the entries of its directories, and its own. Only then may an older one be deleted.
    """
    inside = sorted(partial.rglob("*"), reverse=True)  # what is in a directory comes before the directory
    for path in [*inside, partial]:
        sync(path)
    partial.rename(checkpoint.path)
    sync(checkpoint.directory)


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it, so that it is there after a crash of the machine too."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def remove(checkpoint: Checkpoint) -> bool:
    """Delete a checkpoint; it is renamed first, so that half of one never looks complete. Returns whether it was
    there: another program may delete it too.
    """
    doomed = checkpoint.path.with_name(f"{_PARTIAL}deleted-{checkpoint.path.name}-{time.monotonic_ns()}")
    try:
        checkpoint.path.rename(doomed)
    except FileNotFoundError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def clean(directory: Path) -> None:
    """Delete what saves that never ended have left; only while nobody else saves here."""
    for entry in directory.glob(f"{_PARTIAL}*"):
        shutil.rmtree(entry, ignore_errors=True)


def load(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the checkpoint's state, on the CPU. Raises CheckpointError where the file is none."""
    state = load_file(checkpoint.path / STATE)
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint.path / STATE} is no state of a run")
    return state


def load_file(file: Path, *, mapped: bool = False) -> Any:
    """Returns what torch.save has written, on the CPU; with `mapped` a tensor is read when it is used. Never runs code
    from the file. Raises CheckpointError where it can't be read.
    """
    import torch

    if not file.is_file():  # a pipe would be read for ever
        raise CheckpointError(f"{file} is no file")
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        # A program that can write to the volume chooses bytes and hashes, so torch's reader may fail in any way.
        first = str(error).strip().partition("\n")[0][:300]
        raise CheckpointError(f"{file} can't be read as tensors and plain values: {first}") from error


def sync(path: Path) -> None:
    """Write a file's content, or a directory's entries, to the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
