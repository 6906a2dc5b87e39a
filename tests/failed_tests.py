"""A plug-in of pytest writes the ids of tests that failed to the file that tests/run.sh names, to run them again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes nothing where no file is named."""
    path = os.environ.get("TRAINMASTER_TEST_FAILURES")
    if path:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        Path(path).write_text("".join(f"{name}\n" for name in dict.fromkeys(report.nodeid for report in reports)))
