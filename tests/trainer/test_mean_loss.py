"""Every start reports a loss that is a mean, and checking for it changes nothing (`evaluation`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import EXACT, Toy, config, train
from trainloop import seeding
from trainloop.config import Config
from trainloop.data import Batch
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

Model = Callable[..., Any]
SAID = "the task's loss is a mean, it seems: it must be the sum over what the task counts"


class Mean(Toy):
    def loss(self, model: Model, batch: Batch) -> torch.Tensor:
        return super().loss(model, batch) / self.count(batch)


class Noisy(Toy):
    """Draws random numbers in its loss, as diffusion does."""

    def loss(self, model: Model, batch: Batch) -> torch.Tensor:
        noise = torch.randn(batch["points"].shape, dtype=self.dtype)
        return functional.cross_entropy(model(batch["points"] + noise), batch["labels"], reduction="sum")


class Contrastive(Toy):
    """Compares a batch's samples with each other, so a single one has no loss."""

    def loss(self, model: Model, batch: Batch) -> torch.Tensor:
        hidden = model(batch["points"])
        return functional.cross_entropy(hidden @ hidden.T, torch.arange(len(hidden)), reduction="sum")


class Once(Mean):
    """Counts a batch as one term, so its mean is also its sum."""

    def count(self, batch: Batch) -> int:
        return 1


def said(folder: Path) -> int:
    lines = map(json.loads, (folder / "report" / "metrics.jsonl").read_text().splitlines())
    return sum(line.get("text") == SAID for line in lines)


def own(kind: type[Toy], **options: Any) -> dict[str, Any]:
    return {"task": {"name": f"tests.trainer.test_mean_loss:{kind.__name__}", "options": options}}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_it_is_said_at_the_first_start_and_at_a_resume(tmp_path: Path, strategy: str) -> None:
    changes = {**own(Mean), "steps": 4, "parallel": {"strategy": strategy}}
    run_ranks(2, train, config(tmp_path, **changes), 2)
    assert said(tmp_path) == 1
    run_ranks(2, train, config(tmp_path, **changes))
    assert said(tmp_path) == 2


def test_the_progress_report_has_it_for_the_operator(tmp_path: Path) -> None:
    assert SAID in run_ranks(1, _progress, config(**own(Mean)), str(tmp_path / "progress"))[0]


def _progress(settings: Config, file: str) -> str:
    os.environ["TRAINMASTER_PROGRESS_FILE"] = file
    with joined(settings.distributed) as world:
        Trainer(settings, world).prepare()
    return Path(file).read_text()


@pytest.mark.parametrize("kind", [Toy, Noisy, Contrastive, Once])
def test_what_is_no_mean_is_not_called_one(tmp_path: Path, kind: type[Toy]) -> None:
    run_ranks(1, train, config(tmp_path, **own(kind), steps=1, gradients={"ghosts": "off"}))
    assert said(tmp_path) == 0


@pytest.mark.parametrize("kind", [Noisy, Mean])
def test_looking_for_it_moves_no_generator_and_no_statistics(kind: type[Toy]) -> None:
    changes = {**EXACT, **own(kind, norm=True, dropout=0.3, double=False)}
    [(before, after)] = run_ranks(1, _looked, config(**changes))
    assert before == after


def _looked(settings: Config) -> tuple[list[Any], list[Any]]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        before = _state(trainer)
        trainer.evaluator.is_a_mean(trainer.task.loss)
        trainer.evaluator.sample_loss()
        return before, _state(trainer)


def _state(trainer: Trainer) -> list[Any]:
    buffers = [buffer.tolist() for buffer in trainer.replica.model.buffers()]
    drawn = {name: getattr(v, "tolist", lambda v=v: v)() for name, v in seeding.capture(torch.device("cpu")).items()}
    return [buffers, drawn, trainer.replica.model.training]


def test_a_run_whose_loss_draws_random_numbers_goes_on_to_the_bit(tmp_path: Path) -> None:
    changes = {**EXACT, **own(Noisy, double=False)}
    through = run_ranks(2, train, config(tmp_path / "through", **changes))
    run_ranks(2, train, config(tmp_path / "parts", **changes), 3)
    resumed = run_ranks(2, train, config(tmp_path / "parts", **changes))
    for one, other in zip(through, resumed, strict=True):
        assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
