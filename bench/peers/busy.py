"""Runs busy processes, which load the machine. The benchmark prints their number.

Each process has its own session, as ranks have. Linux divides processors between sessions first
(`kernel.sched_autogroup_enabled`), so all busy processes in one session would count as one competitor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The processes end by themselves if the benchmark is killed.
PROGRAM = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps `count` processes busy during the block."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", PROGRAM], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def load() -> str:
    """Returns the load of all processes in the last minute, as text."""
    return f"load {os.getloadavg()[0]:.1f}"
