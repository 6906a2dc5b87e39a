"""A task may make its own optimizer: each group keeps its own learning rate (`optimization/optimizer`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import Toy, config, largest_difference, weights
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.optimization.optimizer import OptimizerSettings
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

STEPS, SAMPLES, HIDDEN, DECAY = 8, 24, 8, 0.5


class Layered(Toy):
    """Every layer has its own learning rate: the further from the output, the lower."""

    def model(self) -> nn.Module:
        torch.manual_seed(7)
        return super().model()

    def optimizer(self, model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))
        groups = [
            {
                "params": [p for name, p in model.named_parameters() if name.rpartition(".")[0] == layer],
                "lr": settings.lr * DECAY ** (len(layers) - 1 - depth),
            }
            for depth, layer in enumerate(layers)
        ]
        return torch.optim.AdamW(groups[: len(layers) - self.options.get("forgotten", 0)], weight_decay=0.1)


def settings(path: Path | None = None, *, strategy: str = "ddp", **options: Any) -> Config:
    """Returns a run whose every step uses all samples, so that their order doesn't matter to the reference."""
    return config(
        path,
        task={"name": "tests.trainer.test_optimizers:Layered", "options": {"samples": SAMPLES, "depth": 1, **options}},
        batch={"size": SAMPLES},
        steps=STEPS,
        parallel={"strategy": strategy},
    )


def reference() -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Returns each step's rates and the last weights of the same training in plain torch."""
    torch.manual_seed(7)
    layers = [nn.Linear(6, HIDDEN), nn.Tanh(), nn.Dropout(0), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, 3)).double()
    groups = [{"params": model[i].parameters(), "lr": 0.05 * DECAY**n} for i, n in ((0, 2), (3, 1), (5, 0))]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 2)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])
    _, points, labels = zip(*Toy({"samples": SAMPLES}).train, strict=True)
    rates = []
    for _ in range(STEPS):
        rates.append([group["lr"] for group in optimizer.param_groups])
        functional.cross_entropy(model(torch.stack(points)), torch.stack(labels)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return rates, {name: tensor.detach() for name, tensor in model.state_dict().items()}


def steps(configuration: Config, count: int) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Train for `count` more steps and save; returns each step's rates, by group, and the weights."""
    rates: list[list[float]] = []
    with joined(configuration.distributed) as world:
        trainer = Trainer(configuration, world)
        trainer.prepare()
        for _ in range(count):
            trainer.train_step()
            rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.save()
        return rates, weights(trainer)


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "ddp"), (2, "zero1"), (2, "fsdp")])
def test_every_group_keeps_its_own_rate_times_the_schedules_factor_over_a_resume(
    tmp_path: Path, ranks: int, strategy: str
) -> None:
    expected, trained = reference()
    before = run_ranks(ranks, steps, settings(tmp_path, strategy=strategy), 3)
    after = run_ranks(ranks, steps, settings(tmp_path, strategy=strategy), STEPS - 3)
    for (first, _), (rest, last) in zip(before, after, strict=True):
        assert [*first, *rest] == [pytest.approx(rates, rel=1e-12) for rates in expected]
        assert largest_difference(last, trained) < 1e-12


def test_the_groups_of_an_optimizer_that_a_hook_put_in_place_keep_their_rates() -> None:
    [rates] = run_ranks(1, _replaced)
    assert rates == [pytest.approx([0.5 * rate, 0.5 * rate / 10]) for rate in (0.5, 1.0, 1.0)]


def _replaced() -> list[list[float]]:
    configuration = config(schedule={"kind": "constant", "warmup": 2})
    with joined(configuration.distributed) as world:
        trainer = Trainer(configuration, world)
        first, last = trainer.replica.model[0], trainer.replica.model[3]
        groups = [{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.05}]
        trainer.optimizer = torch.optim.SGD(groups, lr=0.5)
        trainer.prepare()
        rates = []
        for _ in range(3):
            trainer.train_step()
            rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        return rates


def test_a_parameter_that_the_tasks_optimizer_leaves_out_is_named() -> None:
    with pytest.raises(RankFailed, match=r"the task's optimizer doesn't have 5\.weight, 5\.bias: add them to a group"):
        run_ranks(1, steps, settings(forgotten=1), 1)
