"""A rank counts as active while its processes compute, read or write, as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster_operator.agent.hang.vitals import Vitals

PROGRAMS = {
    "computes": ("while True: pass", True),
    "has a child that computes": (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']).wait()",
        True,
    ),
    "writes": ("import os, time\nwhile True: os.write(1, bytes(100_000)); time.sleep(0.1)", True),
    "waits for a lock": ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", False),
    "waits in a queue that asks every second": (
        "import queue\nwhile True:\n    try: queue.Queue().get(timeout=1)\n    except queue.Empty: pass",
        False,
    ),
    "is stopped": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", False),
}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts all programs, so that they are measured together."""
    with (tmp_path / "out").open("wb") as out:
        started = {
            name: subprocess.Popen([sys.executable, "-c", code], stdout=out, start_new_session=True)
            for name, (code, _) in PROGRAMS.items()
        }
    yield started
    for process in started.values():
        os.killpg(process.pid, 9)
        process.wait()


def test_a_rank_is_active_while_its_processes_compute_or_write(ranks: dict[str, subprocess.Popen[bytes]]) -> None:
    pids = {number: process.pid for number, process in enumerate(ranks.values())}
    expected = {number: active for number, (_, active) in enumerate(PROGRAMS.values())}
    vitals = Vitals()
    time.sleep(1)
    # On a busy machine the starts take a while, and a program that computes gets little.
    deadline = time.monotonic() + 30
    while True:
        vitals.sample(pids, time.monotonic())
        found = {number: vitals.is_active(number, time.monotonic()) for number in pids}
        if found == expected or time.monotonic() > deadline:
            break
        time.sleep(1)
    assert found == expected, list(ranks)
