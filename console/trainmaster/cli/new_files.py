"""Commands write whole files or nothing, never over a user's file unasked, and never through a link."""

from __future__ import annotations

import secrets
from pathlib import Path

from trainmaster.client.errors import ClientError


def require_room(path: Path, *, force: bool) -> None:
    """Raises ClientError where a file stands that may not be replaced, or something that is no file.

    A link is never replaced nor followed: the file that it leads to may be anybody's.
    """
    if path.is_symlink():
        raise ClientError(f"{path} is a link to {path.readlink()}; name another file, or remove the link")
    if not path.exists():
        return
    if not path.is_file():
        raise ClientError(f"{path} is there and is no file; name another")
    if not force:
        raise ClientError(f"{path} is there already; --force replaces it")


def write_file(path: Path, content: bytes) -> None:
    """Writes a file beside its place and moves it there. Raises OSError with the file's own name."""
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as out:
            out.write(content)
        beside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)
