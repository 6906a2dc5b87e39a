"""Hypothesis runs with the same examples each time, and however slow the machine is. No colours; what failed.

A commit is refused because of what it changed, never because of a machine's load or this run's luck.
`--hypothesis-profile=search` looks for new examples, twenty times as many; `fast`, which `make test-fast` uses, tries a
fifth of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fast_set", "trainmaster_local.testing.clusters"]

STEADY = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", STEADY)
settings.register_profile("fast", STEADY, max_examples=20)
settings.register_profile("search", STEADY, derandomize=False, max_examples=2_000)
settings.load_profile("steady")

# Where these are set, as on GitHub's runners, programs colour what they print into a pipe too.
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS"):
    os.environ.pop(name, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the ids of tests that failed to the file that tests/run.sh names, to run them again."""
    path = os.environ.get("TRAINMASTER_TEST_FAILURES")
    if path:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        Path(path).write_text("".join(f"{name}\n" for name in dict.fromkeys(report.nodeid for report in reports)))
