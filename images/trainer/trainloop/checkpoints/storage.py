"""A checkpoint is a directory that a single rename makes visible, and that is verified before it is used.

This module handles files; it knows nothing about ranks or about what the tensors mean. A checkpoint is a directory
`step-<step>.<version>`. Its files are written and synced under another name (`.saving-…`), which nobody reads. After
that, the directory is renamed, and the rename is synced too. If a step is saved again after a rollback, the next
version is used, so nothing is overwritten. The newest checkpoint is the last one written, even if its step is lower.

The manifest lists every file with size and SHA-256, and includes a SHA-256 of its own content. It is written after all
other files. `verify` reads every byte and compares the hashes. Hashes detect damage, but they are no signatures.

A tag is a file `tags/<tag>` whose content is a checkpoint's name. Runs resolve tags (`checkpoint.start_from`), and
`trainloop checkpoints` sets and deletes them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainloop.errors import listed

STATE = "state.pt"
CONFIGURATION = "config.yaml"
MANIFEST = "manifest.json"
#: The format's number, which is increased whenever runs can no longer read states in older formats.
FORMAT = 2
TAGS = "tags"
TAG = re.compile(r"(?!step-)[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"step-([0-9]{9,})\.([0-9]+)")
_PARTIAL = ".saving-"


class CheckpointError(RuntimeError):
    """A checkpoint can't be written or read; the message names the file."""


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint is a subdirectory of `directory`; checkpoints are sorted by step, then by version."""

    step: int
    version: int
    directory: Path
    #: The time of writing, in seconds, and the description. Both are empty if the manifest wasn't read.
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
        """Returns the run's measured results at the time of the save."""
        results = self.about.get("results")
        found = results.items() if isinstance(results, dict) else ()
        return {name: float(value) for name, value in found if isinstance(value, int | float)}


class Survey(NamedTuple):
    """A survey lists a directory's complete checkpoints, the newest first, and by name the problems of the broken ones.

    Damage within a file isn't detected.
    """

    whole: list[Checkpoint]
    broken: dict[str, str]


def named(directory: Path, name: str) -> Checkpoint | None:
    """Returns the checkpoint `name` in `directory`, which needn't exist; None if no checkpoint can have this name."""
    form = _NAME.fullmatch(name)
    checkpoint = Checkpoint(int(form[1]), int(form[2]), directory) if form else None
    return checkpoint if checkpoint and checkpoint.name == name else None


def survey(directory: Path) -> Survey:
    """Returns a survey of a directory; reads every manifest."""
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
    """Returns every complete checkpoint, the last written first."""
    return survey(directory).whole


def next_version(directory: Path, step: int) -> int:
    """Returns the next free version for a checkpoint of `step`.

    Versions that tags name aren't free, because if a checkpoint was deleted by hand, its tag must not point to a new
    checkpoint.
    """
    names = [*(entry.name for entry in directory.glob("step-*")), *tags(directory).values()]
    taken = [named(directory, name) for name in names]
    return 1 + max((one.version for one in taken if one and one.step == step), default=0)


def size_of(state: Any) -> int:
    """Returns the size in bytes of the tensors in nested dicts and lists; memory that tensors share is counted once."""
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
    """Returns whether the file system of `directory` reports `needed` free bytes for this user."""
    found = shutil.disk_usage(directory)
    return found.free >= needed or not found.total  # some network file systems report 0 of 0 bytes


def disk_full() -> OSError:
    """Returns the error of a full disk, for a write that isn't begun because too little is free."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def partial_name(directory: Path, step: int) -> Path:
    """Returns a new name for a partial checkpoint of `step`."""
    return directory / f"{_PARTIAL}{step:09d}-{os.getpid()}-{time.monotonic_ns()}"


def inside(directory: Path, name: object) -> Path:
    """Returns the path of a file named by another rank. Raises CheckpointError if the path is outside `directory`."""
    if not isinstance(name, str) or name in ("", ".", "..") or name != Path(name).name:
        raise CheckpointError(f"another rank names a file in {directory} {name!r}, which is no file's name")
    return directory / name


def place(partial: Path, checkpoint: Checkpoint) -> None:
    """Sync a complete directory with all its files, rename it to the checkpoint's name, and sync the rename.

    When this returns, the checkpoint survives a crash of the machine. Only then may an older one be deleted.
    """
    inside = sorted(partial.rglob("*"), reverse=True)  # a directory's content comes before the directory
    for path in [*inside, partial]:
        sync(path)
    partial.rename(checkpoint.path)
    sync(checkpoint.directory)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, and sync them, so that they survive a crash of the machine."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def remove(checkpoint: Checkpoint) -> bool:
    """Delete a checkpoint. It is renamed first, so that a partly deleted checkpoint never looks complete.

    Returns whether the checkpoint still existed; another program may have deleted it.
    """
    doomed = checkpoint.path.with_name(f"{_PARTIAL}deleted-{checkpoint.path.name}-{time.monotonic_ns()}")
    try:
        checkpoint.path.rename(doomed)
    except FileNotFoundError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def clean(directory: Path) -> None:
    """Delete the leftovers of unfinished saves. Call this only while no other program saves to the directory."""
    for entry in directory.glob(f"{_PARTIAL}*"):
        shutil.rmtree(entry, ignore_errors=True)


def load(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the checkpoint's state, on the CPU. Raises CheckpointError if the file contains no state."""
    state = load_file(checkpoint.path / STATE)
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint.path / STATE} is no state of a run")
    return state


def load_file(file: Path, *, mapped: bool = False) -> Any:
    """Returns the content of a torch.save file, on the CPU. If `mapped` is true, each tensor is read when it is used.

    Never runs code from the file. Raises CheckpointError if the file can't be read.
    """
    import torch

    if not file.is_file():  # reading a pipe would never end
        raise CheckpointError(f"{file} is no file")
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        # A program that can write to the volume can choose the bytes and their hashes, so torch may raise any error.
        first = str(error).strip().partition("\n")[0][:300]
        raise CheckpointError(f"{file} can't be read as tensors and plain values: {first}") from error


def sync(path: Path) -> None:
    """Write a file's content, or a directory's entries, to the disk before returning."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, step: int, about: dict[str, Any], created: float | None = None) -> None:
    """Write a manifest that describes all files in `folder` and contains `about`."""
    files = {}
    (folder / MANIFEST).unlink(missing_ok=True)  # if an earlier try filled the disk, it may have left half a manifest
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[str(file.relative_to(folder))] = {"sha256": _digest(file), "bytes": file.stat().st_size}
    body = {"format": FORMAT, "step": step, "created": created or time.time(), "about": about, "files": files}
    manifest = {**body, "sha256": _digest_of_json(body)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest. Raises OSError if it can't be read, and CheckpointError if its content is invalid."""
    file = folder / MANIFEST
    if folder.is_dir() and not file.is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}: something of it was deleted, or never copied")
    try:
        manifest: dict[str, Any] = json.loads(file.read_bytes())
        whole = manifest.pop("sha256") == _digest_of_json(manifest) and math.isfinite(manifest["created"])
        if whole and manifest["format"] != FORMAT:
            raise CheckpointError(f"{file} is of format {manifest['format']!r}: this version reads format {FORMAT}")
        if whole and isinstance(manifest["about"], dict) and all(_is_entry(*one) for one in manifest["files"].items()):
            return manifest
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        pass
    raise CheckpointError(f"{file} is damaged")


def inspect(folder: Path) -> dict[str, Any]:
    """Returns a checkpoint's manifest after checking the sizes of the files; doesn't read the files.

    Raises CheckpointError if there is a problem.
    """
    try:
        manifest = read_manifest(folder)
        for name, expected in manifest["files"].items():
            found = (folder / name).stat().st_size
            if not (folder / name).is_file():  # reading a pipe would never end
                raise CheckpointError(f"{folder / name} is no file")
            if found != expected["bytes"]:
                raise CheckpointError(f"{folder / name} has {found} bytes, its manifest lists {expected['bytes']}")
    except OSError as error:
        raise CheckpointError(f"{folder} can't be read: {error}") from error
    return manifest


def verify(folder: Path) -> str | None:
    """Reads every byte of the checkpoint in `folder`; returns the problem with it, or None."""
    try:
        for name, expected in inspect(folder)["files"].items():
            if _digest(folder / name) != expected["sha256"]:
                return f"{folder / name} doesn't have the SHA-256 in its manifest"
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{folder} can't be read: {error}"
    return None


def _is_entry(name: str, entry: dict[str, Any]) -> bool:
    """Returns whether a manifest's entry names a file within the same checkpoint, and contains size and hash."""
    own = name not in ("", MANIFEST) and not {"", "..", "."} & set(name.split("/")) and "\0" not in name
    return own and isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of_json(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def tags(directory: Path) -> dict[str, str]:
    """Returns the checkpoints' names by tag. Files that aren't tags are ignored."""
    files = [file for file in sorted((directory / TAGS).glob("*")) if TAG.fullmatch(file.name) and file.is_file()]
    contents = {file.name: file.read_text(errors="replace").strip() for file in files}
    return {tag: name for tag, name in contents.items() if named(directory, name)}


def set_tag(checkpoint: Checkpoint, tag: str) -> None:
    """Give a checkpoint a tag, which may move from another checkpoint. Raises CheckpointError if the tag is invalid."""
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
    """Delete a tag; its checkpoint stays. Raises CheckpointError if there is no such tag."""
    if tag not in tags(directory):
        raise CheckpointError(f"{directory} has no tag {tag!r}: it has {listed(sorted(tags(directory))) or 'none'}")
    (directory / TAGS / tag).unlink()
    sync(directory / TAGS)


def resolve(directory: Path, tag_or_name: str) -> Checkpoint:
    """Returns the checkpoint in `directory` with this tag or name. Raises CheckpointError if there is none."""
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
