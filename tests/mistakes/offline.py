"""`trainmaster validate` checks a manifest, called as a user calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from tests.mistakes.entries import Entry
from trainmaster.cli.main import app


@dataclass(frozen=True)
class Verdict:
    """Holds validate's verdict: whether everything is valid, and its lines on stderr without the file's name."""

    valid: bool
    lines: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns the lines without their places."""
        return tuple(re.sub(r"^\d+:\d+: ", "", line) for line in self.lines)


def validate(entry: Entry, folder: Path) -> Verdict:
    """Runs validate on the manifest, in this process."""
    path = write(entry, folder)
    result = CliRunner().invoke(app, ["validate", str(path)], catch_exceptions=False)
    lines = tuple(re.sub(rf"^{re.escape(str(path))}: ?", "", line) for line in result.stderr.splitlines())
    return Verdict(result.exit_code == 0, lines)


def write(entry: Entry, folder: Path) -> Path:
    """Writes the manifest to a new file and returns the file."""
    path = folder / f"{entry.identifier}.yaml"
    path.write_text(entry.manifest, encoding="utf-8", newline="")
    return path
