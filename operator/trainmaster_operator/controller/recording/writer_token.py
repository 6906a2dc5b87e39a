"""The history's writer token stands in a file, such as a key of a mounted Secret.

It is read for each request, so that it may be renewed while the operator runs.
"""

from __future__ import annotations

import re
from pathlib import Path

MOST_BYTES = 64 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")


class UnusableFile(Exception):
    """The file can't be used; one sentence says why, without the file's content."""


def read_token(path: str | None, option: str) -> dict[str, str]:
    """Returns the header with the bearer token of a file; none where no file is given. Raises UnusableFile."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            token = file.read(MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{option}: {path} can't be read: {error}") from error
    if not _TOKEN.fullmatch(token):
        raise UnusableFile(f"{option}: {path} has to be one token, without spaces")
    return {"Authorization": f"Bearer {token}"}
