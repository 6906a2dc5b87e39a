"""Processes that read ahead end with their rank (`loader`)."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.ranks import free_port, start_rank
from trainloop.loader import read_ahead

pytestmark = pytest.mark.torch


def read_and_stay(readers: Path) -> None:
    """Read a batch as a rank, then wait."""
    samples: Any = range(100)
    iterator: Any = read_ahead(samples, iter(samples), 2, 2, 0, pin_memory=False)
    assert next(iterator) == 0
    readers.with_suffix(".new").write_text(" ".join(str(process.pid) for process in iterator._workers))
    readers.with_suffix(".new").rename(readers)
    time.sleep(600)


def test_a_rank_that_is_killed_leaves_no_process_that_reads_for_it(tmp_path: Path) -> None:
    """Their parent is the server that forked them, and it lives on; without this, they would keep their memory
    forever.
    """
    rank = start_rank(read_and_stay, 0, 1, free_port(), tmp_path / "out", tmp_path / "readers")
    deadline = time.monotonic() + 60
    while not (tmp_path / "readers").exists():
        assert time.monotonic() < deadline and rank.is_alive()
        time.sleep(0.05)
    readers = [psutil.Process(int(pid)) for pid in (tmp_path / "readers").read_text().split()]
    assert len(readers) == 2 and all(each.is_running() for each in readers)
    rank.kill()
    rank.join()
    assert rank.exitcode == -signal.SIGKILL
    _, left = psutil.wait_procs(readers, timeout=30)
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
