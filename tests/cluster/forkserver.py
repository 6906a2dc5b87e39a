"""The process that the tests' operators are forked from: it has imported all that an operator is, once for them all.

An operator in a Python of its own is more than a second of work before it begins, and many a test starts one.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainmaster.cli.main import app

context = multiprocessing.get_context("forkserver")
# The command imports what it runs when it runs.
context.set_forkserver_preload([__name__, "tests.cluster.forked_operator"])


def log_to(log: Path) -> None:
    """Appends what this process prints to a file, line by line."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def trainmaster(arguments: Sequence[str], log: Path) -> None:
    """Is the program `trainmaster` with these arguments."""
    log_to(log)
    os.environ["COLUMNS"] = "200"
    app(arguments)
