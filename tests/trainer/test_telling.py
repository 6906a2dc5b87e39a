"""What a run tells: progress for the agent, metrics for programs, and who it is that all wait for (T7, T22)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributed import HashStore

from tests.trainer.ranks import environment, free_port, run_ranks
from tests.trainer.test_health import python_m_trainloop
from tests.trainer.toy import Toy, config, train
from trainloop.config import Config
from trainloop.distributed.watchdog import Watchdog, WatchdogSettings, stall_message
from trainloop.distributed.world import World, joined
from trainloop.metrics import MetricsLog, read_metrics, write_prometheus
from trainloop.progress import Progress, heartbeat
from trainloop.run import dry_run
from trainloop.trainer import Trainer


def test_progress_replaces_one_line_and_leaves_out_what_is_not_finite(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")
    progress.enter("train", seconds=30, message="x" * 300)
    progress.step(3, totalSteps=10, loss=float("nan"), samplesPerSecond=5.0)
    progress.result({f"number{i}": float(i) for i in range(20)} | {"bad": float("inf")})
    [line] = (tmp_path / "progress").read_text().splitlines()
    told = json.loads(line)
    assert told["section"] == "train" and told["sectionSeconds"] == 30 and len(told["message"]) == 200
    assert told["step"] == 3 and told["totalSteps"] == 10 and "loss" not in told
    assert len(told["result"]) == 16 and "bad" not in told["result"]
    assert len(line) < 4096
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


def test_what_training_waited_is_counted_from_its_first_step_on(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress")

    def told() -> dict[str, Any]:
        read: dict[str, Any] = json.loads((tmp_path / "progress").read_text())
        return read

    progress.enter("checkpoint", message="looking for a checkpoint")
    time.sleep(0.02)
    assert "checkpointSeconds" not in told()
    progress.begin(40)
    assert (told()["startStep"], told()["section"], told()["checkpointSeconds"]) == (40, "train", 0)
    progress.wait_for_data(1.5)
    progress.wait_for_data(0.25)
    for section in ("evaluate", "checkpoint", "train"):
        progress.enter(section)  # type: ignore[arg-type]
        time.sleep(0.02)
    assert told()["dataSeconds"] == 1.75
    assert 0.02 <= told()["evaluateSeconds"] < 10 and 0.02 <= told()["checkpointSeconds"] < 10


def test_several_ranks_of_a_worker_write_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_PROGRESS_FILE", str(tmp_path / "progress"))
    assert Progress.from_environment(5, 8).path == tmp_path / "progress.5"
    assert Progress.from_environment(5, 1).path == tmp_path / "progress"
    heartbeat(7, 9, 0.5)
    told = json.loads((tmp_path / "progress").read_text())
    assert told == {"section": "train", "step": 7, "totalSteps": 9, "loss": 0.5}
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    heartbeat(8)
    assert json.loads((tmp_path / "progress.5").read_text())["step"] == 8


def test_outside_trainmaster_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_PROGRESS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    heartbeat(1)
    Progress.from_environment(0, 1).enter("train")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_each_rank_tells_its_own_samples_a_second_so_that_their_sum_is_the_jobs(tmp_path: Path) -> None:
    runs = run_ranks(2, _told_and_logged, config(tmp_path, batch={"size": 7}), tmp_path)
    *_, line = [line for line in read_metrics(tmp_path / "report" / "metrics.jsonl") if line["kind"] == "step"]
    assert line["samplesPerSecond"] == runs[0][1]
    # Each rank measures the time by its own clock, so what all told together is compared rank by rank.
    for (told, logged), samples in zip(runs, (3, 2), strict=True):  # the sixth step has what is left of the epoch
        assert told == pytest.approx(logged * samples / 5)


def _told_and_logged(settings: Config, folder: Path) -> tuple[float, float]:
    """Samples a second in the rank's progress at the end, and in the last line as this rank has it."""
    file, lines = folder / f"progress-{os.environ['RANK']}", list[dict[str, Any]]()
    # Set here, because ranks don't have the environment of the test.
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        log = trainer.log.step

        def noted(step: int, total: int, line: dict[str, Any]) -> None:
            lines.append(line)
            log(step, total, line)

        trainer.log.step = noted  # type: ignore[method-assign]
        trainer.run()
    return json.loads(file.read_text())["samplesPerSecond"], lines[-1]["samplesPerSecond"]


@pytest.mark.torch
def test_a_runs_metrics_are_read_back(tmp_path: Path) -> None:
    report = {"path": str(tmp_path), "every_steps": 2, "plot": False, "prometheus_file": str(tmp_path / "run.prom")}
    report |= {"tensorboard": True, "peak_tflops": 0.5}
    run_ranks(2, train, config(metrics=report, hooks=["tests.trainer.test_telling:note_every_step"]))
    lines = read_metrics(tmp_path / "metrics.jsonl")
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 4, 6]
    for line in steps:
        assert line["loss"] > 0 and line["gradNorm"] > 0 and line["samplesPerSecond"] > 0
        assert 0 <= line["dataWait"] <= 1 and 0 <= line["communication"] <= 1
        assert len(line["rankComputeSeconds"]) == 2
        # 83 numbers of 8 bytes around a ring of two: each rank sends each number once.
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
    assert [line["step"] for line in lines if line.get("event") == "noted"] == [1, 2, 3, 4, 5, 6]


def note_every_step(trainer: Trainer) -> None:
    """A hook, as a user would write one."""
    trainer.after_step.append(lambda it: it.log.write("event", {"event": "noted", "step": it.state.step}))


def test_prometheus_names_are_snake_case(tmp_path: Path) -> None:
    write_prometheus(tmp_path / "x.prom", {"step": 1, "samplesPerSecond": 2.5, "ranks": [1]})
    assert "trainloop_samples_per_second 2.5\n" in (tmp_path / "x.prom").read_text()


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n{"kind": "st')
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"kind": "step", "step": 1}]


def test_who_holds_the_others_up() -> None:
    waits = {"what": "forward and backward", "waits": True}
    loads = {"what": "fetching data", "waits": False}
    assert stall_message({0: waits, 1: loads, 2: waits}) == "rank 1 is fetching data; rank 0, 2 wait for them"
    assert stall_message({0: waits, 1: None}).startswith("rank 1 doesn't answer")
    assert stall_message({0: waits, 1: waits}).startswith("all ranks wait in a collective")


@pytest.mark.parametrize(("attempt", "ranks_watch"), [(None, True), ("1", False)])
def test_a_stall_is_judged_by_the_agent_or_else_by_the_ranks(
    monkeypatch: pytest.MonkeyPatch, attempt: str | None, ranks_watch: bool
) -> None:
    monkeypatch.delenv("TRAINMASTER_ATTEMPT", raising=False)
    if attempt:
        monkeypatch.setenv("TRAINMASTER_ATTEMPT", attempt)
    world = World(0, 2, 0, 1, torch.device("cpu"), "gloo", HashStore())
    with Watchdog(WatchdogSettings(), world) as watchdog:
        watchdog.at("fetching data", 3)
        assert ("watchdog" in [thread.name for thread in threading.enumerate()]) is ranks_watch


TOY = ["--set", "task.name=tests.trainer.toy:Toy", "--set", "batch.size=8", "--set", "precision.compute=fp64"]


@pytest.mark.torch
def test_a_stopped_rank_is_named_by_the_others_and_the_run_goes_on_when_it_does(tmp_path: Path) -> None:
    port = free_port()
    arguments = [*TOY, "--set", "steps=1000000", "--set", "watchdog.stall_seconds=1"]
    arguments += ["--set", f"metrics.path={tmp_path}", "--set", f"checkpoint.path={tmp_path}/checkpoints"]
    ranks = [python_m_trainloop(*arguments, **environment(rank, 2, port)) for rank in range(2)]
    try:
        _wait_for(lambda: (tmp_path / "metrics.jsonl").is_file() and "step" in (tmp_path / "metrics.jsonl").read_text())
        ranks[1].send_signal(signal.SIGSTOP)
        said = ""
        assert ranks[0].stdout is not None
        # A loaded machine may hold both up for a second: that is said too, and isn't this.
        while "rank 1 doesn't answer" not in said:
            said += ranks[0].stdout.readline() or pytest.fail(said)
        ranks[1].send_signal(signal.SIGCONT)
        time.sleep(0.5)
        ranks[0].send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.communicate(timeout=120)
    finally:
        for rank in ranks:
            rank.kill()
    assert "stalled at step" in said
    assert "rank 1 doesn't answer: its process is stopped, swapped out or gone; rank 0 wait for them" in said
    assert [rank.returncode for rank in ranks] == [143, 143]


def _wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.torch
def test_a_task_that_raises_ends_with_its_traceback_and_code_1(tmp_path: Path) -> None:
    """T8's part in the loop: the error file that the launcher reads names the exception."""
    error_file = tmp_path / "error.json"
    process = python_m_trainloop(
        *TOY, "--set", "steps=5", "--set", "task.options={samples: x}", TORCHELASTIC_ERROR_FILE=str(error_file)
    )
    output = process.communicate(timeout=150)[0]
    assert process.returncode == 1
    assert "Traceback" in output
    assert "TypeError" in json.loads(error_file.read_text())["message"]["message"]


@pytest.mark.torch
def test_a_dry_run_says_memory_and_step_time_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainloop", *TOY, "--set", "epochs=2", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert "s a step, peak memory" in done.stdout and "10 steps in all" in done.stdout
    assert "evaluation at step 2" in done.stdout, "a mistake there would show at the end of the run only"
    assert list(tmp_path.iterdir()) == []


class Mean(Toy):
    """The mistake that the documents warn of: a loss that is a mean."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) / self.count(batch)


@pytest.mark.torch
@pytest.mark.parametrize(("task", "warned"), [(Toy, 0), (Mean, 1)])
def test_a_dry_run_warns_of_a_loss_that_is_a_mean(task: type[Toy], warned: int) -> None:
    [said] = run_ranks(1, _said_in_a_dry_run, config(task={"name": f"{task.__module__}:{task.__name__}"}))
    assert len([line for line in said if "the task's loss is a mean" in line]) == warned


def _said_in_a_dry_run(settings: Config) -> list[str]:
    said: list[str] = []
    MetricsLog.say = lambda _, text: said.append(text)  # type: ignore[method-assign]
    dry_run(settings)
    return said


def test_a_wrong_configuration_ends_with_code_2_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from trainloop.__main__ import main

    assert main(["--set", "epochs=1", "--set", "batch.sise=3"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "trainloop: batch.sise (value 3) is not a field: did you mean 'size'?"
