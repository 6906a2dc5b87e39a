"""On a laptop the page proves by a key that it was opened by who started the dashboard.

The browser is opened with a code, which it exchanges once and within a minute for the key. Neither is in the address of
a request: the code is behind a `#`, and the browser gets it from a file that only its user reads, as Jupyter does it,
so that no list of processes shows it.
"""

from __future__ import annotations

import html
import os
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

CODE_SECONDS = 60.0
# Codes that may be open at once: one for each time that a person asked for another address.
MOST_CODES = 8


@dataclass
class Launch:
    """Launch has the key of this process and the codes that are exchanged for it."""

    _key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _codes: dict[str, float] = field(default_factory=dict, repr=False)

    def new_code(self) -> str:
        """Returns a code that can be exchanged once, within CODE_SECONDS."""
        code = secrets.token_urlsafe(32)
        self._codes[code] = time.monotonic() + CODE_SECONDS
        while len(self._codes) > MOST_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def exchange(self, given: object) -> str | None:
        """Returns the key for a code; None for one that isn't known, was used, or is too old."""
        if not isinstance(given, str) or not given.isascii():
            return None
        known = next((code for code in self._codes if compare_digest(code, given)), None)
        if known is None or self._codes.pop(known) < time.monotonic():
            return None
        return self._key

    def is_key(self, given: str) -> bool:
        """Returns whether it is the key."""
        return given.isascii() and compare_digest(self._key, given)


class LaunchFile:
    """LaunchFile is a page for the browser to open that leads to an address; only its owner can read it."""

    def __init__(self, address: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trainmaster-"))
        self.path = self._folder / "open.html"
        page = (
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={html.escape(address, quote=True)}">'
            f'<title>Trainmaster</title><a href="{html.escape(address, quote=True)}">Trainmaster</a>\n'
        )
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(page)

    def remove(self) -> None:
        """Removes it."""
        shutil.rmtree(self._folder, ignore_errors=True)
