"""A checkpoint is verified by its manifest's hashes, then by the loss that it was saved with.

The manifest names every file of a checkpoint with its size and SHA-256, and has a SHA-256 of its own. It is written
after all other files. Before a checkpoint is loaded every byte is compared with it (`verify`), and after it was loaded
the loss of a few stored samples is computed again (`computes_the_same`). Hashes find damage, they are no signatures.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

MANIFEST = "manifest.json"
#: Raised when a run could no longer read the state of an older one.
FORMAT = 2


class CheckpointError(RuntimeError):
    """A checkpoint can't be written or read; the message names the file."""


def write_manifest(folder: Path, step: int, about: dict[str, Any], created: float | None = None) -> None:
    """Write the manifest of all files that are in `folder`; `about` is part of it."""
    files = {}
    (folder / MANIFEST).unlink(missing_ok=True)  # of a try that a full disk cut off
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[str(file.relative_to(folder))] = {"sha256": _digest(file), "bytes": file.stat().st_size}
    body = {"format": FORMAT, "step": step, "created": created or time.time(), "about": about, "files": files}
    manifest = {**body, "sha256": _digest_of_json(body)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest. Raises CheckpointError where there is none that can be used, OSError where it can't be
    read.
    """
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
    """Returns the manifest of a checkpoint whose files are there, with the sizes that it says; reads none of them.

    Raises CheckpointError with what is wrong.
    """
    try:
        manifest = read_manifest(folder)
        for name, expected in manifest["files"].items():
            found = (folder / name).stat().st_size
            if not (folder / name).is_file():  # a pipe would be read for ever
                raise CheckpointError(f"{folder / name} is no file")
            if found != expected["bytes"]:
                raise CheckpointError(f"{folder / name} has {found} bytes, its manifest says {expected['bytes']}")
    except OSError as error:
        raise CheckpointError(f"{folder} can't be read: {error}") from error
    return manifest


def verify(folder: Path) -> str | None:
    """Returns what is wrong with the checkpoint in `folder`, or None; reads every byte."""
    try:
        for name, expected in inspect(folder)["files"].items():
            if _digest(folder / name) != expected["sha256"]:
                return f"{folder / name} doesn't have the SHA-256 that its manifest says"
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{folder} can't be read: {error}"
    return None


def computes_the_same(trainer: Trainer, expected: float | None) -> bool:
    """Returns whether the loaded model computes the loss of the stored samples that it was saved with, on all ranks."""
    if expected is None:
        return True
    whole = {trainer.precision.compute, trainer.state.precision} <= {"fp32", "fp64", ""}
    tolerance = 1e-4 if whole else 2e-2
    loss = trainer.evaluator.sample_loss()
    both_nan = math.isnan(loss) and math.isnan(expected)
    agrees = both_nan or math.isclose(loss, expected, rel_tol=tolerance, abs_tol=tolerance)
    return trainer.world.sum([float(not agrees)])[0] == 0


def _is_entry(name: str, entry: dict[str, Any]) -> bool:
    """Returns whether a manifest names a file of its own checkpoint, with size and hash."""
    own = name not in ("", MANIFEST) and not {"", "..", "."} & set(name.split("/")) and "\0" not in name
    return own and isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of_json(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
