"""A delayed group of parameters steps every k steps, with the mean of their gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, toy, train
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.parallel.delayed import DelayedSettings
from trainloop.parallel.model import delayed
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


PLAIN: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0, "max_norm": None},
    "schedule": {"kind": "constant", "warmup": 0},
    "steps": 6,
}


def test_a_delayed_group_is_stepped_every_k_steps_with_the_mean_of_their_gradients() -> None:
    """The comparison is by hand, in one process: everything else steps every step, the group on the mean gradient of
    two.
    """
    [by_hand] = run_ranks(1, _two_optimizers_by_hand, config(**PLAIN), 2, ())
    for ranks in (1, 2):
        runs = run_ranks(ranks, train, config(**PLAIN, delayed={"pattern": "^0", "every": 2}))
        assert largest_difference(runs[0]["weights"], by_hand) < 1e-12


@pytest.mark.parametrize("odd", [2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_that_is_left_out_takes_no_other_steps_gradients_along(odd: int, ranks: int) -> None:
    """The group then waits for the next time, and steps on the mean of the steps that were made."""
    [by_hand] = run_ranks(1, _two_optimizers_by_hand, config(**PLAIN), 3, (odd,))
    sections = {**PLAIN, **toy(poison=[odd], factor=math.nan), "delayed": {"pattern": "^0", "every": 3}}
    for run in run_ranks(ranks, train, config(**sections)):
        assert run["state"].updates == 5
        assert largest_difference(run["weights"], by_hand) < 1e-12


def test_the_steps_that_wait_survive_a_resume(tmp_path: Path) -> None:
    """One of steps 1 to 3 was left out; the group steps after the fourth, on the mean of the other three."""
    [by_hand] = run_ranks(1, _two_optimizers_by_hand, config(**PLAIN), 4, (2,))
    sections = {**PLAIN, "delayed": {"pattern": "^0", "every": 4}}
    run_ranks(2, train, config(tmp_path, **sections, **toy(poison=[2], factor=math.nan)), 3)
    [resumed, _] = run_ranks(2, train, config(tmp_path, **sections))
    assert largest_difference(resumed["weights"], by_hand) < 1e-12


def _two_optimizers_by_hand(settings: Config, every: int, left_out: tuple[int, ...]) -> dict[str, torch.Tensor]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        model = trainer.replica.model
        assert isinstance(model, nn.Sequential)
        slow = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        fast = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
        made = 0
        for step in range(1, 7):
            [batch] = trainer.loader.fetch().batches
            if step in left_out:
                continue
            made += 1
            loss = trainer.task.loss(model, batch) / trainer.task.count(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            fast.step()
            fast.zero_grad()
            if step % every == 0:
                for parameter in model[0].parameters():
                    assert parameter.grad is not None
                    parameter.grad /= made
                slow.step()
                slow.zero_grad()
                made = 0
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
