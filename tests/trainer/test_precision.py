"""Mixed precision has one order: unscale, clip, check, step. A step that overflowed doesn't advance the schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop.distributed.world import joined
from trainloop.optimization.optimizer import clip_gradients
from trainloop.optimization.precision import Precision, PrecisionSettings
from trainloop.trainer import Trainer

CPU = torch.device("cpu")


def precision(**settings: Any) -> Precision:
    return Precision(PrecisionSettings.model_validate(settings), CPU)


def test_clipping_sees_the_unscaled_norm() -> None:
    """Without unscaling, a scale of 1024 would make every gradient look too large and be clipped to nothing."""
    norms = []
    for compute in ("fp32", "fp16"):
        torch.manual_seed(0)
        model, numbers = nn.Linear(4, 1), precision(compute=compute, initial_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        numbers.backward((model(torch.ones(2, 4)) ** 2).sum())
        numbers.unscale(optimizer)
        norms.append(float(clip_gradients(model.parameters(), 1e9)))
        assert numbers.step(optimizer)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    model, numbers = nn.Linear(2, 1), precision(compute="fp16", initial_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    numbers.backward(model(torch.full((1, 2), 1e38)).sum())
    numbers.unscale(optimizer)
    assert not numbers.step(optimizer)
    assert torch.equal(model.weight, before)
    assert numbers.scaler.get_scale() == 512.0


@pytest.mark.parametrize(
    ("compute", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_matrix_products_use_the_chosen_type_and_weights_keep_theirs(compute: str, dtype: torch.dtype) -> None:
    model, numbers = nn.Linear(4, 4), precision(compute=compute)
    with numbers.autocast():
        assert model(torch.ones(1, 4)).dtype == dtype
    assert model.weight.dtype == torch.float32


@pytest.mark.torch
def test_skipped_steps_do_not_advance_the_schedule_on_any_rank() -> None:
    first, second = run_ranks(2, _overflowing)
    assert first == second
    before, rates, updates, scale, finite = first
    assert 0 < updates < 6
    assert scale == 2.0 ** (20 - (6 - updates))
    assert rates == pytest.approx([0.05 * (done + 1) / 10 for done in before])
    assert finite


def _overflowing() -> tuple[list[int], list[float], int, float, bool]:
    """The scale starts so high that fp16's gradients overflow; it is halved until they don't."""
    task = {"name": "tests.trainer.toy:Toy", "options": {"double": False}}
    numbers = {"compute": "fp16", "initial_scale": 2.0**20}
    settings = config(task=task, precision=numbers, schedule={"kind": "constant", "warmup": 10})
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        before, rates = [], []
        for _ in range(6):
            before.append(trainer.state.updates)
            trainer.train_step()
            rates.append(trainer.optimizer.param_groups[0]["lr"])
        finite = all(bool(parameter.isfinite().all()) for parameter in trainer.replica.model.parameters())
        return before, rates, trainer.state.updates, trainer.precision.scaler.get_scale(), finite


@pytest.mark.torch
def test_a_bf16_run_comes_near_the_fp32_one() -> None:
    task = {"name": "tests.trainer.toy:Toy", "options": {"double": False}}
    losses = [
        run_ranks(1, _last_loss, config(task=task, steps=30, precision={"compute": c}))[0] for c in ("fp32", "bf16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def _last_loss(settings: Any) -> float:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        return trainer.state.results["loss"]
