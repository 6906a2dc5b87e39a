"""A directory's checkpoints are listed from their manifests, and found by the names that users enter.

A run may write and delete in the directory at the same time, or the directory may belong to no run. So each entry
becomes a `Version` with a state, never an error. Only names, manifests and file sizes are read, so torch isn't needed.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.storage import (
    CONFIGURATION,
    FORMAT,
    MANIFEST,
    Checkpoint,
    CheckpointError,
    read_manifest,
    verify,
)
from trainloop.errors import TrainingError, listed

#: The state of a version whose files all exist, with the sizes in the manifest. Only `verify` reads the files' bytes.
COMPLETE = "complete"


class CommandError(TrainingError):
    """The command failed; the message is meant for the user."""


class UsageError(CommandError):
    """The command's arguments make no sense."""

    exit_code = 2


@dataclass(frozen=True)
class Version:
    """A version is one checkpoint of a directory, with its manifest's values; values that are missing are None."""

    checkpoint: Checkpoint
    state: str
    bytes: int
    tags: list[str]
    created: float | None = None  # seconds since 1970
    parent: str | None = None  # the parent's name, or its path if it is in another directory
    start_from: str | None = None
    attempt: int | None = None
    world_size: int | None = None
    results: dict[str, float] = field(default_factory=dict)
    code: str | None = None
    configuration: str | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    def fields(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        about = {name: value for name, value in asdict(self).items() if name != "checkpoint"}
        return {"name": self.name, "step": self.checkpoint.step, "version": self.checkpoint.version, **about}


def versions(directory: Path) -> list[Version]:
    """Returns all checkpoints of `directory`, including unusable ones, the most recently written first.

    Raises CommandError if the directory doesn't exist or has no checkpoint.
    """
    if storage.named(directory.parent, directory.name) and directory.is_dir():
        raise CommandError(f"{directory} is a checkpoint itself: name the directory that it is in")
    if not directory.is_dir():
        raise CommandError(f"{directory} is no directory" if directory.exists() else f"{directory} isn't there")
    try:
        tags = storage.tags(directory)
        present = filter(None, (storage.named(directory, path.name) for path in directory.iterdir()))
        found = [_read(checkpoint, tags) for checkpoint in present]
    except OSError as error:
        raise CommandError(f"{directory} can't be read: {error.strerror}") from error
    found.sort(key=lambda one: (one.created or _modified(one.path), one.checkpoint), reverse=True)
    if not found:
        inner = next(
            (path for path in sorted(directory.glob("*/step-*")) if storage.named(path.parent, path.name)), None
        )
        hint = f"; {inner.parent} has some" if inner else ""
        raise CommandError(f"{directory} has no checkpoints{hint}")
    return found


def find(directory: Path, text: str, all_versions: Sequence[Version] | None = None) -> Version:
    """Returns the checkpoint that `text` names.

    `text` is the checkpoint's name, a tag, a step (`1300` for the step's newest version, or `1300.2`), `latest`,
    `best`, `best:accuracy`, or the unambiguous beginning of a name. If there is no match, raises CommandError with
    similar names.
    """
    found = list(all_versions) if all_versions is not None else versions(directory)
    kind, _, measured = text.partition(":")
    if text == "latest":
        return _latest(directory, found)
    if kind == "best":
        return _best(directory, found, measured)
    named = {version.name: version for version in found}
    tagged = {tag: version for version in found for tag in version.tags}
    if exact := named.get(text) or tagged.get(text):
        return exact
    if number := re.fullmatch(r"0*(\d{1,18})(?:\.(\d{1,9}))?", text):
        of_step = [version for version in found if version.checkpoint.step == int(number[1])]
        matching = [one for one in of_step if number[2] is None or one.checkpoint.version == int(number[2])]
        if matching:
            return matching[0]
        raise CommandError(_no_step(directory, found, int(number[1]), of_step))
    beginning = [version for name, version in named.items() if text.startswith("step-") and name.startswith(text)]
    if len(beginning) == 1:
        return beginning[0]
    if beginning:
        raise CommandError(
            f"{text!r} is the beginning of {listed([version.name for version in beginning], 4)}: name one of them"
        )
    if dangling := storage.tags(directory).get(text):
        raise CommandError(f"{text} is a tag of {dangling}, which isn't there")
    near = difflib.get_close_matches(text, [*tagged, *named, "latest", "best"], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the newest is {found[0].name}"
    raise CommandError(f"{directory} has no checkpoint {text!r}: {hint}")


def checked(version: Version) -> None:
    """Reads every byte of a checkpoint, and raises CommandError if it can't be used."""
    problem = verify(version.path) or (version.state if version.state != COMPLETE else None)
    if problem is not None:
        gone = not version.path.exists()
        raise CommandError(
            f"{version.path} was deleted just now" if gone else f"{version.name} can't be used: {problem}"
        )


def reserved(name: str) -> bool:
    """Returns whether `find` reserves this name, so that it can't be a tag."""
    return name in ("latest", "best") or re.fullmatch(r"[0-9]+(\.[0-9]+)?", name) is not None


def lineage(version: Version) -> Iterator[tuple[str, Version | None]]:
    """Yields a checkpoint, then the checkpoint that its run continued from or saved before, and so on.

    Such predecessors may be in other directories. If one is missing, it is yielded as None, and nothing follows.
    """
    current: Version | None = version
    seen: set[Path] = set()  # ends the loop if manifests name each other in a circle
    name = version.name
    while current is None or current.path not in seen:
        yield name, current
        if current is None or current.parent is None:
            return
        seen.add(current.path)
        name = current.parent
        directory = Path(name).parent if "/" in name else current.checkpoint.directory
        parent = storage.named(directory, Path(name).name)
        child, current = current, _read(parent, {}) if parent and parent.path.is_dir() else None
        if current is not None and (current.created or 0) > (child.created or math.inf):
            current = None  # isn't the parent, which was deleted, but a later checkpoint with the same name


def _read(checkpoint: Checkpoint, tags: dict[str, str]) -> Version:
    """Returns what is known about a checkpoint, which may be deleted at any time."""
    mine = sorted(tag for tag, name in tags.items() if name == checkpoint.name)
    state, manifest = _manifest(checkpoint.path)
    if manifest is None:
        return Version(checkpoint, state, _bytes_on_disk(checkpoint.path), mine)
    about, files = manifest["about"], manifest["files"]
    measured = _of(dict, about.get("results")) or {}
    other = f"of step {manifest.get('step')}" if manifest.get("step") != checkpoint.step else None
    return Version(
        checkpoint,
        other or next(filter(None, (_lacks(checkpoint.path / name, files[name]["bytes"]) for name in files)), COMPLETE),
        sum(entry["bytes"] for entry in files.values()),
        mine,
        _seconds(manifest["created"]),
        _of(str, about.get("parent")),
        _of(str, about.get("start_from")),
        _of(int, about.get("attempt")),
        _of(int, about.get("world_size")),
        {name: float(value) for name, value in measured.items() if _of((int, float), value) is not None},
        _of(str, about.get("code")),
        _of(str, about.get("configuration")),
        files,
    )


def _manifest(folder: Path) -> tuple[str, dict[str, Any] | None]:
    """Returns a checkpoint's state and manifest. If the manifest can't be used, it is None, and the state says why."""
    file = folder / MANIFEST
    try:
        if not file.is_file():
            return "no manifest", None
        return "", read_manifest(folder)
    except OSError as error:
        return f"unreadable: {error.strerror}", None
    except (CheckpointError, RecursionError):
        return _other_format(file) or "damaged manifest", None


def _other_format(file: Path) -> str | None:
    """Returns the format if the manifest was written by another version of the loop, else None."""
    try:
        number = json.loads(file.read_bytes())["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return f"format {number}" if isinstance(number, int) and number != FORMAT else None


def _lacks(file: Path, expected: int) -> str | None:
    """Returns a problem with a file's size, or None."""
    try:
        there = file.stat().st_size if file.is_file() else None
    except OSError:
        there = None
    if there is None:
        return f"no {file.name}"
    return None if there == expected else f"{file.name} cut short" if there < expected else f"{file.name} too long"


def _modified(folder: Path) -> float:
    """Returns a directory's modification time, which is used if the manifest has no time of writing."""
    try:
        return folder.lstat().st_mtime
    except OSError:
        return 0.0


def _bytes_on_disk(folder: Path) -> int:
    """Returns the size in bytes of all files of a checkpoint whose manifest can't be read."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except OSError:  # deleted since it was listed
                continue
    return total


def _latest(directory: Path, found: Sequence[Version]) -> Version:
    """Returns the newest checkpoint that is usable according to its manifest and its files' sizes."""
    usable = next((version for version in found if version.state == COMPLETE), None)
    if usable is None:
        raise CommandError(
            f"{directory} has no checkpoint that is complete: {found[0].name} has state {found[0].state!r}"
        )
    return usable


def own_best(found: Sequence[Version]) -> str | None:
    """Returns the result by which the run's newest configuration defines the best one (`loss:min`), or None."""
    from trainloop.versions.catalog import configuration, setting

    newest = next(
        (document for version in found if version.state == COMPLETE and (document := configuration(version))), None
    )
    name, order = setting(newest, "checkpoint", "best"), setting(newest, "checkpoint", "best_is")
    return f"{name}:{order}" if name and order in ("max", "min") else None


def _best(directory: Path, found: Sequence[Version], measured: str) -> Version:
    """Returns the complete checkpoint with the best result.

    `measured` is a result's name, with `:min` if less is better. If it is empty, the run's `checkpoint.best` is used.
    """
    own = own_best(found)
    known = sorted({result for version in found for result in version.results})
    have = f"there are {', '.join(known)}" if known else "no checkpoint has results"
    if not measured and own is None:
        raise CommandError(
            f"best needs a result: the run's configuration has no checkpoint.best, use best:NAME ({have})"
        )
    name, _, order = (measured or own or "").partition(":")
    own_name, _, own_order = (own or "").partition(":")
    order = order or (own_order if name == own_name else "max")
    if order not in ("max", "min"):
        raise CommandError(f"best:{measured} ends with neither :max nor :min")
    best = retention.best(storage.complete(directory), name, order)
    version = next((one for one in found if one.checkpoint == best), None)
    if version is None:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise CommandError(
            f"{directory} has no complete checkpoint with a result {name!r}: "
            + (f"did you mean {near[0]!r}?" if near and near[0] != name else have)
        )
    return version


def _no_step(directory: Path, found: Sequence[Version], step: int, of_step: Sequence[Version]) -> str:
    if of_step:
        return f"{directory} has of step {step} only {listed([version.name for version in of_step], 4)}"
    steps = {version.checkpoint.step for version in found}
    below = max((one for one in steps if one < step), default=None)
    above = min((one for one in steps if one > step), default=None)
    nearest = [str(one) for one in (below, above) if one is not None]
    verb = "is" if len(nearest) == 1 else "are"
    return f"{directory} has no checkpoint of step {step}: the nearest {verb} {' and '.join(nearest)}"


def _seconds(value: object) -> float | None:
    """Returns a manifest's time if a calendar can represent it, else None."""
    if isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 1e11:
        return float(value)
    return None


def _of(kind: type[Any] | tuple[type[Any], ...], value: object) -> Any:
    """Returns a manifest's value if it has the required type, else None."""
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def configuration(version: Version) -> dict[str, Any] | None:
    """Returns the settings of a checkpoint's run; None for older checkpoints, which don't contain settings.

    Raises CommandError if the file contains no settings.
    """
    file = version.path / CONFIGURATION
    if CONFIGURATION not in version.files or not file.is_file():
        return None
    try:
        document = yaml.load(file.read_text("utf-8"), _WithoutAliases)
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} is no configuration: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise CommandError(f"{file} is no configuration: it has no fields")
    return document


def setting(document: Any, *path: str) -> Any:
    """Returns the value at a path in a configuration; None if there is no such field."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


class _WithoutAliases(yaml.SafeLoader):
    """This loader refuses aliases, which can make a small file an endless document; the loop writes none."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)
