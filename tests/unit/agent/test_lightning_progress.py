"""Lightning's Trainer reports through the agent's callback, which Lightning finds as an entry point."""

from __future__ import annotations

import pickle
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainmaster_operator.agent.build import library_sources
from trainmaster_operator.agent.library import lightning_progress
from trainmaster_operator.agent.progress.sources import parse_progress


class Callback:
    """Callback stands for Lightning's base class."""


class Training:
    """Training calls the callback as Lightning's loop does: two epochs of three batches, an evaluation after each."""

    def __init__(self, callback: Any, file: Path, **fields: Any) -> None:
        self.callback, self.file = callback, file
        self.trainer = SimpleNamespace(
            global_rank=0, global_step=0, max_steps=-1, max_epochs=2, current_epoch=0, num_training_batches=3,
            accumulate_grad_batches=1, is_last_batch=False,
        )  # fmt: skip
        vars(self.trainer).update(fields)

    def batch(self, index: int, outputs: Any) -> dict[str, Any]:
        """Returns the progress after a batch."""
        self.callback.on_train_batch_start(self.trainer, None, None, index)
        self.trainer.global_step += 1
        self.trainer.is_last_batch = index == 2
        self.callback.on_train_batch_end(self.trainer, None, outputs, None, index)
        return self.read()

    def read(self) -> dict[str, Any]:
        found = parse_progress(self.file.read_bytes())
        return {} if found is None else found.to_wire()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("TRAINMASTER_PROGRESS_FILE", str(tmp_path / "progress"))
    monkeypatch.setitem(sys.modules, "fake_lightning", ModuleType("fake_lightning"))
    monkeypatch.setattr(sys.modules["fake_lightning"], "Callback", Callback, raising=False)
    return "fake_lightning"


def test_steps_loss_and_sections_are_reported(module: str, tmp_path: Path) -> None:
    [callback] = lightning_progress.callbacks(module)
    assert isinstance(callback, Callback)
    training = Training(callback, tmp_path / "progress")
    callback.on_train_start(training.trainer, None)
    first = training.batch(0, {"loss": 0.5})
    assert (first["step"], first["totalSteps"], first["loss"], first["section"]) == (1, 6, 0.5, "train")
    training.batch(1, None)
    last = training.batch(2, None)
    assert (last["step"], last["epoch"], last["section"], last["sectionSeconds"]) == (3, 1.0, "evaluate", 3600.0)
    callback.on_validation_start(training.trainer, None)
    callback.on_validation_batch_end(training.trainer, None, None, None, 0)
    callback.on_save_checkpoint(training.trainer, None, {})
    assert training.read()["section"] == "checkpoint"
    training.trainer.current_epoch = 1
    again = training.batch(0, None)
    assert again["section"] == "train" and "sectionSeconds" not in again
    callback.on_train_end(training.trainer, None)
    assert (training.read()["section"], training.read()["sectionSeconds"]) == ("finish", 604800.0)


def test_a_process_that_lightning_itself_started_writes_no_other_ranks_file(module: str, tmp_path: Path) -> None:
    [callback] = lightning_progress.callbacks(module)
    training = Training(callback, tmp_path / "progress", global_rank=1)
    callback.on_train_start(training.trainer, None)
    callback.on_train_batch_start(training.trainer, None, None, 0)
    callback.on_train_batch_end(training.trainer, None, None, None, 0)
    callback.on_train_end(training.trainer, None)
    assert not (tmp_path / "progress").exists()


def test_the_number_of_steps_is_known_or_left_out(module: str) -> None:
    def total(**fields: Any) -> Any:
        return lightning_progress._total(Training(None, Path(), **fields).trainer)

    assert total(max_steps=50) == 50
    assert total(accumulate_grad_batches=2) == 4
    assert total(num_training_batches=float("inf")) is None
    assert total(max_epochs=-1) is None


def test_it_can_be_pickled_for_strategies_that_spawn(module: str) -> None:
    [callback] = lightning_progress.callbacks(module)
    assert type(pickle.loads(pickle.dumps(callback))).__name__ == "TrainmasterProgress"


def test_outside_of_a_job_there_is_none(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_PROGRESS_FILE")
    assert lightning_progress.callbacks(module) == []


def test_lightning_finds_it_in_the_librarys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in library_sources().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    [found] = [one for one in distributions(path=[str(tmp_path)]) if one.metadata["Name"] == "trainmaster-library"]
    assert {point.group for point in found.entry_points} == {
        "lightning.pytorch.callbacks_factory",
        "pytorch_lightning.callbacks_factory",
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TRAINMASTER_PROGRESS_FILE", raising=False)
    assert [point.load()() for point in found.entry_points] == [[], []]
