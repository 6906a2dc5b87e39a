"""A folder becomes an archive that is the same bytes for the same files, whoever makes it and when.

What `.gitignore` and `.trainmasterignore` leave out (each folder's own, as git reads them), caches and environments
stay behind. A link out of the folder and what is no file stay behind too, and are named: a script may want them.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainmaster.client.errors import InvalidRequest
from trainmaster.wire.limits import MAX_CODE_BYTES, MAX_CODE_FILES, MAX_UNPACKED_CODE_BYTES

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".trainmasterignore")
ALWAYS_LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "__pycache__",
        "node_modules",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
    }
)
# Files that a refusal names, the largest first.
NAMED_FILES = 5
_KB = 1000
_MB = 1_000_000


@dataclass(frozen=True)
class Archive:
    """Archive is a tar file, compressed with gzip, and what is in it.

    `sizes` has the bytes of each file by its path. `left_out` names what was found and isn't in it, apart from what
    ignore files and caches leave out. `folder` is where the files are from; empty: no folder.
    """

    data: bytes
    digest: str
    sizes: Mapping[str, int]
    left_out: tuple[str, ...] = ()
    folder: str = field(default="", compare=False)

    def largest(self) -> str:
        """Returns the largest files with their sizes, for a sentence."""
        return _largest(self.sizes)


def archive_folder(folder: str | Path) -> Archive:
    """Returns the archive of a folder's code. Raises InvalidRequest for what no job can take."""
    root = Path(folder)
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise InvalidRequest(f"{folder} {what}: give the folder that the code is in, such as .")
    files: dict[str, bytes | str] = {}
    executables: set[str] = set()
    left_out: list[str] = []
    total = 0
    for path, found in _walk(root, PurePosixPath(), (), left_out):
        name = str(path)
        place = root / path
        if stat.S_ISLNK(found.st_mode):
            files[name] = str(place.readlink())
            continue
        total += found.st_size
        if total > MAX_UNPACKED_CODE_BYTES or len(files) >= MAX_CODE_FILES:
            sizes = {**_sizes(files), name: found.st_size}
            raise InvalidRequest(
                f"{folder} has more than {MAX_CODE_FILES} files or {size_text(MAX_UNPACKED_CODE_BYTES)}; leave data "
                f"and checkpoints out by a .trainmasterignore: the largest are {_largest(sizes)}"
            )
        try:
            files[name] = place.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{place} can't be read: {error.strerror}; make it readable, or ignore it") from error
        if found.st_mode & stat.S_IXUSR:
            executables.add(name)
    if not any(isinstance(content, bytes) for content in files.values()):
        raise InvalidRequest(f"{folder} has no files, apart from what is ignored; give the folder that the code is in")
    return _pack(files, executables, tuple(left_out), str(folder))


def archive_files(files: Mapping[str, bytes]) -> Archive:
    """Returns the archive of files by their paths in it. Raises InvalidRequest where they are too large."""
    return _pack(dict(files), set(), (), "")


def size_text(count: int) -> str:
    """Returns a number of bytes for a sentence: 512 bytes, 34.1 KB, 1.5 MB."""
    if count < _KB:
        return f"{count} byte{'' if count == 1 else 's'}"
    # What would be rounded to 1000.0 KB is 1.0 MB.
    return f"{count / _KB:.1f} KB" if count < _MB - _KB / 20 else f"{count / _MB:.1f} MB"


def _walk(
    root: Path, folder: PurePosixPath, ignores: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...], left_out: list[str]
) -> Iterator[tuple[PurePosixPath, os.stat_result]]:
    """Yields files and links below a folder in the order of their names."""
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InvalidRequest(
            f"{root / folder} can't be read: {error.strerror}; make it readable, or ignore it"
        ) from error
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names:
        return
    lines = [line for name in IGNORE_FILES if name in names for line in _lines(root / folder / name)]
    if lines:
        # Here, because no other command needs it.
        from pathspec import GitIgnoreSpec

        ignores = (*ignores, (folder, GitIgnoreSpec.from_lines(lines)))
    for entry in entries:
        path = folder / entry.name
        found = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(found.st_mode)
        if entry.name in ALWAYS_LEFT_OUT or _is_ignored(path, ignores, is_folder=is_folder):
            continue
        if not _is_portable(entry.name):
            left_out.append(f"{path} (its name is no UTF-8)")
        elif is_folder:
            yield from _walk(root, path, ignores, left_out)
        elif stat.S_ISLNK(found.st_mode) and not _stays_inside(path, str((root / path).readlink())):
            left_out.append(f"{path} (a link out of the folder)")
        elif stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            yield path, found
        else:
            left_out.append(f"{path} (not a file)")


def _is_ignored(
    path: PurePosixPath, ignores: tuple[tuple[PurePosixPath, GitIgnoreSpec], ...], *, is_folder: bool
) -> bool:
    """Returns whether ignore files leave a path out: the nearest one that says anything of it counts."""
    for folder, spec in reversed(ignores):
        decided = spec.check_file(f"{path.relative_to(folder)}{'/' if is_folder else ''}").include
        if decided is not None:
            return decided
    return False


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}; make it readable, or remove it") from error


def _is_portable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stays_inside(path: PurePosixPath, target: str) -> bool:
    if target.startswith("/"):
        return False
    end = posixpath.normpath(path.parent / target)
    return end != ".." and not end.startswith("../")


def _pack(files: Mapping[str, bytes | str], executables: set[str], left_out: tuple[str, ...], folder: str) -> Archive:
    """Returns the archive of files (bytes) and links (their targets)."""
    packed = io.BytesIO()
    # The name, time and owner of a file's making are no part of it.
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            content = files[name]
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size, member.mode = len(content), 0o755 if name in executables else 0o644
                archive.addfile(member, io.BytesIO(content))
    data = gzip.compress(packed.getvalue(), 9 if packed.tell() < _MB else 6, mtime=0)
    sizes = _sizes(files)
    if len(data) > MAX_CODE_BYTES:
        raise InvalidRequest(
            f"the code has {size_text(len(data))} compressed, and a job takes {size_text(MAX_CODE_BYTES)} at most; "
            f"leave data and checkpoints out by a .trainmasterignore: the largest are {_largest(sizes)}"
        )
    return Archive(data, sha256(data).hexdigest(), sizes, left_out, folder)


def _sizes(files: Mapping[str, bytes | str]) -> dict[str, int]:
    return {name: len(content) for name, content in files.items()}


def _largest(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:NAMED_FILES]
    return ", ".join(f"{name} ({size_text(sizes[name])})" for name in largest)
