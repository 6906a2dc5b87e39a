"""All ranks together leave out an odd step; several odd steps in a row lead back to a checkpoint."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import config, largest_difference, same_bits, toy, train
from trainloop.checkpoints import saving
from trainloop.optimization.anomaly import AnomalyDetector, AnomalySettings, History


@pytest.mark.torch
def test_a_step_poisoned_on_one_rank_is_left_out_by_all(tmp_path: Path) -> None:
    """All ranks skip the 70th step and stay equal, and the run ends nearly where it would have without the fault."""
    changes: dict[str, Any] = {"steps": 100, "schedule": {"kind": "constant", "warmup": 0}}
    poisoned = run_ranks(2, train, config(tmp_path, **changes, **toy(poison=[70], poisoned_rank=1)))
    assert largest_difference(poisoned[0]["weights"], poisoned[1]["weights"]) == 0
    assert [rank["state"].updates for rank in poisoned] == [99, 99]
    assert poisoned[0]["results"]["accuracy"] > 0.9
    assert "step 70 left out: loss " in (tmp_path / "report" / "metrics.jsonl").read_text()


@pytest.mark.torch
def test_a_run_of_odd_steps_goes_back_to_the_checkpoint_and_passes_over_the_data(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "steps": 100,
        "schedule": {"kind": "constant", "warmup": 0},
        "checkpoint": {"path": str(tmp_path / "checkpoints"), "every_steps": 65, "resume": False},
    }
    # An older run's checkpoint: this run doesn't resume (resume is false), so it neither returns to it nor deletes it.
    old = saving.write(tmp_path / "checkpoints", 900, {}, {"results": {}})
    runs = run_ranks(2, train, config(tmp_path, **changes, **toy(poison=[70, 71, 72], poisoned_rank=1)))
    log = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert "went back to step 65" in log
    assert old.path.is_dir()
    assert largest_difference(runs[0]["weights"], runs[1]["weights"]) == 0
    state = runs[0]["state"]
    assert state.step == state.updates == 100
    # Steps 66 to 72 were computed and taken back, and their data isn't used again: 100 + 7 steps of 8 samples of 40.
    assert state.position == (100 + 7) * 8


@pytest.mark.torch
def test_a_run_that_was_made_longer_stays_so_when_it_goes_back(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"schedule": {"kind": "constant"}, "batch": {"per_rank": 8}}
    run_ranks(1, train, config(tmp_path, **changes, steps=3))
    poisoned = toy(poison=[1, 2, 3], factor=math.nan)
    changes["batch"] = {"size": 10}
    [run] = run_ranks(1, train, config(tmp_path, **changes, **poisoned, steps=9))
    assert "went back to step 3" in (tmp_path / "report" / "metrics.jsonl").read_text()
    assert (run["state"].step, run["state"].total, run["state"].batch) == (9, 9, 10)
    assert run["state"].position == 3 * 8 + (3 + 6) * 10 - 4, "an epoch's last step has 6 samples"


@pytest.mark.torch
def test_odd_steps_in_a_row_are_counted_over_a_resume_and_anew_after_a_return(tmp_path: Path) -> None:
    """The checkpoint is of step 7, after two of four odd steps. The third leads back to it, and the fourth is
    left out.
    """
    runs, changes = [], {"steps": 12, "schedule": {"kind": "constant", "warmup": 0}}
    for name in ("through", "parts"):
        checkpoint = {"path": str(tmp_path / name), "every_steps": 7}
        through = config(**changes, checkpoint=checkpoint, **toy(poison=[6, 7, 8, 9], factor=math.nan))
        if name == "parts":
            run_ranks(1, train, through, 7)
            through = config(**changes, checkpoint=checkpoint, **toy(poison=[1, 2], factor=math.nan))
        runs += run_ranks(1, train, through)
    one, other = runs
    assert one["state"] == other["state"] and same_bits(one["weights"], other["weights"])
    assert (one["state"].updates, one["state"].position) == (9, 12 * 8 + 8)


@pytest.mark.torch
def test_without_a_checkpoint_numbers_that_are_not_finite_end_the_run_as_diverged(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"steps": 60, "anomaly": {"rollback_after": 2}}
    sentence = "2 steps in a row stand out at step 41 and there is no checkpoint to go back to: look at the data"
    with pytest.raises(RankFailed, match=f"Diverged: {sentence}"):
        run_ranks(1, train, config(tmp_path, **changes, **toy(poison=[40, 41], factor=math.nan)))
    lines = [json.loads(line) for line in (tmp_path / "report" / "metrics.jsonl").read_text().splitlines()]
    [at_40] = [line for line in lines if line["kind"] == "step" and line["step"] == 40]
    assert at_40["loss"] is None, "NaN is no JSON"
    assert "step 40 left out: loss nan, gradient norm nan stand out" in [line.get("text") for line in lines]


@pytest.mark.torch
def test_without_a_checkpoint_a_clipped_step_is_made_in_the_end(tmp_path: Path) -> None:
    """A growing learning rate makes one odd step after another; if all were skipped, the run would make no progress."""
    changes: dict[str, Any] = {"steps": 90, "anomaly": {"rollback_after": 3}}
    [run] = run_ranks(1, train, config(tmp_path, **changes, **toy(poison=list(range(70, 76)))))
    assert run["state"].step == 90
    assert run["state"].updates == 88


def judged(detector: AnomalyDetector, loss: float, norm: float) -> str:
    return detector.judge(loss, norm, detector.limits())


def test_falling_is_no_anomaly_and_not_finite_always_is() -> None:
    detector = AnomalyDetector(AnomalySettings.model_validate({"least": 4, "rollback_after": 2, "loss_ratio": 1.0}))
    assert [judged(detector, 1.0 + 0.1 * (step % 3), 1.0) for step in range(8)] == ["step"] * 8
    assert judged(detector, 0.1, 1.0) == "step"
    assert judged(detector, math.nan, 1.0) == "skip"
    assert judged(detector, 1.0, math.inf) == "rollback"
    assert judged(detector, 1.0, 1.0) == "step"
    assert judged(detector, -math.inf, 1.0) == "skip"
    assert judged(detector, -5.0, 1.0) == "step"


def test_a_healthy_loss_with_normal_noise_is_hardly_ever_skipped() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, generator=generator).tolist()
    detector = AnomalyDetector(AnomalySettings.model_validate({}))
    assert sum(judged(detector, 2 + 0.1 * value, 1.0) != "step" for value in noise) <= 1
    assert History(1000, noise).limit(threshold=4.0, ratio=1.0) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("length", [4, 5, 64, 127, 128, 300])
def test_the_limit_is_the_robust_z_score_of_the_newest_numbers(length: int) -> None:
    """The median and the deviation equal those found by sorting, for equal, negative and extreme numbers too."""
    drawn = torch.randn(length, generator=torch.Generator().manual_seed(length)).mul(4).round().tolist()
    history = History(128)
    for number in [*drawn, -1e9, 1e9, *drawn[:3]]:
        history.add(number)
        newest = list(history.values)
        median = statistics.median(newest)
        deviation = statistics.median(abs(other - median) for other in newest)
        far = max(8.0 / 0.6745 * max(deviation, 0.01 * abs(median), 1e-300), 0.5 * abs(median))
        assert history.limit(threshold=8.0, ratio=1.5) == pytest.approx(median + far, rel=1e-6)
        # Known numbers are judged the same, most of them without computing the deviation.
        for number in (median, 1.5 * median, median + far, median + 1.01 * far, 1e9, math.nan):
            exact, quick = history.limit(8.0, 1.5), history.limit(8.0, 1.5, number)
            assert (number <= quick) == (number <= exact)
    assert newest == [*drawn, -1e9, 1e9, *drawn[:3]][-128:]
