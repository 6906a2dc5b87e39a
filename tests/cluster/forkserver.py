"""The tests' operators are forked from this process, which has imported everything that an operator needs.

In a Python of its own, an operator works for more than a second before it begins, and many tests start one.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainmaster.cli.main import app

context = multiprocessing.get_context("forkserver")
# The command imports its parts only when it runs.
context.set_forkserver_preload([__name__, "tests.cluster.forked_operator"])


def log_to(log: Path) -> None:
    """Appends what this process prints to a file, line by line."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def trainmaster(arguments: Sequence[str], log: Path) -> None:
    """Do what the program `trainmaster` does with these arguments."""
    log_to(log)
    os.environ["COLUMNS"] = "200"
    app(arguments)
