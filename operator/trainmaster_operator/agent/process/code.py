"""The user's code is unpacked from the pod's mounted archive into a folder with a constant path and inode.

The folder is the working directory of all the agent's children, so old files are replaced in place, and only while no
rank lives. The ranks' own files stay; the old archive's files and their bytecode are removed. All files of an archive
get the same new modification time. Python's bytecode and the warm process compare such times, and so never mistake old
code for new.

The archive must match the digest that the operator has signed. Its content is checked and bounded nevertheless: only
files, folders and links inside the folder are written, one by one, and never through a link.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple, Optional

from trainmaster_operator.agent.loop import Loop, Timer
from trainmaster_operator.agent.planner.events import CodeFetched, CodeRefused, Event
from trainmaster_operator.agent.process.state_folder import write_atomically
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.limits import MAX_CODE_BYTES, MAX_CODE_FILES, MAX_UNPACKED_CODE_BYTES
from trainmaster_operator.wire.names import CODE_ARCHIVE

POLL_SECONDS = 0.05
WAIT_SECONDS = 60.0
"""How long to wait for an archive. In this time a volume that was mounted too early is refreshed several times
(`touched`)."""
_CHUNK = 1 << 20
_HEADERS = 4096
"""The most bytes of a member's headers. They count towards the limit of an unpacked archive."""


class RefusedArchive(Exception):
    """The archive contains something that an archive of code must not contain."""


class UnreadableArchive(Exception):
    """The file can't be read, so it may or may not be the archive."""


class Installed(NamedTuple):
    """Installed describes an archive's files in the folder."""

    digest: str
    """The archive's digest; empty if a replacement of the files wasn't finished."""
    time: int
    """The files' modification time (whole seconds)."""
    files: tuple[str, ...]


class CodeFolder:
    """CodeFolder finds an archive and unpacks it, in one thread at a time.

    A thread does it because the archive may be on a dead file server, and the agent must answer nevertheless. All
    methods but `_search` run in the loop's thread.
    """

    def __init__(self, loop: Loop, settings: AgentSettings, put: Callable[[Event], None]) -> None:
        self._loop, self._settings, self._put = loop, settings, put
        self.folder = os.path.join(settings.state_dir, "code")
        self._stamp = os.path.join(settings.state_dir, "code.json")
        self._wanted = ""
        self._limit: Optional[Timer] = None
        self._works = False
        """Whether a thread is running."""
        self._unpacks = False
        self._problem = ""
        """Why the thread can't read a file."""

    def enter(self, environ: dict[str, str]) -> None:
        """Make the folder the working directory, and the first entry of PYTHONPATH."""
        os.makedirs(self.folder, exist_ok=True)
        os.chdir(self.folder)
        environ["PWD"] = self.folder
        environ["PYTHONPATH"] = ":".join(filter(None, (self.folder, environ.get("PYTHONPATH"))))

    def fetch(self, digest: str) -> None:
        """Put `CodeFetched` once the folder has this archive, or `CodeRefused`."""
        if self._limit is not None:
            self._limit.cancel()
        self._wanted, self._problem = digest, ""
        self._limit = self._loop.call_later(WAIT_SECONDS, self._give_up)
        if not self._works:
            self._start(digest)

    def _start(self, digest: str) -> None:
        if read_installed(self._stamp).digest == digest:
            self._end(CodeFetched(digest))
            return
        # Imported here, because most jobs bring no code.
        import threading

        self._works = True
        threading.Thread(target=self._search, args=(digest,), name="code", daemon=True).start()

    def _search(self, digest: str) -> None:
        event: Optional[Event] = None
        seen: dict[str, tuple[int, ...]] = {}
        try:
            while event is None and self._wanted == digest:
                path = self._changed_file(digest, seen)
                if path is None:
                    time.sleep(POLL_SECONDS)
                elif self._install(path, digest):
                    event = CodeFetched(digest)
        except OSError as error:
            # The error's file name isn't used: a full disk gives none, and a failed rename gives the source's name.
            event = CodeRefused(digest, f"cannot unpack the code into {self.folder}: {error.strerror or error}")
        except Exception as error:
            # All errors are caught. Otherwise the attempt would wait for a dead thread.
            refused = isinstance(error, RefusedArchive)
            reason = str(error) if refused else f"{type(error).__name__}: {str(error)[:200]}"
            event = CodeRefused(digest, f"the code of {self._settings.code_source} can't be unpacked: {reason}")
        self._loop.call_soon(lambda: self._worked(digest, event))

    def _changed_file(self, digest: str, seen: dict[str, tuple[int, ...]]) -> Optional[str]:
        """Returns the archive's path if this version of the file hasn't been read yet, else None."""
        for name in (f"{digest}.tar.gz", CODE_ARCHIVE):
            path = os.path.join(self._settings.code_dir, name)
            try:
                found = os.stat(path)
            except OSError:
                continue
            version = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
            if seen.get(path) != version:
                seen[path] = version
                return path
        return None

    def _install(self, path: str, digest: str) -> bool:
        def unpack() -> None:
            self._unpacks = True

        problem, self._problem = self._problem, f"nothing comes from {path}"
        try:
            return install(path, digest, self.folder, self._stamp, unpack)
        except UnreadableArchive as error:
            problem = str(error)
            return False
        finally:
            self._problem, self._unpacks = problem, False

    def _worked(self, digest: str, event: Optional[Event]) -> None:
        self._works = False
        if digest == self._wanted and event is not None:
            self._end(event)
        elif self._wanted:
            self._start(self._wanted)

    def _give_up(self) -> None:
        if self._unpacks:
            # There is no limit for unpacking, which may take as long as the disk needs.
            self._limit = self._loop.call_later(WAIT_SECONDS, self._give_up)
            return
        code, source, waited = self._wanted[:12], self._settings.code_source, f"after {WAIT_SECONDS:g} s"
        if self._problem:
            reason = f"the code {code} of {source} can't be read, {waited}: {self._problem}; check the volume"
        else:
            reason = f"{source} doesn't have the code {code} that spec.code.digest names, {waited}; push the code again"
            reason = f"{reason} (kubectl dtj push)"
        self._end(CodeRefused(self._wanted, reason))

    def _end(self, event: Event) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._wanted = ""
        self._put(event)


def install(path: str, digest: str, folder: str, stamp: str, unpack: Callable[[], None] = lambda: None) -> bool:
    """Unpack an archive's files into the folder; returns False if the file has another digest.

    `unpack` is called once, after the digest has matched. Raises RefusedArchive, UnreadableArchive, and OSError if the
    folder can't be written.
    """
    staging = f"{folder}.new"
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open(path, "rb"))
            if os.fstat(file.fileno()).st_size > MAX_CODE_BYTES:
                raise UnreadableArchive(f"{path} has more than {MAX_CODE_BYTES >> 20} MiB")
            if _Hashing(file).digest() != digest:
                return False
        except FileNotFoundError:
            # The file is missing because the volume is switching to another version.
            return False
        except OSError as error:
            raise UnreadableArchive(f"{path}: {error.strerror or error}") from error
        unpack()
        try:
            _install(file, digest, folder, stamp, staging)
        finally:
            # The staged files are removed, because a full disk would stay full otherwise.
            shutil.rmtree(staging, ignore_errors=True)
    return True


def _install(file: BinaryIO, digest: str, folder: str, stamp: str, staging: str) -> None:
    before = read_installed(stamp)
    shutil.rmtree(staging, ignore_errors=True)
    os.makedirs(staging)
    moment = max(int(time.time()), before.time + 1)
    file.seek(0)
    hashing = _Hashing(file)
    files = _unpack(hashing, staging, moment)
    if hashing.digest() != digest:
        raise RefusedArchive("it was changed while it was read")
    everything = sorted({*before.files, *files})
    write_atomically(stamp, json.dumps(Installed("", moment, tuple(everything))._asdict()))
    for folder_name in {os.path.dirname(name) for name in everything}:
        shutil.rmtree(os.path.join(folder, folder_name, "__pycache__"), ignore_errors=True)
    for name in set(before.files) - set(files):
        _remove(os.path.join(folder, name))
    for name in files:
        _make_folders(folder, os.path.dirname(name))
        target = os.path.join(folder, name)
        if _is_folder(target):
            shutil.rmtree(target)
        os.replace(os.path.join(staging, name), target)
    _remove_empty(folder, before.files)
    write_atomically(stamp, json.dumps(Installed(digest, moment, tuple(files))._asdict()))


def read_installed(stamp: str) -> Installed:
    """Returns the description of the archive in the folder; an empty description if the archive isn't known."""
    try:
        with open(stamp, encoding="utf-8") as file:
            data = json.load(file)
        return Installed(str(data["digest"]), int(data["time"]), tuple(map(str, data["files"])))
    except (OSError, ValueError, KeyError, TypeError):
        return Installed("", 0, ())


class _Hashing:
    """_Hashing hashes exactly the bytes that are read, because the file may change between two reads."""

    def __init__(self, file: BinaryIO) -> None:
        import hashlib

        self._file, self._found, self._size = file, hashlib.sha256(), 0

    def read(self, size: int = _CHUNK) -> bytes:
        """Returns the next bytes. Raises RefusedArchive if the file is too long for an archive."""
        data = self._file.read(size)
        self._found.update(data)
        self._size += len(data)
        if self._size > MAX_CODE_BYTES:
            raise RefusedArchive(f"it has more than {MAX_CODE_BYTES >> 20} MiB")
        return data

    def digest(self) -> str:
        """Reads the rest of the file, and returns the file's digest."""
        while self.read():
            continue
        return self._found.hexdigest()


def _unpack(packed: Any, staging: str, moment: int) -> list[str]:
    """Unpacks into `staging`; returns the names of the written files and links."""
    import tarfile
    import zlib

    files: dict[str, None] = {}
    folders: set[str] = {""}
    size = 0
    try:
        for member, content in _members(packed):
            if member.isdir() and all(part in ("", ".") for part in member.name.split("/")):
                continue
            name = _safe_name(member.name)
            parent = os.path.dirname(name)
            if not files.keys().isdisjoint(accumulate(parent.split("/"), os.path.join)):
                raise RefusedArchive(f"{member.name[:200]!r} is below a file or a link")
            _make_folders(staging, name if member.isdir() else parent)
            if member.isdir():
                folders.add(name)
                continue
            if name in files or name in folders or len(files) >= MAX_CODE_FILES:
                raise RefusedArchive(
                    f"{member.name[:200]!r} is there twice, or has more than {MAX_CODE_FILES} files beside it"
                )
            target = os.path.join(staging, name)
            if member.issym():
                os.symlink(_safe_link(name, member.linkname), target)
            elif member.isreg():
                size += member.size
                if size > MAX_UNPACKED_CODE_BYTES:
                    raise RefusedArchive(f"its files have more than {MAX_UNPACKED_CODE_BYTES >> 20} MiB")
                mode = 0o755 if member.mode & 0o100 else 0o644
                fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
                with open(fd, "wb") as written:
                    shutil.copyfileobj(content, written, _CHUNK)
            else:
                raise RefusedArchive(f"{member.name[:200]!r} is neither a file nor a folder nor a link")
            os.utime(target, (moment, moment), follow_symlinks=False)
            files[name] = None
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError, ValueError) as error:
        raise RefusedArchive(f"it is no archive (tar, gzip): {str(error)[:200]}") from error
    return list(files)


def _members(packed: Any) -> Iterator[tuple[Any, Any]]:
    import gzip
    import tarfile

    with gzip.GzipFile(mode="rb", fileobj=packed) as unpacked:
        bounded = _Bounded(unpacked)
        with tarfile.open(fileobj=bounded, mode="r|", errorlevel=1) as archive:  # type: ignore[call-overload]
            for member in archive:
                yield member, archive.extractfile(member) if member.isreg() else None


class _Bounded:
    """_Bounded refuses an endless archive, whatever its headers say."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = MAX_UNPACKED_CODE_BYTES + MAX_CODE_FILES * _HEADERS

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._file.read(size)
        except OSError as error:
            # gzip's own errors are OSErrors too, so they are converted here.
            raise RefusedArchive(f"it is no archive (tar, gzip): {str(error)[:200]}") from error
        self._left -= len(data)
        if self._left < 0:
            raise RefusedArchive(f"it has more than {MAX_UNPACKED_CODE_BYTES >> 20} MiB")
        return data


def _safe_name(name: str) -> str:
    """Returns a member's path in the folder. Raises RefusedArchive for a path outside it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise RefusedArchive(f"{name[:200]!r} is no path inside the folder")
    return "/".join(parts)


def _safe_link(name: str, target: str) -> str:
    end = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if target.startswith("/") or end == ".." or end.startswith("../"):
        raise RefusedArchive(f"{name[:200]!r} is a link out of the folder, to {target[:200]!r}")
    return target


def _make_folders(root: str, path: str) -> None:
    """Make a folder and its parents, and replace files and links of ranks that are in the way."""
    at = root
    for part in filter(None, path.split("/")):
        at = os.path.join(at, part)
        if not _is_folder(at):
            _remove(at)
            os.mkdir(at)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: str) -> None:
    # Ranks may have removed the file, or put something else in its place.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.remove(path)


def _remove_empty(root: str, files: tuple[str, ...]) -> None:
    """Remove the folders of an old archive's files that are empty now."""
    folders = {os.path.dirname(name) for name in files}
    for folder in sorted((folders | {os.path.dirname(each) for each in folders}) - {""}, key=len, reverse=True):
        with contextlib.suppress(OSError):  # the folder isn't empty, or never existed
            os.rmdir(os.path.join(root, folder))
