"""A run's numbers are written as JSON lines (`metrics`), TensorBoard events and Prometheus text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, train
from trainloop.metrics import Prometheus
from trainloop.report import read_metrics
from trainloop.trainer import Trainer


@pytest.mark.torch
def test_a_runs_metrics_are_read_back(tmp_path: Path) -> None:
    report = {"path": str(tmp_path), "every_steps": 2, "plot": False, "prometheus_file": str(tmp_path / "run.prom")}
    report |= {"tensorboard": True, "peak_tflops": 0.5}
    run_ranks(2, train, config(metrics=report, hooks=["tests.trainer.test_metrics:record_every_step"]))
    lines = read_metrics(tmp_path / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 4, 6]
    for line in steps:
        assert line["loss"] > 0 and line["gradNorm"] > 0 and line["samplesPerSecond"] > 0
        assert 0 <= line["dataWait"] <= 1 and 0 <= line["communication"] <= 1
        assert len(line["rankComputeSeconds"]) == 2
        # 83 numbers of 8 bytes in a ring of two: each rank sends each number once.
        assert line["bytesSent"] == 83 * 8
        assert line["mfu"] == pytest.approx(6 * 83 * line["termsPerSecond"] / (2 * 0.5e12))
        assert line["hostMemory"] > 50 << 20
    assert lines[-1]["kind"] == "result" and 0 <= lines[-1]["accuracy"] <= 1
    samples = dict(line.split() for line in (tmp_path / "run.prom").read_text().splitlines() if line[0] != "#")
    assert float(samples["trainloop_step"]) == 6
    assert float(samples["trainloop_loss"]) == steps[-1]["loss"]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("step/loss")] == [
        (line["step"], pytest.approx(line["loss"])) for line in steps
    ]
    assert [line["step"] for line in lines if line.get("event") == "recorded"] == [1, 2, 3, 4, 5, 6]


def record_every_step(trainer: Trainer) -> None:
    """Registers a hook, as a user would write it."""
    trainer.after_step.append(lambda it: it.log.write("event", {"event": "recorded", "step": it.state.step}))


def test_prometheus_names_are_snake_case(tmp_path: Path) -> None:
    Prometheus(tmp_path / "x.prom").write("step", {"step": 1, "samplesPerSecond": 2.5, "ranks": [1]})
    assert "trainloop_samples_per_second 2.5\n" in (tmp_path / "x.prom").read_text()


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n{"kind": "st')
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"kind": "step", "step": 1}]
