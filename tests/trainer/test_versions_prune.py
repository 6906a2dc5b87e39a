"""`trainloop checkpoints prune` deletes by the same rule as a run, and never the last readable checkpoint."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.damage import flip_a_byte, written
from trainloop.checkpoints import storage

NEWEST = "step-000000010.1"


def test_prune_says_what_goes_and_why_the_others_stay(tmp_path: Path, checkpoints: Any) -> None:
    for step, accuracy in enumerate([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1):
        written(tmp_path, step, accuracy)
    checkpoints(f"tag {tmp_path} 2 good")
    flip_a_byte(tmp_path / "step-000000007.1" / "state.pt")
    rows = [
        ["step-000000007.1", "keep", "damaged, but not older than all that are kept"],
        ["step-000000006.1", "keep", "newest that verifies"],
        ["step-000000005.1", "keep", "among the newest"],
        ["step-000000004.1", "delete", "older"],
        ["step-000000003.1", "delete", "older"],
        ["step-000000002.1", "keep", "tagged good"],
        ["step-000000001.1", "keep", "best result"],
    ]
    line = f"prune {tmp_path} --keep 2 --best accuracy"
    dry = checkpoints(f"{line} --dry-run")
    assert [row.split("   ")[0:1] + [cell.strip() for cell in row.split("   ", 1)[1].split("   ") if cell.strip()][:2]
            for row in dry.splitlines()[1:-1]] == rows  # fmt: skip
    assert dry.splitlines()[-1].startswith("would delete 2 of 7 checkpoints, ")
    assert len(list(tmp_path.glob("step-*"))) == 7
    done = checkpoints(line)
    assert done.splitlines()[:-1] == dry.splitlines()[:-1]
    assert done.splitlines()[-1].startswith("deleted 2 of 7 checkpoints, ")
    assert sorted(path.name for path in tmp_path.glob("step-*")) == sorted(row[0] for row in rows if row[1] == "keep")
    assert checkpoints(f"{line} -o json").code == 0


@pytest.mark.parametrize("format", ["table", "json"])
def test_what_can_not_be_deleted_is_said_and_the_command_has_not_done_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Any, format: str
) -> None:
    for step in (1, 2):
        written(tmp_path, step)

    def refuse(checkpoint: storage.Checkpoint) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(storage, "remove", refuse)
    printed = checkpoints(f"prune {tmp_path} --keep 1 -o {format}")
    assert printed.code == 1 and "it can't be deleted" in printed
    assert printed.errors == f"trainloop: {tmp_path}/step-000000001.1 isn't deleted: Permission denied\n"


@pytest.mark.torch
def test_prune_keeps_what_the_run_calls_best(saved: Path, checkpoints: Any) -> None:
    best = checkpoints("show checkpoints best").splitlines()[0].split()[1]
    assert best != NEWEST
    checkpoints("prune checkpoints --keep 1")
    assert sorted(path.name for path in (saved / "checkpoints").glob("step-*")) == sorted([best, NEWEST])


def test_prune_never_deletes_the_only_one_that_can_be_read(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2, 3):
        written(tmp_path, step)
    for step in (2, 3):
        flip_a_byte(tmp_path / f"step-{step:09d}.1" / "state.pt")
    assert checkpoints(f"prune {tmp_path} --keep 1").splitlines()[-1].startswith("deleted 0 of 3")
    flip_a_byte(tmp_path / "step-000000001.1" / "state.pt")
    printed = checkpoints(f"prune {tmp_path} --keep 1")
    assert printed.code == 1
    assert printed.errors == f"trainloop: {tmp_path} has no checkpoint that verifies: nothing is deleted\n"
