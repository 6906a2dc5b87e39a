"""One rank of each disk writes a checkpoint, the newest and the best stay, and the weights are left at the end."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, train
from trainloop import run
from trainloop.checkpoints import storage, verification
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.distributed.world import World, joined
from trainloop.errors import ConfigError
from trainloop.trainer import Trainer


@pytest.mark.torch
def test_a_rank_with_an_empty_disk_is_given_the_others_checkpoint(tmp_path: Path) -> None:
    """Each rank has a disk of its own, as with an emptyDir; rank 0's pod was replaced."""
    first = run_ranks(3, _with_own_disk, tmp_path)
    for file in sorted((tmp_path / "disk0").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    second = run_ranks(3, _with_own_disk, tmp_path)
    assert [rank["writer"] for rank in first] == [0, 1, 2]
    assert [rank["loaded"] for rank in first] == [None] * 3
    assert [rank["loaded"] for rank in second] == [5] * 3
    assert verification.verify(storage.complete(tmp_path / "disk0")[0].path) is None


def _with_own_disk(folder: Path) -> dict[str, Any]:
    with joined(config().distributed) as world:
        disk = folder / f"disk{world.rank}"
        checkpoints = Checkpointer(CheckpointSettings.model_validate({}), world, disk)
        loaded = next((state["number"] for _, state in checkpoints.valid()), None)
        if loaded is None:
            checkpoints.save(1, {"number": 5, "tensor": torch.arange(3)}, {})
        return {"writer": checkpoints.writer, "loaded": loaded}


@pytest.mark.torch
def test_ranks_that_share_a_directory_have_one_writer(tmp_path: Path) -> None:
    assert run_ranks(3, _writer_of, tmp_path) == [0, 0, 0]


def _writer_of(folder: Path) -> int:
    with joined(config().distributed) as world:
        checkpointer = Checkpointer(CheckpointSettings.model_validate({"mode": "process"}), world, folder)
        assert bool(multiprocessing.active_children()) == checkpointer.is_writer, "a writing process, and only there"
        return checkpointer.writer


#: Notes what is synced, renamed and deleted, in this process and, as its sitecustomize, in a writing process.
RECORDER = """
import os, shutil
fsync, rename, rmtree = os.fsync, os.rename, shutil.rmtree
def record(*words):
    with open(os.environ["RECORDED_CALLS"], "a") as file:
        print(*words, file=file)
def recorded_fsync(descriptor):
    fsync(descriptor)
    record("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
def recorded_rename(old, new):
    rename(old, new)
    record("rename", old, new)
def recorded_rmtree(path, *arguments, **options):
    record("delete", path)
    rmtree(path, *arguments, **options)
os.fsync, os.rename, shutil.rmtree = recorded_fsync, recorded_rename, recorded_rmtree
"""


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["sync", "thread", "process"])
def test_an_older_checkpoint_goes_when_the_newer_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Else a crash of the machine could leave neither: a rename may reach the disk before what it names."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    calls, folder = tmp_path / "calls", tmp_path / "made" / "saved"
    monkeypatch.setenv("RECORDED_CALLS", str(calls))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    for module, name in ((os, "fsync"), (os, "rename"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    exec(RECORDER, {})
    world = World(0, 1, 0, 1, torch.device("cpu"), "gloo")
    checkpoints = Checkpointer(CheckpointSettings.model_validate({"mode": mode, "keep": 1}), world, folder)
    for step in (1, 2):
        partial = storage.partial_name(folder, step)
        (partial / "shards").mkdir(parents=True)
        (partial / "shards" / "rank-00000.pt").write_bytes(b"its part")
        assert checkpoints.save(step, {"tensor": torch.ones(3)}, {}, partial) == []
    assert checkpoints.close() == []
    lines = calls.read_text().splitlines()
    assert lines[:2] == [f"sync {folder.parent}", f"sync {tmp_path}"], "the new directories"
    inside = ("", "/state.pt", "/manifest.json", "/shards", "/shards/rank-00000.pt")
    synced = [lines.index(f"sync {partial}{name}") for name in inside]
    renamed = lines.index(f"rename {partial} {folder}/step-000000002.1")
    known = lines.index(f"sync {folder}", renamed)
    [deleted] = [number for number, line in enumerate(lines) if line.startswith("delete")]
    assert max(synced) < renamed < known < deleted


def test_a_step_that_is_saved_again_overwrites_nothing(tmp_path: Path) -> None:
    first, second = written(tmp_path, 5), written(tmp_path, 5)
    assert second > first and first.path.is_dir()
    assert storage.complete(tmp_path) == [second, first]


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    best, *_, newest = [written(tmp_path, step) for step in range(1, 7)]
    storage.prune(newest, 2, best)
    assert [found.step for found in storage.complete(tmp_path)] == [6, 5, 1]


def test_retention_never_deletes_what_was_just_written_for_a_damaged_newer_one(tmp_path: Path) -> None:
    """A resume passed over step 20, and saved at 15: that is the last one that verifies."""
    damaged, _ = written(tmp_path, 20), written(tmp_path, 10)
    flip_a_byte(damaged.path / storage.STATE)
    newest = written(tmp_path, 15)
    storage.prune(newest, 1)
    assert [found.step for found in storage.complete(tmp_path) if verification.verify(found.path) is None] == [15]


def test_the_best_checkpoint_of_an_earlier_attempt_is_kept() -> None:
    """With `best_is: min`, across a restart, and on every rank's disk alike."""
    with tempfile.TemporaryDirectory() as folder:
        for attempt in ([3.0, 1.0, 2.0], [5.0, 4.0]):
            run_ranks(1, _save_with_results, Path(folder), attempt)
        assert [storage.results(found)["loss"] for found in storage.complete(Path(folder))] == [4.0, 1.0]


def _save_with_results(folder: Path, losses: list[float]) -> None:
    settings = CheckpointSettings.model_validate({"keep": 1, "best": "loss", "best_is": "min"})
    with joined(config().distributed) as world:
        checkpoints = Checkpointer(settings, world, folder)
        step = max((found.step for found in storage.complete(folder)), default=0)
        for number, loss in enumerate(losses, step + 1):
            assert checkpoints.save(number, {"step": number}, {"loss": loss}) == []


def test_a_directory_that_can_not_be_written_to_ends_the_run_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    with pytest.raises(ConfigError, match=r"checkpoint.path .* can't be written to"):
        Checkpointer(CheckpointSettings.model_validate({}), World(0, 1, 0, 1, torch.device("cpu"), "gloo"), tmp_path)


@pytest.mark.torch
def test_weights_in_any_memory_layout_are_exported(tmp_path: Path) -> None:
    run_ranks(1, run.train, config(tmp_path, hooks=[f"{__name__}:in_columns"]))
    assert (tmp_path / "checkpoints" / "model.safetensors").is_file()


def in_columns(trainer: Trainer) -> None:
    for parameter in trainer.replica.model.parameters():
        parameter.data = parameter.data.t().contiguous().t()


@pytest.mark.torch
def test_the_trained_weights_are_left_as_safetensors(tmp_path: Path) -> None:
    [run] = run_ranks(1, train, config(tmp_path, **UNEVEN))
    assert largest_difference(load_file(tmp_path / "checkpoints" / "model.safetensors"), run["weights"]) == 0
