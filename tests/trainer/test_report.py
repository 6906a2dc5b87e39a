"""The report at a run's end contains its numbers, its curves and a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop.plots import restarts
from trainloop.report import closing_line, read_metrics, write_report
from trainloop.run import train as train_run


def test_the_report_has_the_numbers_the_curves_and_the_comparison(tmp_path: Path) -> None:
    for name, speed, ranks in (("alone", 100.0, 1), ("together", 180.0, 2)):
        (tmp_path / name).mkdir()
        rows = [
            {"kind": "step", "attempt": 1 + (s > 30), "time": s, "step": s, "totalSteps": 60, "loss": 3 / s, "lr": 0.1}
            | {"gradNorm": 1.0, "samplesPerSecond": speed, "stepSeconds": 0.1, "dataWait": 0.02, "communication": 0.1}
            | {"bytesSent": 1000, "rankComputeSeconds": [0.05] * ranks}
            for s in range(10, 70, 10)
        ]
        about = {"task": "toy", "samples": 640, "parameters": 1234, "device": "cpu", "backend": "gloo", "torch": "2.13"}
        about |= {"ranks": ranks, "batch": 8 * ranks, "precision": "fp32", "maxNorm": 0.5, "totalSteps": 60}
        rows.insert(0, {"kind": "event", "attempt": 1, "time": 0, "event": "started", "step": 0, **about})
        rows.insert(4, {"kind": "event", "attempt": 2, "time": 31, "event": "resumed", "step": 30, "world": ranks})
        rows.insert(5, {**rows[0], "attempt": 2, "time": 31, "step": 30, "ranks": ranks + (ranks > 1)})
        rows.append({"kind": "checkpoint", "attempt": 2, "time": 61, "step": 60, "stallSeconds": 0.5})
        rows.append({"kind": "event", "attempt": 2, "time": 62, "step": 60, "event": "warning", "text": "<odd> & more"})
        rows.append({"kind": "evaluation", "attempt": 2, "time": 62, "step": 60, "loss": 0.1, "accuracy": 0.875})
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path / "together", tmp_path / "alone")
    assert page is not None
    text, markdown = page.read_text(), (tmp_path / "together" / "report.md").read_text()
    for piece in (
        "60 of 60",
        "0.8750",
        "1.80 times the samples/s (100.0 by one rank) with 2 ranks: 90% efficient",
        "2, 1 resumed from a checkpoint (step 30); 2 ranks, then 3 ranks",
        "toy: 640 samples, 1,234 parameters, 3 ranks on cpu over gloo, fp32, global batch 16, torch 2.13",
        "its global batch is 8, not 16",
        "0.50 s",
    ):
        assert piece in text and piece in markdown
    assert "&lt;odd&gt; &amp; more" in text
    assert text.count('src="data:image/png;base64,') == 2, "the page is one file"
    assert {path.name for path in page.parent.iterdir()} >= {"curves.png", "ranks.png", "report.md"}
    assert restarts(read_metrics(tmp_path / "together" / "metrics.jsonl")) == [40]


@pytest.mark.torch
def test_a_runs_report_names_it_and_compares_it(tmp_path: Path) -> None:
    for name, against in (("alone", "nowhere"), ("together", "alone")):
        metrics = {"path": str(tmp_path / name), "against": str(tmp_path / against), "every_steps": 2}
        run_ranks(1 + (name == "together"), train_run, config(steps=8, metrics=metrics))
    report = (tmp_path / "together" / "report.md").read_text()
    assert report.startswith("# Training report: tests.trainer.toy:Toy, 2 ranks\n")
    assert "| run | tests.trainer.toy:Toy: 40 samples" in report
    assert " with 2 ranks: " in report and "nothing to compare with" not in report
    assert "nowhere has no metrics.jsonl" in (tmp_path / "alone" / "report.md").read_text()


def test_the_report_is_of_the_newest_run_in_a_directory_that_is_used_again(tmp_path: Path) -> None:
    rows = []
    for run, last in enumerate((40, 20)):
        about = {
            "task": f"run{run}",
            "samples": 1,
            "parameters": 1,
            "device": "cpu",
            "backend": "gloo",
            "torch": "2.13",
        }
        about |= {"ranks": 1, "batch": 8, "precision": "fp32", "totalSteps": last, "attempt": 1, "time": 100 * run}
        rows.append({**about, "kind": "event", "event": "started", "step": 0})
        rows += [
            {"kind": "step", "attempt": 1, "time": 100 * run + s, "step": s, "totalSteps": last, "loss": float(s)}
            for s in range(10, last + 10, 10)
        ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path)
    assert page is not None
    assert "20 of 20" in page.read_text() and "run0" not in page.read_text()


def test_a_report_that_can_not_be_drawn_is_no_failure_of_the_run(tmp_path: Path) -> None:
    assert closing_line(tmp_path / "nowhere", None).startswith("warning: no report, FileNotFoundError")


def test_a_report_of_a_run_that_was_stopped_before_its_first_line_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"kind": "event", "attempt": 1, "time": 1, "step": 0, "event": "stopped"}) + "\n"
    )
    page = write_report(tmp_path)
    assert page is not None and "none" in page.read_text()
