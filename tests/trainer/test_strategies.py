"""Other ways over the ranks are the same training: ZeRO-1, FSDP2 (T21), delayed groups (T13), local SGD and
compression (T12).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy, config, largest_difference, train
from trainloop.checkpoints import storage
from trainloop.config import Config, parse_config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.metrics import read_metrics
from trainloop.parallel.compression import Compressor, OneBit, PowerSGD, carried_over, compressor_for
from trainloop.parallel.delayed import DelayedGroup, DelayedSettings
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch
UNEVEN: dict[str, Any] = {"task": {"name": "tests.trainer.toy:Toy", "options": {"samples": 20}}, "steps": 7}


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


def test_a_delayed_group_is_stepped_every_k_steps_with_the_mean_of_their_gradients() -> None:
    """By hand, in one process: everything else steps every step, the group on the mean gradient of two."""
    changes = {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0, "max_norm": None},
        "steps": 6,
    }
    changes |= {"schedule": {"kind": "constant", "warmup": 0}}
    [by_hand] = run_ranks(1, _two_optimizers_by_hand, config(**changes))
    for ranks in (1, 2):
        runs = run_ranks(ranks, train, config(**changes, delayed={"pattern": "^0", "every": 2}))
        assert largest_difference(runs[0]["weights"], by_hand) < 1e-12


def _two_optimizers_by_hand(settings: Config) -> dict[str, torch.Tensor]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        model = trainer.replica.model
        assert isinstance(model, nn.Sequential)
        slow = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        fast = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
        for step in range(1, 7):
            [batch] = trainer.loader.fetch().batches
            loss = trainer.task.loss(model, batch) / trainer.task.count(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            fast.step()
            fast.zero_grad()
            if step % 2 == 0:
                for parameter in model[0].parameters():
                    assert parameter.grad is not None
                    parameter.grad /= 2
                slow.step()
                slow.zero_grad()
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_a_delayed_group_is_resumed_in_the_middle_of_its_interval(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**UNEVEN, "delayed": {"pattern": "^0", "every": 3}}
    through = run_ranks(2, train, config(**changes))
    run_ranks(2, train, config(tmp_path, **changes), 4)
    resumed = run_ranks(2, train, config(tmp_path, **changes))
    assert largest_difference(resumed[0]["weights"], through[0]["weights"]) < 1e-12


@pytest.mark.parametrize(("pattern", "share"), [("embedding", "none"), (".", "all")])
def test_a_pattern_that_matches_nothing_or_everything_is_a_sentence(pattern: str, share: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    sentence = f"it is in {share} of the trainable parameters' names, it must be in some of 0.weight, 0.bias"
    with pytest.raises(ConfigError, match=sentence):
        DelayedGroup(DelayedSettings.model_validate({"pattern": pattern}), model)


def test_local_steps_of_one_with_sgd_are_ddp_and_more_come_near() -> None:
    """Averaging weights after every step of plain SGD is averaging gradients; with several steps it is not the same."""
    plain = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0, "max_norm": None}, "steps": 40}
    ddp, local = (run_ranks(2, train, config(**plain, communication={"local_steps": steps}))[0] for steps in (1, 4))
    assert 0 < largest_difference(ddp["weights"], local["weights"]) < 0.2
    assert local["results"]["loss"] == pytest.approx(ddp["results"]["loss"], rel=0.1)


def test_local_ranks_are_equal_after_an_average() -> None:
    runs = run_ranks(2, train, config(steps=8, communication={"local_steps": 4}))
    assert largest_difference(runs[0]["weights"], runs[1]["weights"]) == 0


class Bucket:
    """What a compressor needs of a DDP bucket."""

    def __init__(self, *gradients: torch.Tensor) -> None:
        self._flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._shapes = [gradient.shape for gradient in gradients]

    def buffer(self) -> torch.Tensor:
        return self._flat

    def index(self) -> int:
        return 0

    def gradients(self) -> list[torch.Tensor]:
        parts = torch.split(self._flat, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _reduced(compressor: Any, gradients: list[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    bucket = Bucket(*gradients)
    future, sent = compressor.reduce(bucket)
    bucket.buffer().copy_(future.wait())
    return [gradient.clone() for gradient in bucket.gradients()], sent


def _compressed(method: str) -> tuple[float, float, int]:
    """Relative error of one step, and of the sum of sixty, of the same gradient; and bytes sent a step."""
    with joined(config().distributed) as world:
        generator = torch.Generator().manual_seed(world.rank)
        own = [torch.randn(64, 32, generator=generator), torch.randn(32, generator=generator)]
        true = torch.cat([g.flatten() for g in _reduced(Compressor(), own)[0]])
        compressor = compressor_for(method, 4)  # type: ignore[arg-type]
        steps = [torch.cat([g.flatten() for g in _reduced(compressor, own)[0]]) for _ in range(60)]
        sent = _reduced(compressor, own)[1]
        mean = torch.stack(steps).mean(0)
        return float((steps[0] - true).norm() / true.norm()), float((mean - true).norm() / true.norm()), sent


@pytest.mark.parametrize(
    ("method", "once", "in_the_mean"),
    [("none", 1e-6, 1e-6), ("fp16", 1e-3, 1e-3), ("bf16", 1e-2, 1e-2), ("onebit", 2.0, 0.2), ("powersgd", 1.0, 0.2)],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_compression_leaves_out_comes_with_later_steps(
    method: str, once: float, in_the_mean: float, ranks: int
) -> None:
    """Error feedback: the mean of many compressed steps comes near the true gradient, however coarse one step is."""
    numbers, size = 64 * 32 + 32, ranks
    for first, mean, sent in run_ranks(ranks, _compressed, method):
        assert first < once
        assert mean < in_the_mean
        assert sent == pytest.approx(_theory(method, numbers, size), rel=0.05)


def _theory(method: str, numbers: int, size: int) -> float:
    """Bytes a rank sends, from the table in trainloop.parallel.compression."""
    ring = 2 * (size - 1) / size
    return {
        "none": ring * 4 * numbers,
        "fp16": ring * 2 * numbers,
        "bf16": ring * 2 * numbers,
        "onebit": ring * numbers / 8 + (size - 1) * 8,
        "powersgd": ring * 4 * (4 * (64 + 32) + 32),
    }[method]


@pytest.mark.parametrize("method", ["onebit", "powersgd"])
def test_compressed_ranks_stay_equal_and_resume_to_the_bit(tmp_path: Path, method: str) -> None:
    changes: dict[str, Any] = {
        "task": {"name": "tests.trainer.toy:Toy", "options": {"hidden": 32, "depth": 3, "double": False}},
        "precision": {"compute": "fp32"},
        "parallel": {"bucket_mb": 0.004},
        "communication": {"compression": method},
        "anomaly": {"enabled": False},
    }
    through = run_ranks(2, train, config(**changes))
    assert largest_difference(through[0]["weights"], through[1]["weights"]) == 0
    run_ranks(2, train, config(tmp_path, **changes), 3)
    resumed = run_ranks(2, train, config(tmp_path, **changes))
    assert largest_difference(resumed[1]["weights"], through[0]["weights"]) == 0


def test_memory_is_carried_over_to_another_number_of_ranks() -> None:
    """What was left out of the mean gradient is the mean of what each rank left out; it must not change."""
    memories = [{"0.sent": torch.tensor([1.0, 3.0]), "0.averaged": torch.ones(1)}, {"0.sent": torch.tensor([3.0, 5.0])}]
    assert {name: tensor.tolist() for name, tensor in carried_over(memories).items()} == {"0.sent": [2.0, 4.0]}
    assert OneBit().memory == PowerSGD(1).memory == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": {"compute": "fp16"}, "parallel": {"strategy": "fsdp"}}, "use bf16"),
        ({"communication": {"compression": "onebit"}, "parallel": {"strategy": "fsdp"}}, "fsdp, which sends by itself"),
        ({"communication": {"compression": "onebit", "local_steps": 4}}, "no gradients are sent"),
        ({"communication": {"local_steps": 4}, "balance": {"enabled": True}}, "which weighs all alike"),
        # Their memory would be in units of an older loss scale, or infinite: no step was ever made again.
        ({"communication": {"compression": "onebit"}, "precision": {"compute": "fp16"}}, "keeps what it left out"),
        ({"parallel": {"strategy": "zero1"}, "checkpoint": {"format": "sharded"}}, "strategy zero1: use full"),
        (
            {"communication": {"local_steps": 4}, "parallel": {"strategy": "zero1"}},
            "strategy other than ddp",
        ),
        ({"delayed": {"pattern": "x"}, "parallel": {"strategy": "zero1"}}, "delayed.pattern with parallel.strategy"),
        ({"delayed": {"pattern": "x"}, "checkpoint": {"format": "sharded"}}, "delayed.pattern with checkpoint.format"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"epochs": 1, "batch": {"size": 8}, **changes})


class Slow(Toy):
    """Rank 1 takes three times as long for a sample as the others."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        import os
        import time

        if torch.is_grad_enabled():
            slow = 3 if os.environ.get("RANK") == "1" else 1
            time.sleep(0.003 * slow * len(batch["labels"]))
        return super().loss(model, batch)


def test_shares_follow_speed_and_the_gradient_does_not_change(tmp_path: Path) -> None:
    """One rank is three times as slow: the ideal share is a quarter, the steps are those of equal shares, and take half
    as long.
    """
    task = {"name": "tests.trainer.test_strategies:Slow", "options": {"samples": 256}}
    changes: dict[str, Any] = {"task": task, "batch": {"size": 64}, "steps": 24}
    balanced = run_ranks(2, _balanced, config(tmp_path, **changes, balance={"enabled": True, "warmup": 2, "every": 4}))
    equal = run_ranks(2, train, config(**{**changes, "task": {**task, "name": "tests.trainer.toy:Toy"}}))
    weights, shares = balanced[0]
    assert largest_difference(weights, equal[0]["weights"]) < 1e-12
    assert largest_difference(balanced[1][0], weights) == 0
    assert shares[1] == pytest.approx(0.25, abs=0.12)
    lines = read_metrics(tmp_path / "report" / "metrics.jsonl")
    seconds = [line["stepSeconds"] for line in lines if line["kind"] == "step"]
    assert statistics.median(seconds[-8:]) < 0.8 * statistics.median(seconds[1:6])


def _balanced(settings: Config) -> tuple[dict[str, torch.Tensor], list[float]]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        return dict(trainer.replica.model_state()), trainer.balancer.weights
