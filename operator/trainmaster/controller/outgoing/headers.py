"""What requests are sent with stands in a file, such as a key of a mounted Secret: headers, or a token alone.

It is read for each request, so that a token may be renewed while the operator runs.
"""

from __future__ import annotations

import re
from pathlib import Path

MOST_BYTES = 64 * 1024
# RFC 9110, 5.1 and 5.5.
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class UnusableFile(Exception):
    """The file can't be used; one sentence says why, without what stands in it."""


def read_headers(path: str | None, option: str) -> dict[str, str]:
    """Returns the headers of a file, one a line (`Name: value`); none where no file is given. Raises UnusableFile."""
    if path is None:
        return {}
    headers = {}
    for number, line in enumerate(_read(path, option).splitlines(), 1):
        if not line.strip():
            continue
        header = _HEADER.fullmatch(line)
        if header is None:
            raise UnusableFile(f"{option}: line {number} of {path} has to be 'Name: value'")
        headers[header[1]] = header[2]
    return headers


def read_token(path: str | None, option: str) -> dict[str, str]:
    """Returns the header with the bearer token of a file; none where no file is given. Raises UnusableFile."""
    if path is None:
        return {}
    token = _read(path, option).strip()
    if not _TOKEN.fullmatch(token):
        raise UnusableFile(f"{option}: {path} has to be one token, without spaces")
    return {"Authorization": f"Bearer {token}"}


def _read(path: str, option: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{option}: {path} can't be read: {error}") from error
