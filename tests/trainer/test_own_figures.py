"""Each rank reports its own figures, so that a rank that differs is seen during training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy, config, toy, weights
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.optimization.schedule import Schedule
from trainloop.report import read_metrics
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

SINGLE = {**toy(double=False), "precision": {"compute": "fp32"}}
SCALED = {**toy(double=False), "precision": {"compute": "fp16", "initial_scale": 1024.0, "growth_interval": 2}}


def _steps(settings: Config, folder: Path) -> list[dict[str, Any]]:
    """Train; returns what this rank reports after each step, with the norm of its own gradients computed by hand: from
    its samples, with the weights from before the step.
    """
    file, steps = folder / f"progress-{os.environ['RANK']}", list[dict[str, Any]]()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    before = dict[str, torch.Tensor]()
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        task = trainer.task
        assert isinstance(task, Toy)

        def remember(trainer: Trainer) -> None:
            before.update(weights(trainer))
            before["position"] = torch.tensor(trainer.state.position)
            task.seen.clear()

        def compare(trainer: Trainer) -> None:
            trainer.progress.enter("train")  # always writes; a step writes at most twice a second
            model = task.model().to(task.dtype)
            samples = trainer.state.position - int(before.pop("position"))
            model.load_state_dict(before)
            own = task.collate([task.train[index] for index in task.seen])
            loss = functional.cross_entropy(model(own["points"]), own["labels"], reduction="sum")
            (loss * world.size / samples).backward()  # type: ignore[no-untyped-call]
            by_hand = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
            steps.append({**json.loads(file.read_text()), "byHand": float(by_hand)})

        trainer.before_step.append(remember)
        trainer.after_step.append(compare)
        trainer.run()
    return steps


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({}, 1e-12),
        ({"batch": {"size": 7, "per_rank": 1}, "parallel": {"bucket_mb": 0.0001}}, 1e-12),
        ({"parallel": {"strategy": "zero1"}}, 1e-12),
        ({"communication": {"local_steps": 2}}, 1e-12),
        ({"communication": {"compression": "onebit"}}, 1e-12),
        ({**SINGLE, "parallel": {"strategy": "fsdp"}}, 1e-5),
        (SCALED, 1e-2),
    ],
    ids=["ddp", "uneven shares in several passes and buckets", "zero1", "local", "onebit", "fsdp", "fp16"],
)
def test_a_rank_reports_the_norm_of_its_own_gradients(
    tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    first, second = run_ranks(2, _steps, config(tmp_path, **changes), tmp_path)
    assert len(first) == len(second) == 6
    for step in (*first, *second):
        assert step["gradNorm"] == pytest.approx(step["byHand"], rel=tolerance)
    # Their data differ, so these figures do; the norm of all ranks' gradients doesn't.
    assert all(abs(one["gradNorm"] - other["gradNorm"]) > 1e-3 for one, other in zip(first, second, strict=True))


def test_where_own_gradients_are_not_seen_it_is_the_norm_of_all(tmp_path: Path) -> None:
    """One rank has no others; in fp64, FSDP2 has divided the gradients before it sends them."""
    for size, changes in ((1, {}), (2, {"parallel": {"strategy": "fsdp"}})):
        folder = tmp_path / str(size)
        ranks = run_ranks(size, _steps, config(folder, **changes), tmp_path)
        lines = [line for line in read_metrics(folder / "report" / "metrics.jsonl") if line["kind"] == "step"]
        for steps in ranks:
            assert [step["gradNorm"] for step in steps] == [line["gradNorm"] for line in lines]


def test_every_rank_reports_the_schedules_learning_rate(tmp_path: Path) -> None:
    settings = config(tmp_path)
    schedule = Schedule(settings.schedule, total=6, batch=8)
    expected = [settings.optimizer.lr * schedule.factor(update) for update in range(6)]
    for steps in run_ranks(2, _steps, settings, tmp_path):
        assert [step["learningRate"] for step in steps] == expected


def _measured(settings: Config) -> list[bool]:
    """Train; returns for each step whether this rank's own gradients were measured."""
    measured: list[bool] = []
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.after_step.append(lambda trainer: measured.append(trainer.exchange.times.norm is not None))
        trainer.run()
    return measured


def test_own_gradients_are_measured_only_in_steps_that_are_reported(tmp_path: Path) -> None:
    metrics = {"path": str(tmp_path), "every_steps": 3, "plot": False}
    for measured in run_ranks(2, _measured, config(metrics=metrics, steps=7)):
        assert measured == [True, False, True, False, False, True, True]


def test_ranks_that_compute_in_step_report_no_time_of_their_own(tmp_path: Path) -> None:
    for strategy, reports in (("ddp", True), ("fsdp", False)):
        changes = {"parallel": {"strategy": strategy}}
        for steps in run_ranks(2, _steps, config(tmp_path / strategy, **changes), tmp_path):
            assert [step.get("computeSeconds", 0) > 0 for step in steps] == [reports] * 6
            assert all(step["stepSeconds"] >= step.get("computeSeconds", 0) for step in steps)
