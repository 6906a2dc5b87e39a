"""Compressed gradients send the bytes of theory, and what one step leaves out comes with later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, largest_difference, train
from trainloop.distributed.world import joined
from trainloop.parallel.compression import Compressor, OneBit, PowerSGD, carried_over, compressor_for

pytestmark = pytest.mark.torch


class Bucket:
    """Has what a compressor needs of a DDP bucket."""

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
    """Returns the relative error of one step, and of the sum of sixty, of one gradient; and the bytes sent a step."""
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
    """Returns the bytes that a rank sends, by the table in trainloop.parallel.compression."""
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
