"""ZeRO-1, FSDP2 and local SGD are the same training as DDP (`parallel/strategies`, `parallel/sharded`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.local_models import DEEPSEEK
from tests.trainer.ranks import run_ranks
from tests.trainer.shapes import SHAPES
from tests.trainer.toy import UNEVEN, Toy, config, largest_difference, train, weights
from trainloop.checkpoints import snapshots, storage
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

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


@pytest.mark.parametrize("form", ["full", "sharded"])
def test_replicas_of_shards_equal_one_process_and_their_checkpoint_loads_in_other_layouts(
    tmp_path: Path, form: str
) -> None:
    through = run_ranks(1, train, config(**UNEVEN))[0]["weights"]
    saved = {"path": str(tmp_path / "checkpoints"), "format": form}
    replicas, shards = (
        {**UNEVEN, "checkpoint": saved, "parallel": {"strategy": "fsdp", "data": data}} for data in ([2, 2], 4)
    )
    for rank in run_ranks(4, train, config(**{**replicas, "checkpoint": {}})):
        assert largest_difference(rank["weights"], through) < 1e-12
    run_ranks(4, train, config(**replicas), 2)
    if form == "sharded":
        [checkpoint] = storage.complete(tmp_path / "checkpoints")
        files = sorted(file.name for file in (checkpoint.path / "shards").iterdir())
        assert files == ["rank-00000.pt", "rank-00001.pt"], "one replica writes"
    assert run_ranks(4, train, config(**shards), 2)[0]["state"].step == 4
    assert run_ranks(4, train, config(**replicas), 1)[0]["state"].step == 5
    last = {**UNEVEN, "checkpoint": saved} if form == "full" else shards
    assert largest_difference(run_ranks(4, train, config(**last))[3]["weights"], through) < 1e-12


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_statistics_of_batch_norm_are_the_same_on_all_ranks_when_the_model_is_evaluated(strategy: str) -> None:
    norm = {"name": "tests.trainer.toy:Toy", "options": {"norm": True}}
    first, second = run_ranks(2, train, config(task=norm, parallel={"strategy": strategy}))
    assert largest_difference(first["weights"], second["weights"]) == 0


class Turns(nn.Module):
    """Rotates pairs of numbers by complex ones, as rotary positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.view(-1, 4, 2)) * self.get_buffer("by")
        return torch.view_as_real(pairs).flatten(1)


class Frozen(Toy):
    """Has a BatchNorm that is left in evaluation mode, and complex numbers."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval(), Turns(), nn.Dropout(), nn.Linear(8, 3))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_a_frozen_layer_stays_in_evaluation_mode_and_complex_numbers_stay_complex(
    tmp_path: Path, strategy: str
) -> None:
    task = {"name": "tests.trainer.test_strategies:Frozen"}
    changes = {"task": task, "parallel": {"strategy": strategy}, "evaluation": {"every_steps": 2}}
    run_ranks(2, train, config(tmp_path, **changes), 3)
    for rank in run_ranks(2, train, config(tmp_path, **changes)):
        assert rank["state"].step == 6
        assert rank["weights"]["1.num_batches_tracked"] == 0
        assert torch.equal(rank["weights"]["2.by"], Turns().get_buffer("by"))


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
    """Averaging weights after every step of plain SGD averages gradients; with several steps it isn't the same."""
    plain = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0, "max_norm": None}, "steps": 40}
    ddp, local = (run_ranks(2, train, config(**plain, communication={"local_steps": steps}))[0] for steps in (1, 4))
    assert 0 < largest_difference(ddp["weights"], local["weights"]) < 0.2
    assert local["results"]["loss"] == pytest.approx(ddp["results"]["loss"], rel=0.1)


def test_local_ranks_are_equal_after_an_average() -> None:
    runs = run_ranks(2, train, config(steps=8, communication={"local_steps": 4}))
    assert largest_difference(runs[0]["weights"], runs[1]["weights"]) == 0


def test_a_model_of_any_shape_trains_under_fsdp_as_one_process_does() -> None:
    """This includes experts that one rank's batch, or no rank's batch, reaches."""
    [alone] = run_ranks(1, _all_shapes, "ddp")
    for shape, (sharded, results) in run_ranks(3, _all_shapes, "fsdp")[-1].items():
        assert largest_difference(sharded, alone[shape][0]) < 1e-10, shape
        assert results["loss"] == pytest.approx(alone[shape][1]["loss"], abs=1e-10), shape


def _all_shapes(strategy: str) -> dict[str, Any]:
    runs: dict[str, Any] = {}
    with joined(config().distributed) as world:
        for shape in SHAPES:
            task = {"name": "tests.trainer.shapes:Shaped", "options": {"shape": shape, "samples": 20}}
            # Not all experts are reached by the first batch.
            changes = {"gradients": {"ghosts": "warn"}, "parallel": {"strategy": strategy}}
            trainer = Trainer(config(task=task, steps=4, **changes), world)
            trainer.run()
            runs[shape] = (weights(trainer), trainer.state.results)
    return runs


def test_deepseek_trains_under_fsdp_as_under_ddp(tmp_path: Path) -> None:
    """Its norms and its router compute in fp32, so sums over a batch's rows depend on how the batch is spread."""
    (tmp_path / "text.txt").write_bytes(bytes(range(32, 97)) * 20)
    # The experts' grouped product doesn't exist in double precision.
    fields = {**DEEPSEEK, "experts_implementation": "eager"}
    options = {"config": fields, "path": str(tmp_path / "text.txt"), "context": 16, "held_out": 0.2}
    task = {"name": "causal-lm", "options": options}
    copied, sharded = (
        run_ranks(2, _trained, config(task=task, steps=3, parallel={"strategy": strategy}))[0]
        for strategy in ("ddp", "fsdp")
    )
    assert largest_difference(sharded, copied) < 1e-10


def _trained(settings: Config) -> dict[str, torch.Tensor]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        return weights(trainer)


def test_weights_in_bf16_are_half_of_what_fsdp_gathers_and_train_as_under_autocast() -> None:
    own, short = (run_ranks(2, _in_bf16, dtype) for dtype in ("own", "bf16"))
    numbers = sum(tensor.numel() for tensor in own[0]["weights"].values())
    # Gathered for the forward and for the backward pass, and gradients reduced: 4 or 2 bytes, and 4; half is one's own.
    assert own[0]["sent"] > short[0]["sent"] > own[0]["sent"] / 2
    saved = own[0]["sent"] - short[0]["sent"]
    assert saved == pytest.approx((own[0]["sent"] - 4 * numbers / 2) / 2, rel=0.05)
    assert {tensor.dtype for tensor in short[0]["weights"].values()} == {torch.float32}
    assert 0 < largest_difference(own[0]["weights"], short[0]["weights"]) < 0.02


def _in_bf16(dtype: str) -> dict[str, Any]:
    task = {"name": "tests.trainer.shapes:Shaped", "options": {"shape": "layers", "double": False}}
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.0}
    changes = {"task": task, "precision": {"compute": "bf16"}, "optimizer": optimizer}
    settings = config(**changes, parallel={"strategy": "fsdp", "gather_dtype": dtype})
    with joined(settings.distributed) as world:
        trainer, sent = Trainer(settings, world), list[int]()
        trainer.after_step.append(lambda trainer: sent.append(trainer.exchange.times.sent))
        trainer.run()
        return {"weights": weights(trainer), "sent": sent[2]}


def test_a_rank_that_does_not_write_holds_no_whole_tensors(tmp_path: Path) -> None:
    writer, other = run_ranks(2, _captured, config(tmp_path, parallel={"strategy": "fsdp"}))
    assert len(writer["model"]) == len(writer["optimizer"]) == 4
    assert (other["model"], other["optimizer"]) == ({}, {})


def _captured(settings: Config) -> dict[str, Any]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        trainer.train_step()
        keep = trainer.checkpoints is None or trainer.checkpoints.is_writer
        state = snapshots.capture(trainer.run_state, 1, whole=True, keep=keep, loss=None)
        return {name: dict(state[name]) for name in ("model", "optimizer")}
