"""A step of trainloop runs on a GPU: the tests check its precision, its verdict, its waits and its compiled blocks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.test_compiled_recovery import observed, settings
from tests.trainer.toy import config, same_bits, toy
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.optimization.anomaly import Limits
from trainloop.optimization.optimizer import OptimizerSettings, chosen, step_unless
from trainloop.optimization.verdict import Verdict
from trainloop.trainer import Trainer

QUIET = {"name": "tests.trainer.test_on_device:Quiet", "options": {"double": False}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_device_leaves_out_what_the_host_does(dtype: torch.dtype) -> None:
    limits = Limits(2.0, 3.0)
    for loss in (-1e30, 0.0, 2.0, 2.0000002, math.nan, math.inf, -math.inf):
        for norm in (0.0, 3.0, 3.0000002, math.nan, math.inf):
            there = torch.tensor(loss, dtype=dtype, device="cuda"), torch.tensor(norm, device="cuda")
            verdict = Verdict(*there, limits)
            loss_read, norm_read = verdict.read()
            assert verdict.left_out.dtype == torch.float32
            assert bool(verdict.left_out.item()) == (not limits.keep(loss_read, norm_read)), (loss, norm)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_fused_optimizer_makes_no_step_that_the_verdict_leaves_out(name: str) -> None:
    settings = OptimizerSettings.model_validate({"name": name, "lr": 0.1})
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = chosen(model, settings)
    for loss, made in ((1.0, True), (9.0, False), (1.0, True)):
        model(torch.ones(2, 64, device="cuda")).square().sum().backward()
        before = model.weight.detach().clone()
        one = torch.tensor(loss, device="cuda"), torch.tensor(1.0, device="cuda")
        step_unless(optimizer, Verdict(*one, Limits(2.0, 3.0)).left_out)
        assert torch.equal(model.weight, before) is not made


@pytest.mark.parametrize("every", [1, 1000])
def test_steps_read_nothing_in_bf16_by_default(tmp_path: Path, every: int) -> None:
    metrics = {"path": str(tmp_path), "every_steps": every, "plot": False}
    anomaly = {"least": 4, "window": 8}
    given = config(tmp_path, task=QUIET, steps=1000, precision={}, anomaly=anomaly, metrics=metrics)
    run_ranks(1, _unread, given)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["precision"] for line in lines if line.get("event") == "started"] == ["bf16"]
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == (29 if every == 1 else 1), "the newest step's line isn't written yet"
    assert all(math.isfinite(line["loss"]) and line["peakMemory"] > 0 for line in steps)


def _unread(given: Config) -> None:
    """Make steps in which any wait for the device raises an exception."""
    with joined(given.distributed) as world:
        trainer = Trainer(given, world)
        trainer.prepare()
        for _ in range(10):
            trainer.train_step()
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            trainer.train_step()
        torch.cuda.set_sync_debug_mode("default")


def test_a_run_with_compiled_blocks_goes_on_to_the_bit_with_the_same_graphs(tmp_path: Path) -> None:
    [through] = run_ranks(1, observed, settings(tmp_path / "through"))
    run_ranks(1, observed, settings(tmp_path / "parts"), 3)
    [resumed] = run_ranks(1, observed, settings(tmp_path / "parts"))
    assert sorted(resumed["graphs"]) == sorted(through["graphs"])
    assert same_bits(resumed["weights"], through["weights"])


def test_a_resume_in_another_precision_is_told(tmp_path: Path) -> None:
    """The first attempt had fp32 set, as on a card without bf16."""
    for precision, steps in (({"compute": "fp32"}, 2), ({}, 4)):
        given: dict[str, Any] = {"precision": precision, "steps": steps, **toy(double=False)}
        run_ranks(1, _train, config(tmp_path, **given))
    text = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert "steps until here were computed in fp32, and are in bf16 from here on" in text


def _train(given: Config) -> None:
    with joined(given.distributed) as world:
        Trainer(given, world).run()
