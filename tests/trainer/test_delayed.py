"""A delayed group of parameters is stepped every k steps with the mean of their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, train
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.parallel.delayed import DelayedSettings, delayed
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


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
        delayed(DelayedSettings.model_validate({"pattern": pattern}), model)
