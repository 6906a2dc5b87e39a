"""The command line (`__main__`, `run`) has exit codes and dry runs, and a mistake prints a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import TOY, exit_codes, run_ranks, start_command, trainloop
from tests.trainer.toy import Toy, config
from trainloop.config import Config
from trainloop.metrics import MetricsLog
from trainloop.run import dry_run


@pytest.mark.torch
def test_a_task_that_raises_ends_with_its_traceback_and_code_1(tmp_path: Path) -> None:
    """The error file that the launcher reads names the exception."""
    error_file = tmp_path / "error.json"
    wrong, out = ["--set", "steps=5", "--set", "task.options={samples: x}"], tmp_path / "out"
    process = start_command(out, trainloop, *TOY, *wrong, TORCHELASTIC_ERROR_FILE=str(error_file))
    assert exit_codes([process]) == [1]
    assert "Traceback" in out.read_text()
    assert "TypeError" in json.loads(error_file.read_text())["message"]["message"]


@pytest.mark.torch
def test_a_dry_run_prints_memory_and_step_time_and_leaves_nothing(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    assert exit_codes([start_command(out, _in_folder, folder, *TOY, "--set", "epochs=2", "--dry-run")]) == [0]
    printed = out.read_text()
    assert "s a step, peak memory" in printed and "10 steps in all" in printed
    assert "evaluation at step 2" in printed, "a mistake there would show at the end of the run only"
    assert list(folder.iterdir()) == []


def _in_folder(folder: Path, *arguments: str) -> None:
    os.chdir(folder)
    trainloop(*arguments)


class Mean(Toy):
    """Makes the mistake that the documents warn of: a loss that is a mean."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) / self.count(batch)


@pytest.mark.torch
@pytest.mark.parametrize(("task", "warned"), [(Toy, 0), (Mean, 1)])
def test_a_dry_run_warns_of_a_loss_that_is_a_mean(task: type[Toy], warned: int) -> None:
    [printed] = run_ranks(1, _printed_in_a_dry_run, config(task={"name": f"{task.__module__}:{task.__name__}"}))
    assert len([line for line in printed if "the task's loss is a mean" in line]) == warned


def _printed_in_a_dry_run(settings: Config) -> list[str]:
    printed: list[str] = []
    MetricsLog.info = lambda _, text: printed.append(text)  # type: ignore[method-assign]
    dry_run(settings)
    return printed


def test_a_wrong_configuration_ends_with_code_2_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from trainloop.__main__ import main

    assert main(["--set", "epochs=1", "--set", "batch.sise=3"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "trainloop: batch.sise (value 3) is not a field: did you mean 'size'?"
