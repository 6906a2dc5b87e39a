"""Two deterministic runs are equal bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, toy
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer


@pytest.mark.torch
def test_two_deterministic_runs_are_equal_to_the_bit() -> None:
    changes = {**toy(dropout=0.5), "seed": {"value": 5, "deterministic": True}}
    first, second = (run_ranks(2, _seeded, config(**changes)) for _ in range(2))
    assert first == second
    assert first[0] != first[1]  # Each rank draws different random numbers.


def _seeded(settings: Any) -> list[float]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        trainer.train_step()
        return [*torch.rand(3).tolist(), *trainer.replica.model_state()["0.weight"].flatten().tolist()]
