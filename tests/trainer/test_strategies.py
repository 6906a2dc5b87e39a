"""ZeRO-1, FSDP2 and local SGD are the same training as DDP (`parallel/strategies`, `parallel/sharded`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, train
from trainloop.checkpoints import storage

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_a_strategy_equals_ddp_and_its_checkpoint_loads_with_other_ranks_and_another_strategy(
    tmp_path: Path, strategy: str
) -> None:
    through = run_ranks(1, train, config(**UNEVEN))[0]["weights"]
    changes = {**UNEVEN, "parallel": {"strategy": strategy}}
    at_once = run_ranks(2, train, config(**changes))
    assert largest_difference(at_once[0]["weights"], through) < 1e-12
    run_ranks(2, train, config(tmp_path, **changes), 3)
    at_four = run_ranks(4, train, config(tmp_path, **changes), 2)
    assert at_four[0]["state"].step == 5
    as_ddp = run_ranks(2, train, config(tmp_path, **UNEVEN))
    assert largest_difference(as_ddp[1]["weights"], through) < 1e-12


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_statistics_of_batch_norm_are_the_same_on_all_ranks_when_the_model_is_evaluated(strategy: str) -> None:
    norm = {"name": "tests.trainer.toy:Toy", "options": {"norm": True}}
    first, second = run_ranks(2, train, config(task=norm, parallel={"strategy": strategy}))
    assert largest_difference(first["weights"], second["weights"]) == 0


def test_sharded_checkpoints_are_written_by_all_ranks_and_loaded_by_more(tmp_path: Path) -> None:
    through = run_ranks(1, train, config(**UNEVEN))[0]["weights"]
    saved = {"path": str(tmp_path / "checkpoints"), "format": "sharded"}
    changes = {**UNEVEN, "parallel": {"strategy": "fsdp"}, "checkpoint": saved}
    run_ranks(2, train, config(tmp_path, **changes), 3)
    [checkpoint] = storage.complete(tmp_path / "checkpoints")
    assert len(list((checkpoint.path / "shards").glob("rank-*.pt"))) == 2
    resumed = run_ranks(4, train, config(tmp_path, **changes))
    assert largest_difference(resumed[3]["weights"], through) < 1e-12


def test_local_steps_of_one_with_sgd_are_ddp_and_more_come_near() -> None:
    """Averaging weights after every step of plain SGD is averaging gradients; with several steps it is not the same."""
    plain = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0, "max_norm": None}, "steps": 40}
    ddp, local = (run_ranks(2, train, config(**plain, communication={"local_steps": steps}))[0] for steps in (1, 4))
    assert 0 < largest_difference(ddp["weights"], local["weights"]) < 0.2
    assert local["results"]["loss"] == pytest.approx(ddp["results"]["loss"], rel=0.1)


def test_local_ranks_are_equal_after_an_average() -> None:
    runs = run_ranks(2, train, config(steps=8, communication={"local_steps": 4}))
    assert largest_difference(runs[0]["weights"], runs[1]["weights"]) == 0
