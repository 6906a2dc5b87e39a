"""A checkpoint is verified before it is loaded; a damaged one is passed over (`checkpoints/storage`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, config, train
from trainloop.checkpoints import saving, storage
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.distributed.world import joined


@pytest.mark.torch
def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    changes = {**EXACT, "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 3}}
    run_ranks(2, train, config(tmp_path, **changes))
    newest, before = storage.complete(tmp_path / "saved")[:2]
    assert (newest.step, before.step) == (8, 6)
    flip_a_byte(newest.path / storage.STATE)
    again = run_ranks(2, train, config(tmp_path, **changes))
    lines = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert '"event": "resumed", "step": 6' in lines
    assert again[0]["state"].step == 8


@pytest.mark.torch
def test_when_every_checkpoint_is_damaged_the_run_ends_with_a_sentence(tmp_path: Path) -> None:
    run_ranks(1, train, config(tmp_path))
    [only] = storage.complete(tmp_path / "checkpoints")
    (only.path / "state.pt").write_bytes(b"")
    with pytest.raises(RankFailed, match="ConfigError: no checkpoint can be used: delete them to start from scratch"):
        run_ranks(1, train, config(tmp_path))


@pytest.mark.torch
def test_without_its_manifest_a_checkpoint_is_said_and_the_run_does_not_start_anew(tmp_path: Path) -> None:
    run_ranks(1, train, config(tmp_path))
    [only] = storage.complete(tmp_path / "checkpoints")
    (only.path / storage.MANIFEST).unlink()
    with pytest.raises(RankFailed, match="ConfigError: no checkpoint can be used: delete them to start from scratch"):
        run_ranks(1, train, config(tmp_path))
    assert (only.path / storage.STATE).is_file()


@pytest.mark.torch
@pytest.mark.parametrize("disks", ["shared", "own"])
def test_what_can_not_be_used_is_named_and_blocks_no_save(tmp_path: Path, disks: str) -> None:
    """Checkpoints of steps 3, 6 and 9 exist; 6 and 9 are damaged in different ways, on every disk."""
    said = run_ranks(2, _with_broken_ones, tmp_path, disks)
    for rank, lines in enumerate(said):
        folder = tmp_path / (f"disk{rank}" if disks == "own" else "disk")
        expected = [
            f"checkpoint passed over: {folder}/step-000000006.1 has no manifest.json: something of it was deleted, "
            "or never copied",
            f"checkpoint passed over: {folder}/step-000000007.1/manifest.json is of format 9: this version reads "
            "format 2",
            f"checkpoint passed over: {folder}/step-000000008.1 can't be read: [Errno 20] Not a directory: "
            f"'{folder}/step-000000008.1/manifest.json'",
            f"checkpoint passed over: {folder}/step-000000009.1/state.pt has 0 bytes, its manifest lists ",
            f"checkpoint passed over: {folder}/step-5 isn't named as a checkpoint: step-<9 digits>.<version>",
        ]
        assert len(lines) == (len(expected) if disks == "own" or rank == 0 else 0)
        assert all(line.startswith(start) for line, start in zip(lines, expected, strict=False))
        assert {path.name for path in folder.glob("step-*")} >= {"step-000000006.2", "step-000000009.2", "step-5"}
        newest = storage.complete(folder)[0]
        assert newest.name == "step-000000009.2" and storage.verify(newest.path) is None


def _with_broken_ones(tmp_path: Path, disks: str) -> list[str]:
    lines = list[str]()
    with joined(config().distributed) as world, pytest.MonkeyPatch.context() as patch:
        folder = tmp_path / (f"disk{world.rank}" if disks == "own" else "disk")
        checkpoints = Checkpointer(CheckpointSettings.model_validate({"keep": 9}), world, folder)
        for step in (3, 6, 7, 9):
            assert checkpoints.save(step, {"step": step}, {}) == []
        if checkpoints.is_writer:
            (folder / "step-000000006.1" / storage.MANIFEST).unlink()
            _as_format(folder / "step-000000007.1", 9)
            (folder / "step-000000008.1").touch()
            (folder / "step-000000009.1" / storage.STATE).write_bytes(b"")
            (folder / "step-5").mkdir()
            (folder / "step-by-step.txt").touch()
        world.barrier()
        patch.setattr("builtins.print", lambda line, **_: lines.append(line))
        again = Checkpointer(checkpoints.settings, world, folder)
        assert [found.step for found, _ in again.valid(again.to_go_on_from())] == [3]
        for step in (6, 8, 9):
            assert again.save(step, {"step": step}, {}) == []
        assert again.parent == "step-000000009.2"
    return lines


def _as_format(folder: Path, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "FORMAT", number)
        (folder / storage.MANIFEST).unlink()
        storage.write_manifest(folder, 7, {}, 1.0)


@pytest.mark.torch
def test_a_checkpoint_whose_weights_compute_another_loss_is_passed_over(tmp_path: Path) -> None:
    """All hashes are right here: the weights were already wrong before the file was written."""
    changes = {**EXACT, "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 3}}
    run_ranks(1, train, config(tmp_path, **changes))
    newest = storage.complete(tmp_path / "saved")[0]
    state = storage.load(newest)
    state["model"]["0.weight"] += 1.0
    storage.remove(newest)
    saving.write(tmp_path / "saved", 8, state, {})
    run_ranks(1, train, config(tmp_path, **changes))
    assert '"event": "resumed", "step": 6' in (tmp_path / "report" / "metrics.jsonl").read_text()


def test_a_flipped_byte_anywhere_is_found(tmp_path: Path) -> None:
    for name in (storage.STATE, storage.MANIFEST):
        checkpoint = written(tmp_path, 1)
        assert storage.verify(checkpoint.path) is None
        flip_a_byte(checkpoint.path / name)
        problem = storage.verify(checkpoint.path)
        assert problem is not None and name in problem


def test_what_an_unfinished_save_left_is_never_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="pickle"):
        saving.write(tmp_path, 3, {"not a plain value": lambda: None}, {})
    assert list(tmp_path.iterdir()) != []
    assert storage.complete(tmp_path) == []
    storage.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []
