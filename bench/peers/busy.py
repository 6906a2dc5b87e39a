"""Busy processes make the machine's load; the benchmark prints their number.

Each is in a session of its own, as ranks are: Linux shares processors out between sessions first
(`kernel.sched_autogroup_enabled`), so that all of them in one session would be one competitor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# They end by themselves where the benchmark is killed.
PROGRAM = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keeps `count` processes busy for the length of a `with` block."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", PROGRAM], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def load() -> str:
    """Returns the machine's load of the last minute, all processes included."""
    return f"load {os.getloadavg()[0]:.1f}"
