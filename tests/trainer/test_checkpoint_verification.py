"""A checkpoint is verified before it is loaded; a damaged one is passed over (`checkpoints/verification`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, config, train
from trainloop.checkpoints import storage, verification


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
    with pytest.raises(RankFailed, match="ConfigError: no checkpoint can be used: delete them to start anew"):
        run_ranks(1, train, config(tmp_path))


@pytest.mark.torch
def test_a_checkpoint_whose_weights_compute_another_loss_is_passed_over(tmp_path: Path) -> None:
    """All hashes are right here: what is wrong was wrong before the file was written."""
    changes = {**EXACT, "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 3}}
    run_ranks(1, train, config(tmp_path, **changes))
    newest = storage.complete(tmp_path / "saved")[0]
    state = storage.load(newest)
    state["model"]["0.weight"] += 1.0
    storage.remove(newest)
    storage.write(tmp_path / "saved", 8, state, {})
    run_ranks(1, train, config(tmp_path, **changes))
    assert '"event": "resumed", "step": 6' in (tmp_path / "report" / "metrics.jsonl").read_text()


def test_a_flipped_byte_anywhere_is_found(tmp_path: Path) -> None:
    for name in (storage.STATE, verification.MANIFEST):
        checkpoint = written(tmp_path, 1)
        assert verification.verify(checkpoint.path) is None
        flip_a_byte(checkpoint.path / name)
        problem = verification.verify(checkpoint.path)
        assert problem is not None and name in problem


def test_what_an_unfinished_save_left_is_never_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="pickle"):
        storage.write(tmp_path, 3, {"not a plain value": lambda: None}, {})
    assert list(tmp_path.iterdir()) != []
    assert storage.complete(tmp_path) == []
    storage.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []
