"""Hypothesis runs with the same examples each time, and however slow the machine is. Programs write no colours.

A commit is refused because of what it changed, never because of a machine's load or this run's luck.
`--hypothesis-profile=search` looks for new examples, forty times as many; `fast`, which `make test-fast` uses, tries
fewer.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.failed_tests", "tests.fast_set", "tests.turns", "trainmaster_local.testing.clusters"]

STEADY = settings(
    deadline=None,
    derandomize=True,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("steady", STEADY)
settings.register_profile("fast", STEADY, max_examples=20)
settings.register_profile("search", STEADY, derandomize=False, max_examples=2_000)
settings.load_profile("steady")

# Where these are set, as on GitHub's runners, programs colour what they print into a pipe too.
for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS"):
    os.environ.pop(name, None)
