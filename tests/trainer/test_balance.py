"""Shares of the batch follow the ranks' speed without changing the gradient."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy, config, largest_difference, train
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.report import read_metrics
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


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
    """One rank is three times as slow, so its ideal share is a quarter. The steps equal those of equal shares, and take
    half as long.
    """
    task = {"name": "tests.trainer.test_balance:Slow", "options": {"samples": 256}}
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
