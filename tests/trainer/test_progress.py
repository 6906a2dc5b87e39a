"""A rank reports its progress to the agent through a file, in the protocol's terms."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, toy, train
from trainloop.__main__ import EXIT_STOPPED
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.errors import Diverged, PreflightMismatch, TrainingError
from trainloop.progress import MAXIMUM_MESSAGE, MAXIMUM_RESULTS, Progress, Section, heartbeat
from trainloop.report import read_metrics
from trainloop.trainer import Trainer
from trainmaster_operator.wire.limits import MAX_MESSAGE_CHARACTERS, MAX_RESULTS
from trainmaster_operator.wire.ranks import SECTIONS
from trainmaster_operator.wire.report import EXIT_BY_REASON, EXIT_DIVERGED, EXIT_TERMINATED


def test_what_the_loop_repeats_of_the_protocol_is_what_the_wire_says() -> None:
    """The loop imports nothing of the operator's, so that it can be installed alone."""
    assert get_args(Section) == SECTIONS
    assert (MAXIMUM_MESSAGE, MAXIMUM_RESULTS) == (MAX_MESSAGE_CHARACTERS, MAX_RESULTS)
    assert (EXIT_STOPPED, Diverged.exit_code) == (EXIT_TERMINATED, EXIT_DIVERGED)
    assert PreflightMismatch.exit_code == EXIT_BY_REASON["PreflightMismatch"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"anomaly": {"rollback_after": 2}, **toy(poison=[2, 3], factor=math.nan)},
            "2 steps in a row stand out at step 3",
        ),
        (toy(unused=True), "parameters without gradient after the first step: no rank has a gradient for 0.unused"),
    ],
)
def test_what_ends_a_run_is_in_every_ranks_progress_report(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    for reported in run_ranks(2, _progress_of_a_failing_run, config(tmp_path, **changes), tmp_path):
        assert reported["message"].startswith(message)


@pytest.mark.torch
def test_a_step_that_is_left_out_is_in_every_ranks_progress_report(tmp_path: Path) -> None:
    changes = {"steps": 70, **toy(poison=[70], poisoned_rank=1)}
    for reported in run_ranks(2, _progress_after_each_step, config(tmp_path, **changes), tmp_path):
        assert reported[-1]["message"].startswith("step 70 left out: loss ")
        assert all("message" not in line for line in reported[:-1])


def _progress_after_each_step(settings: Any, folder: Path) -> list[dict[str, Any]]:
    file, reported = folder / f"progress-{os.environ['RANK']}", list[dict[str, Any]]()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.after_step.append(lambda _: reported.append(json.loads(file.read_text())))
        trainer.run()
    return reported


def _progress_of_a_failing_run(settings: Any, folder: Path) -> dict[str, Any]:
    file = folder / f"progress-{os.environ['RANK']}"
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with pytest.raises(TrainingError):
        train(settings)
    reported: dict[str, Any] = json.loads(file.read_text())
    return reported


def test_progress_replaces_one_line_and_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")
    progress.enter("train", seconds=30, message="x" * 300)
    progress.step(3, totalSteps=10, loss=float("nan"), samplesPerSecond=5.0)
    progress.result({f"number{i}": float(i) for i in range(20)} | {"bad": float("inf")})
    [line] = (tmp_path / "progress").read_text().splitlines()
    reported = json.loads(line)
    assert reported["section"] == "train" and reported["sectionSeconds"] == 30 and len(reported["message"]) == 200
    assert reported["step"] == 3 and reported["totalSteps"] == 10 and "loss" not in reported
    assert len(reported["result"]) == 16 and "bad" not in reported["result"]
    assert len(line) < 4096
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress", "progress.step"]


def test_the_step_alone_is_written_in_every_step(tmp_path: Path) -> None:
    progress, counter = Progress(tmp_path / "progress"), tmp_path / "progress.step"
    progress.enter("setup")
    assert not counter.exists(), "no step is known yet"
    progress.begin(40)
    for step in (40, 41, 42, 43, 39):  # as in a run that rolls back
        if step > 40 or step < 40:
            progress.step(step)
        assert int.from_bytes(counter.read_bytes(), "little") == step
    assert json.loads((tmp_path / "progress").read_text())["step"] == 41


def test_what_training_waited_is_counted_from_its_first_step_on(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")

    def reported() -> dict[str, Any]:
        read: dict[str, Any] = json.loads((tmp_path / "progress").read_text())
        return read

    progress.enter("checkpoint", message="looking for a checkpoint")
    time.sleep(0.02)
    assert "checkpointSeconds" not in reported()
    progress.begin(40)
    assert (reported()["startStep"], reported()["section"], reported()["checkpointSeconds"]) == (40, "train", 0)
    progress.wait_for_data(1.5)
    progress.wait_for_data(0.25)
    for section in ("evaluate", "checkpoint", "train"):
        progress.enter(section)  # type: ignore[arg-type]
        time.sleep(0.02)
    assert reported()["dataSeconds"] == 1.75
    assert 0.02 <= reported()["evaluateSeconds"] < 10 and 0.02 <= reported()["checkpointSeconds"] < 10


def test_the_way_to_the_first_step_is_reported_as_soon_as_that_is_done(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")
    before = time.time()
    progress.join()
    progress.begin(40)
    for step in (41, 42):
        progress.step(step)
    reported = json.loads((tmp_path / "progress").read_text())
    assert reported["step"] == 41, "the second step is too early for a write, the first one never"
    assert before <= reported["joinedAt"] <= reported["restoredAt"] <= reported["firstStepAt"] <= time.time()


def test_several_ranks_of_a_worker_write_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_PROGRESS_FILE", str(tmp_path / "progress"))
    assert Progress.from_environment(5, 8).path == tmp_path / "progress.5"
    assert Progress.from_environment(5, 1).path == tmp_path / "progress"
    heartbeat(7, 9, 0.5)
    reported = json.loads((tmp_path / "progress").read_text())
    assert reported == {"section": "train", "startStep": 6, "step": 7, "totalSteps": 9, "loss": 0.5}
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    heartbeat(8, gradNorm=1.5, learningRate=None)
    expected = {"section": "train", "startStep": 7, "step": 8, "gradNorm": 1.5}
    assert json.loads((tmp_path / "progress.5").read_text()) == expected
    heartbeat(9)
    assert json.loads((tmp_path / "progress.5").read_text()) == {"section": "train", "startStep": 7, "step": 9}
    assert int.from_bytes((tmp_path / "progress.5.step").read_bytes(), "little") == 9


def test_any_metric_is_reported_and_kept_until_it_is_reported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMASTER_PROGRESS_FILE", str(tmp_path / "progress"))
    heartbeat(1, accuracy=0.25, grad_norm=2.0, **{"val/f1": 0.5, "not a name": 1.0, "lost": float("nan")})
    heartbeat(2, loss=0.5, accuracy=0.75)
    reported = json.loads((tmp_path / "progress").read_text())
    assert reported["metrics"] == {"accuracy": 0.75, "val/f1": 0.5}
    assert reported["loss"] == 0.5 and "gradNorm" not in reported, "a field of the protocol is this step's"
    heartbeat(3, **{f"metric_{number}": float(number) for number in range(100)})
    assert len(json.loads((tmp_path / "progress").read_text())["metrics"]) == 32
    progress = Progress(tmp_path / "other")
    progress.step(4, loss=1.0)
    progress.report(eval_loss=0.5)
    reported = json.loads((tmp_path / "other").read_text())
    assert (reported["step"], reported["metrics"]) == (4, {"eval_loss": 0.5})


def test_outside_trainmaster_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_PROGRESS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    heartbeat(1)
    Progress.from_environment(0, 1).enter("train")
    assert list(tmp_path.iterdir()) == []


def test_a_rank_reports_the_group_that_it_is_in_and_times_the_next_one_anew(tmp_path: Path) -> None:
    progress, file = Progress(tmp_path / "progress"), tmp_path / "progress"
    progress.join()
    progress.begin(0)
    progress.able(1)
    progress.wait_for_data(3.0)
    progress.step(1)
    before = json.loads(file.read_text())
    assert (before["continuing"], before["group"]) == ("able", 1)
    progress.joined_again(1)
    progress.able(3)
    formed = json.loads(file.read_text())
    assert (formed["continuing"], formed["group"], formed["startStep"], formed["dataSeconds"]) == ("able", 3, 1, 0.0)
    assert formed["restoredAt"] >= formed["joinedAt"] > before["joinedAt"] and "firstStepAt" not in formed
    progress.step(2)
    assert json.loads(file.read_text())["firstStepAt"] >= formed["restoredAt"]


def test_a_rank_is_either_ready_to_join_or_able_to_continue_or_says_why_not(tmp_path: Path) -> None:
    progress, file = Progress(tmp_path / "progress"), tmp_path / "progress"
    progress.ready()
    assert json.loads(file.read_text())["continuing"] == "ready"
    progress.able(2)
    progress.cannot_continue("x" * 300)
    assert {"group": 2, "cannotContinue": "x" * MAXIMUM_MESSAGE}.items() <= json.loads(file.read_text()).items()
    assert "continuing" not in json.loads(file.read_text())
    progress.able(3)
    assert "cannotContinue" not in json.loads(file.read_text())


@pytest.mark.torch
def test_each_rank_reports_its_own_samples_a_second_so_that_their_sum_is_the_jobs(tmp_path: Path) -> None:
    runs = run_ranks(2, _reported_and_logged, config(tmp_path, batch={"size": 7}), tmp_path)
    *_, line = [line for line in read_metrics(tmp_path / "report" / "metrics.jsonl") if line["kind"] == "step"]
    assert line["samplesPerSecond"] == runs[0][1]
    # Each rank measures time by its own clock, so values that all report together are compared rank by rank.
    for (reported, logged), samples in zip(runs, (3, 2), strict=True):  # the sixth step has the rest of the epoch
        assert reported == pytest.approx(logged * samples / 5)


@pytest.mark.torch
def test_what_ranks_that_share_layers_report_adds_up_too(tmp_path: Path) -> None:
    task = {"name": "tests.trainer.shapes:Planned", "options": {"0": "columns", "2": "rows"}}
    parallel = {"strategy": "fsdp", "tensor": 2}
    runs = run_ranks(4, _reported_and_logged, config(tmp_path, task=task, parallel=parallel), tmp_path)
    assert sum(reported / logged for reported, logged in runs) == pytest.approx(1)


def _reported_and_logged(settings: Config, folder: Path) -> tuple[float, float]:
    """Returns the samples per second in the rank's progress at the end, and in this rank's last line."""
    file, lines = folder / f"progress-{os.environ['RANK']}", list[dict[str, Any]]()
    # Set here, because ranks don't have the test's environment.
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        log = trainer.log.step

        def recorded(step: int, total: int, line: dict[str, Any]) -> None:
            lines.append(line)
            log(step, total, line)

        trainer.log.step = recorded  # type: ignore[method-assign]
        trainer.run()
    return json.loads(file.read_text())["samplesPerSecond"], lines[-1]["samplesPerSecond"]
