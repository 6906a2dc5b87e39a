"""`bench.peers` runs ranks that are compared with ours: each does the same work, beside busy processes."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bench.peers.busy import busy
from bench.peers.drivers import plain
from bench.peers.healthy import Program, Turns, rows
from bench.programs.parts import PARTS

SECONDS = 120


@pytest.mark.torch
def test_ranks_make_whole_batches_until_they_are_stopped(tmp_path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    with plain(tmp_path, 2, "", {}) as ranks:
        while len(ranks.steps.done[1][1]) < 4:
            assert time.monotonic() < deadline, ranks.printed()
            time.sleep(0.1)
            ranks.steps.poll()
        assert [ranks.steps.parts[1][step] for step in range(1, 4)] == [PARTS] * 3
        processes = [psutil.Process(pid) for pid in ranks.steps.pids.values()]
    assert len(processes) == 2 and not any(process.is_running() for process in processes)


@pytest.mark.torch
async def test_programs_take_turns_and_stand_still_in_those_of_others(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "turn")
    with ExitStack() as stack:
        for name in ("plain", "other"):
            (tmp_path / name).mkdir()
            run = stack.enter_context(plain(tmp_path / name, 1, "", turns.variables(name)))
            await turns.start(Program(name, run.steps, 1))
        since = time.time()
        await turns.round(1.0)
        made = sorted((at, each.name) for each in turns.programs for at in each.steps.done[1][0].values() if at > since)
    assert [name for name, _ in itertools.groupby(name for _, name in made)] == ["plain", "other", "plain"]
    bare, other = turns.programs
    assert all(0.0 < turn.processor < 2 * turn.mean for each in turns.programs for turn in each.turns)
    assert [(row[0], row[-1]) for row in rows(other, bare, "other")] == [
        ("other: a step, median", 1),
        ("other: a step, mean", 1),
        ("other: a rank's processor time in it", 1),
        ("other: with its agent's", 1),
    ]


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
