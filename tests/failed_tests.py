"""A plug-in of pytest appends the ids of tests that failed to the file that tests/run.sh names, to run them again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes nothing where no file is named, nor in a process of xdist's, whose tests its parent reports too."""
    path = os.environ.get("TRAINMASTER_TEST_FAILURES")
    if path and not hasattr(terminalreporter.config, "workerinput"):
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        with Path(path).open("a") as file:
            file.writelines(f"{name}\n" for name in dict.fromkeys(report.nodeid for report in reports))
