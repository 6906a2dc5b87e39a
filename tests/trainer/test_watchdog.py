"""Without an agent, the watchdog names the rank that the others wait for."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from tests.trainer.ranks import TOY, environment, exit_codes, free_port, start_command, trainloop
from trainloop.distributed.watchdog import Watchdog, WatchdogSettings, stall_message
from trainloop.distributed.world import World


def test_the_ranks_that_hold_the_others_up_are_named() -> None:
    assert stall_message(["", "fetching data", ""]) == "rank 1 is fetching data; rank 0, 2 wait for them"
    assert stall_message(["", None]).startswith("rank 1 doesn't answer")
    assert stall_message(["", ""]).startswith("all ranks wait in a collective")


@pytest.mark.parametrize(("attempt", "ranks_watch"), [(None, True), ("1", False)])
def test_a_stall_is_judged_by_the_agent_or_else_by_the_ranks(
    monkeypatch: pytest.MonkeyPatch, attempt: str | None, ranks_watch: bool
) -> None:
    monkeypatch.delenv("TRAINMASTER_ATTEMPT", raising=False)
    if attempt:
        monkeypatch.setenv("TRAINMASTER_ATTEMPT", attempt)
    world = World(0, 2, 0, 1, torch.device("cpu"), "gloo", HashStore())
    with Watchdog(WatchdogSettings(), world) as watchdog:
        watchdog.at("fetching data", 3)
        assert ("watchdog" in [thread.name for thread in threading.enumerate()]) is ranks_watch


@pytest.mark.torch
def test_a_stopped_rank_is_named_by_the_others_and_the_run_goes_on_when_it_does(tmp_path: Path) -> None:
    port = free_port()
    arguments = [*TOY, "--set", "steps=1000000", "--set", "watchdog.stall_seconds=1"]
    arguments += ["--set", f"metrics.path={tmp_path}", "--set", f"checkpoint.path={tmp_path}/checkpoints"]
    outs = [tmp_path / "0", tmp_path / "1"]
    ranks = [start_command(out, trainloop, *arguments, **environment(rank, 2, port)) for rank, out in enumerate(outs)]
    pids = [int(rank.pid or 0) for rank in ranks]
    try:
        _wait_for(lambda: (tmp_path / "metrics.jsonl").is_file() and "step" in (tmp_path / "metrics.jsonl").read_text())
        os.kill(pids[1], signal.SIGSTOP)
        # A loaded machine may delay both by a second; that is printed too, as another stall.
        _wait_for(lambda: "rank 1 doesn't answer" in outs[0].read_text())
        os.kill(pids[1], signal.SIGCONT)
        time.sleep(0.5)
        os.kill(pids[0], signal.SIGTERM)
        assert exit_codes(ranks, 120) == [143, 143]
    finally:
        for rank in ranks:
            rank.kill()
    output = outs[0].read_text()
    assert "stalled at step" in output
    assert "rank 1 doesn't answer: its process is stopped, swapped out or gone; rank 0 wait for them" in output


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
