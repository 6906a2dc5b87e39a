"""Makes an archive of a folder. Equal files make equal bytes, on any machine at any time.

It leaves out caches and environments. It also leaves out files that may contain secrets, files that `.gitignore` and
`.trainmasterignore` exclude (in every folder, as in git), links that lead out of the folder, and special files. It
names all these except caches and environments, because a script may need them. Users who may read the namespace's
ConfigMaps can read a job's code, so a file that may contain secrets is included only if a `.trainmasterignore` includes
it (`!.env`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from trainmaster.client.errors import InvalidRequest
from trainmaster.client.objects import text
from trainmaster_operator.wire.limits import MAX_CODE_BYTES, MAX_CODE_FILES, MAX_UNPACKED_CODE_BYTES
from trainmaster_operator.wire.values import loads, mappings

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Size limit of an archive in a ConfigMap (bytes). Encoded in base64, such an archive stays below etcd's 1.5 MB, and a
# pod with it starts in less than a second.
MAX_CONFIG_MAP_BYTES = 700_000
OWN_IGNORE_FILE = ".trainmasterignore"
# If a folder contains both files, `.trainmasterignore` takes precedence.
IGNORE_FILES = (".gitignore", OWN_IGNORE_FILE)
# The job's annotation with the files that its code lacks: a JSON list of {"path": "data/", "why": ".gitignore"}.
LEFT_OUT_ANNOTATION = "trainmaster.dev/code-left-out"
# Limits of the annotation: its length in characters, and the number of entries.
_MOST_NOTED = 2000
_MOST_NOTED_ENTRIES = 50
ALWAYS_LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", ".venv", ".trainmaster", "__pycache__", "node_modules", ".ipynb_checkpoints"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
)
# Number of files that a message names.
NAMED_FILES = 5
SECRET = "may hold secrets; to take one along, name it in .trainmasterignore, as !{path}"
_KB = 1000
_MB = 1_000_000


@dataclass(frozen=True)
class LeftOut:
    """LeftOut is a file, a link or a folder (path/) that isn't in the archive, with the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class Archive:
    """Archive is a tar file, compressed with gzip, with a description of its content.

    `sizes` maps each file's path to its size in bytes. `left_out` names the files left out, except for caches and
    environments. `folder` is the source folder, if there is one.
    """

    data: bytes
    digest: str
    sizes: Mapping[str, int]
    left_out: tuple[LeftOut, ...] = ()
    folder: str = field(default="", compare=False)

    @property
    def fits_config_map(self) -> bool:
        """Returns whether the archive fits into a ConfigMap."""
        return len(self.data) <= MAX_CONFIG_MAP_BYTES

    def summary(self) -> str:
        """Returns a line with the number of files, the compressed size, and the files left out with the reasons."""
        files = "1 file" if len(self.sizes) == 1 else f"{len(self.sizes)} files"
        return "; ".join([f"{files}, {size_text(len(self.data))}", *([self.left()] if self.left_out else [])])

    def annotation(self) -> str | None:
        """Returns the files left out as the value of a job's annotation, folders first, or None if there are none."""
        noted: list[str] = []
        for each in sorted(self.left_out, key=lambda each: not each.path.endswith("/"))[:_MOST_NOTED_ENTRIES]:
            entry = json.dumps({"path": each.path, "why": each.reason.partition(";")[0]})
            if sum(map(len, noted)) + len(noted) + len(entry) + 2 <= _MOST_NOTED:
                noted.append(entry)
        return f"[{','.join(noted)}]" if noted else None

    def left(self) -> str:
        """Returns the files left out with the reasons, as a part of a line. Empty if no files were left out."""
        reasons: dict[str, list[str]] = {}
        for each in self.left_out:
            reasons.setdefault(each.reason, []).append(each.path)
        some = [f"{_some(paths)} ({reason.format(path=paths[0])})" for reason, paths in reasons.items()]
        return f"left out: {'; '.join(some)}" if some else ""


def left_out_of(job: object) -> tuple[LeftOut, ...]:
    """Returns the files that a job's code lacks, as far as its annotation names them. Anybody may have written it."""
    value = text(job, "metadata", "annotations", LEFT_OUT_ANNOTATION)
    try:
        noted = mappings(loads(value)) if len(value) <= _MOST_NOTED else ()
    except ValueError:
        return ()
    found = (LeftOut(text(each, "path"), text(each, "why")) for each in noted[:_MOST_NOTED_ENTRIES])
    return tuple(each for each in found if each.path)


def archive_folder(folder: str | Path) -> Archive:
    """Returns the archive of a folder's code. Raises InvalidRequest if the folder is missing, empty or too large."""
    root = Path(folder)
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise InvalidRequest(f"{folder} {what}: give the folder that the code is in, such as .")
    files: dict[str, bytes | str] = {}
    executables: set[str] = set()
    left_out: list[LeftOut] = []
    total = 0
    for path, found, is_named in _walk(root, PurePosixPath(), (), left_out):
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
                f"and checkpoints out by a .trainmasterignore: the largest are {largest_files(sizes)}"
            )
        with _readable(place):
            content = place.read_bytes()
        if is_private_key(content) and not is_named:
            left_out.append(LeftOut(name, SECRET))
            continue
        files[name] = content
        if found.st_mode & stat.S_IXUSR:
            executables.add(name)
    if not any(isinstance(content, bytes) for content in files.values()):
        raise InvalidRequest(f"{folder} has no files, apart from what is ignored; give the folder that the code is in")
    return archive_files(files, executables, left_out, str(folder))


def size_text(count: int) -> str:
    """Formats a number of bytes for a message: 512 bytes, 34.1 KB, 1.5 MB."""
    if count < _KB:
        return f"{count} byte{'' if count == 1 else 's'}"
    # From 999,950 bytes, KB would round to 1000.0, so MB is used.
    return f"{count / _KB:.1f} KB" if count < _MB - _KB / 20 else f"{count / _MB:.1f} MB"


class _Ignore(NamedTuple):
    """_Ignore is an ignore file: its folder, its name and its patterns."""

    folder: PurePosixPath
    name: str
    patterns: GitIgnoreSpec


def _walk(
    root: Path, folder: PurePosixPath, ignores: tuple[_Ignore, ...], left_out: list[LeftOut]
) -> Iterator[tuple[PurePosixPath, os.stat_result, bool]]:
    """Yields the files and links below a folder, sorted by name, and whether `.trainmasterignore` includes them."""
    # Imported here, because no other command needs it.
    from pathspec import GitIgnoreSpec

    with _readable(root / folder):
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names:
        return
    ignores += tuple(
        _Ignore(folder, name, GitIgnoreSpec.from_lines(_lines(root / folder / name)))
        for name in IGNORE_FILES
        if name in names
    )
    for entry in entries:
        if entry.name in ALWAYS_LEFT_OUT:
            continue
        path = folder / entry.name
        found = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(found.st_mode)
        shown = f"{path}/" if is_folder else str(path)
        is_named, reason = _ignored(path, ignores, is_folder=is_folder)
        if any("\ud800" <= letter <= "\udfff" for letter in entry.name):
            # Python represents bytes that aren't UTF-8 by surrogates.
            left_out.append(LeftOut(shown, "no name in UTF-8"))
        elif reason is not None:
            left_out.append(LeftOut(shown, reason))
        elif is_folder:
            yield from _walk(root, path, ignores, left_out)
        elif stat.S_ISLNK(found.st_mode) and not _stays_inside(path, str((root / path).readlink())):
            left_out.append(LeftOut(shown, "a link out of the folder"))
        elif stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            yield path, found, is_named
        else:
            left_out.append(LeftOut(shown, "not a file"))


def _ignored(path: PurePosixPath, ignores: tuple[_Ignore, ...], *, is_folder: bool) -> tuple[bool, str | None]:
    """Returns whether a `.trainmasterignore` includes a path, and why the path is left out (None if it isn't)."""
    slash = "/" if is_folder else ""
    decisions = [
        (ignore.name, ignore.patterns.check_file(f"{path.relative_to(ignore.folder)}{slash}").include)
        for ignore in reversed(ignores)
    ]
    decided = [(name, include) for name, include in decisions if include is not None]
    is_named = next((not include for name, include in decided if name == OWN_IGNORE_FILE), False)
    if not is_named and secret_files().check_file(f"{path}{slash}").include:
        return False, SECRET
    name, include = next(iter(decided), ("", False))
    return is_named, name if include else None


@contextmanager
def _readable(place: Path, remedy: str = "ignore it") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{place} can't be read: {error.strerror}; make it readable, or {remedy}") from error


def _lines(path: Path) -> list[str]:
    with _readable(path, "remove it"):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _stays_inside(path: PurePosixPath, target: str) -> bool:
    if target.startswith("/"):
        return False
    end = posixpath.normpath(path.parent / target)
    return end != ".." and not end.startswith("../")


def archive_files(
    files: Mapping[str, bytes | str],
    executables: Collection[str] = (),
    left_out: Sequence[LeftOut] = (),
    folder: str = "",
) -> Archive:
    """Returns the archive of files and links. Raises InvalidRequest if the archive is too large.

    A value in `files` is a file's content (bytes) or a link's target (str).
    """
    packed = io.BytesIO()
    # The archive contains neither its own name nor times nor owners, so that equal files make equal bytes.
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
            f"leave data and checkpoints out by a .trainmasterignore: the largest are {largest_files(sizes)}"
        )
    return Archive(data, sha256(data).hexdigest(), sizes, tuple(left_out), folder)


def _sizes(files: Mapping[str, bytes | str]) -> dict[str, int]:
    return {name: len(content) for name, content in files.items()}


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - NAMED_FILES
    return ", ".join(paths[:NAMED_FILES]) + (f" and {more} more" if more > 0 else "")


def largest_files(sizes: Mapping[str, int]) -> str:
    """Returns the largest files with their sizes, for a message."""
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:NAMED_FILES]
    return ", ".join(f"{name} ({size_text(sizes[name])})" for name in largest)


# Patterns in the syntax of .gitignore.
SECRET_FILES = (
    # Environment files, except for examples that are meant to be published.
    *(".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist"),
    # Private keys and key stores.
    *("*.key", "*.pem", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx", ".ssh/", ".gnupg/"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"),
    # Clouds, clusters and registries.
    *(".aws/", ".azure/", ".gcloud/", "**/.config/gcloud/", ".boto", ".s3cfg", ".oci/"),
    "application_default_credentials.json",
    *("credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("**/.kube/config", "kubeconfig", "*.kubeconfig", ".docker/", ".dockercfg"),
    *(".vault-token", "*.tfstate", "*.tfvars"),
    # Tokens of package indexes, hubs and databases.
    *(".netrc", "_netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd"),
    *(".huggingface/", "**/huggingface/token", "**/huggingface/stored_tokens", "**/.kaggle/", "kaggle.json"),
    # Histories of shells and interpreters.
    *(".*_history", ".*history", ".*_hist", ".lesshst", ".viminfo"),
)
# The beginning and the end of the first line of a private key in PEM format, regardless of the file's name.
_PEM, _PRIVATE = b"-----BEGIN ", b"PRIVATE KEY-----"


@cache
def secret_files() -> GitIgnoreSpec:
    """Returns the patterns that match the paths of secrets."""
    # Imported here, because no other command needs it.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(SECRET_FILES)


def is_private_key(content: bytes) -> bool:
    """Returns whether a file is a private key in PEM."""
    first, _, _ = content[:200].lstrip().partition(b"\n")
    return first.startswith(_PEM) and first.rstrip().endswith(_PRIVATE)
