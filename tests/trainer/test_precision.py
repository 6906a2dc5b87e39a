"""Mixed precision has one order: unscale, clip, check, step. A step that overflowed doesn't advance the schedule."""

from __future__ import annotations

import math
import os
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import config, toy, train
from trainloop.distributed.world import World, joined
from trainloop.optimization.anomaly import Limits
from trainloop.optimization.optimizer import clip_gradients
from trainloop.optimization.precision import Overflows, Precision, PrecisionSettings
from trainloop.optimization.verdict import Verdict
from trainloop.report import facts, read_metrics
from trainloop.trainer import Trainer

ALONE = World(0, 1, 0, 1, torch.device("cpu"), "gloo")


def precision(**settings: Any) -> Precision:
    return Precision(PrecisionSettings.model_validate(settings), ALONE)


@pytest.mark.parametrize(
    ("kind", "module", "compute"),
    [
        ("cpu", SimpleNamespace(is_bf16_supported=pytest.fail), "fp32"),
        ("cuda", SimpleNamespace(is_bf16_supported=lambda including_emulation=True: including_emulation), "fp32"),
        ("cuda", SimpleNamespace(is_bf16_supported=lambda including_emulation=True: True), "bf16"),
        ("xpu", SimpleNamespace(is_bf16_supported=lambda including_emulation=True: True), "bf16"),
        ("npu", SimpleNamespace(is_bf16_supported=lambda: True), "bf16"),
        ("mps", SimpleNamespace(), "fp32"),
    ],
    ids=["cpu", "cuda-emulates", "cuda", "xpu", "npu", "mps"],
)
def test_the_default_is_bf16_on_an_accelerator_that_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: Any, compute: str
) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    world = replace(ALONE, device=cast("torch.device", SimpleNamespace(type=kind)))
    assert _chosen(world) == compute


def _chosen(world: World) -> str:
    """Returns the precision that `auto` chooses; no scaler exists for a device that this machine lacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.amp, "GradScaler", lambda *_, **named: named["enabled"] and pytest.fail("bf16 needs none"))
        return Precision(PrecisionSettings.model_validate({}), world).compute


@pytest.mark.torch
def test_ranks_compute_in_bf16_only_where_all_devices_have_it() -> None:
    assert run_ranks(2, _on_unlike_devices) == ["fp32", "fp32"]


def _on_unlike_devices() -> str:
    with joined(config().distributed) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainloop.optimization.precision.computes_in_bf16", lambda device: world.is_main)
        return _chosen(world)


@pytest.mark.torch
def test_a_run_says_that_it_computes_in_bf16_and_when_that_is_another_precision_than_before(tmp_path: Path) -> None:
    text = "steps until here were computed in {0}, and are in {1} from here on: set precision.compute to {0}"
    assert run_ranks(1, _on_one_device_after_the_other, tmp_path)[0] == [
        ("fp32", []),
        ("bf16", [f"{text} to continue as before".format("fp32", "bf16")]),
        ("fp32", [f"{text} to continue as before".format("bf16", "fp32")]),
    ]


def _on_one_device_after_the_other(folder: Path) -> list[tuple[str, list[str]]]:
    """Train two steps on a CPU, two on a device that pretends to be a GPU, and two on a CPU; returns each start's
    precision and warnings.
    """
    found = []
    for number, has_bf16 in enumerate((False, True, False)):
        report = folder / str(number)
        metrics = {"path": str(report), "plot": False}
        settings = config(folder, precision={}, metrics=metrics, steps=2 + 2 * number, **toy(double=False))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
            patch.setattr("trainloop.optimization.precision.computes_in_bf16", lambda device, has=has_bf16: has)
            train(settings)
        lines = read_metrics(report / "metrics.jsonl")
        [started] = [line for line in lines if line.get("event") == "started"]
        found.append((started["precision"], [line["text"] for line in lines if line.get("event") == "warning"]))
        sentence = "computes in bf16, with weights in fp32; precision.compute: fp32 for fp32 throughout"
        assert (sentence in printed.getvalue()) is has_bf16
    return found


def test_clipping_sees_the_unscaled_norm() -> None:
    """Without unscaling, a scale of 1024 would make every gradient look too large, and clip it to nothing."""
    norms = []
    for compute in ("fp32", "fp16"):
        torch.manual_seed(0)
        model, numbers = nn.Linear(4, 1), precision(compute=compute, initial_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        numbers.backward((model(torch.ones(2, 4)) ** 2).sum())
        numbers.unscale(optimizer)
        norms.append(float(clip_gradients(model.parameters(), 1e9)))
        before = model.weight.detach().clone()
        numbers.step(optimizer)
        assert not torch.equal(model.weight, before)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_overflow_skips_the_step_and_lowers_the_scale(on_device: bool) -> None:
    model, numbers = nn.Linear(2, 1), precision(compute="fp16", initial_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=on_device)
    before = model.weight.detach().clone()
    loss = model(torch.full((1, 2), 1e38)).sum()
    numbers.backward(loss)
    numbers.unscale(optimizer)
    norm = clip_gradients(model.parameters(), 1.0)
    assert Overflows(numbers.scaler, 32, pytest.fail).add(loss.item(), norm.item(), judged=True)
    if on_device:
        numbers.step(optimizer, Verdict(loss.detach(), norm, Limits()).left_out)
    else:
        numbers.skip()
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
    """Train with a scale so high that fp16's gradients overflow; it is halved until they don't."""
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


FP16: dict[str, Any] = {"precision": {"compute": "fp16"}, "schedule": {"kind": "constant"}}


@pytest.mark.torch
def test_a_loss_that_is_not_finite_on_one_rank_is_no_overflow(tmp_path: Path) -> None:
    """Before this rule, such a run silently made 9 of its 60 updates, and ended well (exit code 0)."""
    poisoned = toy(double=False, poison=list(range(10, 61)), poisoned_rank=1, factor=math.nan)
    sentence = "Diverged: 3 steps in a row stand out at step 12 and there is no checkpoint to go back to"
    with pytest.raises(RankFailed, match=sentence):
        run_ranks(2, train, config(tmp_path, steps=60, **FP16, **poisoned))
    warnings = [line.get("text") for line in read_metrics(tmp_path / "report" / "metrics.jsonl")]
    assert "step 10 left out: loss nan, gradient norm nan stand out" in warnings


@pytest.mark.torch
def test_gradients_that_overflow_at_any_scale_end_the_run(tmp_path: Path) -> None:
    changes = {**FP16, "precision": {"compute": "fp16", "overflows": 10}}
    sentence = "Diverged: fp16's gradients overflowed in 10 steps in a row, the loss scale is down to 128"
    with pytest.raises(RankFailed, match=sentence):
        run_ranks(2, _with_infinite_gradients, config(tmp_path, steps=60, **changes, **toy(double=False)))
    lines = read_metrics(tmp_path / "report" / "metrics.jsonl")
    assert [line["text"] for line in lines if line.get("event") == "warning"][:2] == [
        "fp16's gradients overflowed in 4 steps in a row; the loss scale is 8192",
        "fp16's gradients overflowed in 8 steps in a row; the loss scale is 512",
    ]


def _with_infinite_gradients(settings: Any) -> None:
    """Train with a finite loss, while one rank's backward pass gives infinite gradients."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        if os.environ["RANK"] == "1":
            next(trainer.replica.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
        trainer.run()


@pytest.mark.torch
def test_a_run_that_made_far_fewer_updates_than_steps_says_so_at_its_end(tmp_path: Path) -> None:
    changes = {**FP16, "precision": {"compute": "fp16", "initial_scale": 2.0**30}}
    [run] = run_ranks(1, train, config(tmp_path, steps=40, **changes, **toy(double=False)))
    lines, updates = read_metrics(tmp_path / "report" / "metrics.jsonl"), run["state"].updates
    assert 20 < updates < 36
    warnings = [line["text"] for line in lines if line.get("event") == "warning"]
    assert warnings[-1] == f"only {updates} of 40 steps made an update, the others were left out"
    assert (lines[-1]["kind"], lines[-1]["updates"]) == ("result", updates)
    assert dict(facts(lines))["steps"] == f"40 of 40; {updates} of 40 made an update"
