"""`bench.peers` runs ranks that are compared with ours: the same work on each, and busy processes beside it."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from bench.peers.busy import busy
from bench.peers.drivers import plain
from bench.programs.parts import PARTS

SECONDS = 120


@pytest.mark.torch
def test_ranks_make_whole_batches_until_they_are_stopped(tmp_path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    with plain(tmp_path, 2, "") as ranks:
        while len(ranks.steps.done[1][1]) < 4:
            assert time.monotonic() < deadline, ranks.printed()
            time.sleep(0.1)
            ranks.steps.poll()
        assert [ranks.steps.parts[1][step] for step in range(1, 4)] == [PARTS] * 3
        processes = [psutil.Process(pid) for pid in ranks.steps.pids.values()]
    assert len(processes) == 2 and not any(process.is_running() for process in processes)


def test_busy_processes_calculate_until_the_end() -> None:
    before = {process.pid for process in psutil.Process().children()}
    with busy(2):
        beside = [each for each in psutil.Process().children() if each.pid not in before]
        assert len(beside) == 2
        deadline = time.monotonic() + SECONDS
        while not all(each.cpu_times().user > 0.1 for each in beside):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert not any(each.is_running() for each in beside)
