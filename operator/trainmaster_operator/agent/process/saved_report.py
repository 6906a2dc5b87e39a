"""The saved report says what was started here last; in the pod's emptyDir it outlives the agent's process.

It is written before the children start and again when they have ended. An agent that starts and finds it never runs
that attempt again: a StatefulSet's pods have `restartPolicy: Always`, so every exit is followed by a new start.
"""

from __future__ import annotations

import json
import os

from trainmaster_operator.agent.planner.state import SavedReport
from trainmaster_operator.wire.report import Report

MAX_BYTES = 65_536


def report_path(state_dir: str) -> str:
    """Returns the saved report's path."""
    return os.path.join(state_dir, "saved-report.json")


def read_report(state_dir: str) -> SavedReport | None:
    """Returns the saved report; None where nothing was ever started here, or the file is damaged."""
    try:
        with open(report_path(state_dir), "rb") as file:
            data = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    report = Report.read(data)
    return None if report is None else SavedReport(report, data.get("exited") is True)


def write_report(state_dir: str, report: Report, *, exited: bool = False) -> None:
    """Replace the saved report; after a crash either the old one or the new one is there. Raises OSError."""
    data = report.to_wire()
    data["exited"] = exited
    write_atomically(report_path(state_dir), json.dumps(data) + "\n")


def write_atomically(path: str, text: str) -> None:
    """Write beside it and rename. No fsync: the emptyDir is gone with the node anyway. Raises OSError."""
    folder, name = os.path.split(path)
    # In a pod the agent is process 1, and other files have a rank's number at their end.
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
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
