"""Changes files all at once, as the kubelet writes ConfigMaps, Secrets and the downward API.

`pkg/volume/util/atomic_writer.go`: the files are in a separate folder, `..data` is a symbolic link to it, and every
name in the volume is a link through `..data`. So rename(2) of a new `..data` replaces all files in one step.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = "..data"


@dataclass(frozen=True)
class Content:
    """A file's content is its bytes and permission bits."""

    data: bytes
    mode: int = 0o644


def write_atomically(folder: Path, files: Mapping[str, Content]) -> bool:
    """Makes the volume contain exactly these files (relative paths); returns whether anything changed.

    Raises ValueError for a path that leaves the volume.
    """
    for path in files:
        if Path(path).is_absolute() or ".." in Path(path).parts or not path:
            raise ValueError(f"invalid path {path!r}: must be relative and not contain '..'")
    current = folder / DATA
    if current.is_symlink() and _read(current) == {path: content.data for path, content in files.items()}:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    stamp = f"{time.time_ns():x}"
    fresh = folder / f"..{stamp}"
    fresh.mkdir(mode=0o755)
    for path, content in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.data)
        target.chmod(content.mode)
    previous = current.resolve() if current.is_symlink() else None
    link = folder / f"{DATA}_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
    link.replace(current)
    names = {Path(path).parts[0] for path in files}
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path(DATA) / name)
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in names:
            entry.unlink()
    if previous is not None:
        shutil.rmtree(previous, ignore_errors=True)
    return True


def _read(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
