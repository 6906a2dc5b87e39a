"""The mark: what was started here last, kept in the pod's emptyDir so that it outlives the agent's process.

It is written before the children start and again when they have ended. An agent that starts and finds it never runs
that attempt again: a StatefulSet's pods have `restartPolicy: Always`, so every exit is followed by a new start.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from trainmaster.wire.report import Report

MAX_BYTES = 65_536


class Mark(NamedTuple):
    """The last report of the newest attempt that was started here."""

    report: Report
    exited: bool
    """Whether this report has been made by exiting already: then it isn't made that way again."""


def mark_path(state_dir: str) -> str:
    """Where the mark is."""
    return os.path.join(state_dir, "mark.json")


def read_mark(state_dir: str) -> Mark | None:
    """The mark, or None where nothing was ever started here (or the file is damaged, which a rename never leaves)."""
    try:
        with open(mark_path(state_dir), "rb") as file:
            data = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    report = Report.read(data)
    return None if report is None else Mark(report, data.get("exited") is True)


def write_mark(state_dir: str, report: Report, *, exited: bool = False) -> None:
    """Replace the mark; after a crash at any point either the old one or the new one is there. Raises OSError."""
    data = report.to_wire()
    data["exited"] = exited
    write_atomically(mark_path(state_dir), json.dumps(data) + "\n")


def write_atomically(path: str, text: str) -> None:
    """Write beside it and rename. No fsync: the emptyDir is gone with the node anyway. Raises OSError."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def prune_attempts(state_dir: str, keep: int) -> None:
    """Remove the folders of all but the newest `keep` attempts: an emptyDir has a limit, and restarts have none."""
    attempts = sorted(
        int(name[8:]) for name in os.listdir(state_dir) if name.startswith("attempt-") and name[8:].isdigit()
    )
    for attempt in attempts[:-keep]:
        for folder, folders, files in os.walk(os.path.join(state_dir, f"attempt-{attempt}"), topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    os.unlink(path)
                else:
                    os.rmdir(path)
        os.rmdir(os.path.join(state_dir, f"attempt-{attempt}"))
