"""The headers of the webhook's requests stand in a file, such as a key of a mounted Secret: one a line, `Name: value`.

It is read for each event, so that a token may be renewed while the operator runs.
"""

from __future__ import annotations

import re
from pathlib import Path

MOST_BYTES = 64 * 1024
# RFC 9110, 5.1 and 5.5.
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")


class UnusableHeaders(Exception):
    """The file can't be used; one sentence says why, without what stands in it."""


def read_headers(path: str | None) -> dict[str, str]:
    """Returns the headers of a file; none where there is no file to read. Raises UnusableHeaders."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            lines = file.read(MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableHeaders(f"--webhook-headers-file: {path} can't be read: {error}") from error
    headers = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        header = _HEADER.fullmatch(line)
        if header is None:
            raise UnusableHeaders(f"--webhook-headers-file: line {number} of {path} has to be 'Name: value'")
        headers[header[1]] = header[2]
    return headers
