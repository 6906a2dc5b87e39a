"""The preflight finds ranks that differ before the first collective."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.trainer.ranks import RankFailed, environment, exit_codes, free_port, run_ranks, start_command, trainloop
from tests.trainer.toy import config
from trainloop.distributed.preflight import PreflightSettings, check, differences, fingerprint
from trainloop.distributed.world import joined
from trainloop.errors import PreflightMismatch


@pytest.mark.torch
def test_ranks_with_another_configuration_all_end_with_the_same_lines_and_code_67(tmp_path: Path) -> None:
    port = free_port()
    common = ["--set", "task.name=tests.trainer.toy:Toy", "--set", "steps=3", "--set", "batch.size=8"]
    outs = [tmp_path / "0", tmp_path / "1"]
    ranks = [
        start_command(out, trainloop, *common, "--set", f"optimizer.lr={rate}", **environment(rank, 2, port))
        for rank, (rate, out) in enumerate(zip((0.1, 0.2), outs, strict=True))
    ]
    assert exit_codes(ranks) == [67, 67]
    lines = [[line for line in out.read_text().splitlines() if line.startswith("trainloop:")] for out in outs]
    assert lines[0] == lines[1]
    assert "ranks differ, so they can't train together" in lines[0][0]
    assert lines[0][1].startswith("trainloop: config: ")
    assert "on rank 0" in lines[0][1] and "on rank 1" in lines[0][1]


def test_the_odd_rank_is_named_and_what_is_equal_is_not() -> None:
    usual = {"torch": "2.13", "driver": "550"}
    assert differences([usual, usual, {**usual, "driver": "535"}]) == {
        "driver": "driver: 550 on rank 0, 1; 535 on rank 2"
    }
    assert differences([usual] * 3) == {}


def test_under_an_agent_a_rank_compares_only_what_the_agent_can_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents compare the installed packages before the ranks start, so one difference has one message."""
    monkeypatch.delenv("TRAINMASTER_ATTEMPT", raising=False)
    alone = fingerprint("steps: 3", [])
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "1")
    below_an_agent = fingerprint("steps: 3", [])
    assert alone.keys() - below_an_agent.keys() == {"python", "torch", "cuda", "nccl"}
    assert below_an_agent.items() <= alone.items()
    assert {"code", "config"} <= below_an_agent.keys()


@pytest.mark.torch
def test_a_difference_that_is_not_fatal_is_a_warning() -> None:
    assert run_ranks(2, _with_driver_of_its_own, ["torch"]) == [2.0, 2.0]
    with pytest.raises(RankFailed, match="driver: 1 on rank 0; 2 on rank 1"):
        run_ranks(2, _with_driver_of_its_own, ["driver"])


def _with_driver_of_its_own(fatal: list[str]) -> float:
    mine = {"torch": "2.13", "driver": str(1 + int(os.environ["RANK"]))}
    compare = partial(check, PreflightSettings.model_validate({"fatal": fatal}), mine)
    try:
        with joined(config().distributed, compare) as world:
            return world.sum([1.0])[0]
    except PreflightMismatch as error:
        raise AssertionError(str(error)) from error
