"""A run resumes where it was last, can start from a tag, and reports where it came from."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.damage import flip_a_byte
from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, config, same_bits, toy, train
from trainloop.checkpoints import saving, storage
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.checkpoints.restoring import ancestors
from trainloop.config import Config
from trainloop.distributed.world import World, joined
from trainloop.errors import ConfigError
from trainloop.report import facts, read_metrics
from trainloop.run import dry_run
from trainloop.trainer import Trainer


def _saved(folder: Path, **checkpoint: Any) -> dict[str, Any]:
    return {"checkpoint": {"path": str(folder), "every_steps": 2, **checkpoint}}


def _lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "report" / "metrics.jsonl").read_text().splitlines()]


def _resumed(tmp_path: Path) -> list[tuple[int, str]]:
    return [(line["step"], line["checkpoint"]) for line in _lines(tmp_path) if line.get("event") == "resumed"]


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_starts_from_a_tag_is_the_run_that_was_there(tmp_path: Path, ranks: int) -> None:
    """The same directory has later steps of another line; a restart continues from what was saved since."""
    here = tmp_path / "saved"
    through = run_ranks(ranks, train, config(tmp_path, **EXACT, **_saved(here)))
    storage.set_tag(storage.resolve(here, "step-000000004.1"), "good")
    slower = {**EXACT, "optimizer": {"lr": 0.01, "max_norm": 0.5}}
    run_ranks(ranks, train, config(tmp_path, **slower, **_saved(here, start_from="good")), 3)
    assert storage.complete(here)[0].name == "step-000000007.1"
    assert storage.complete(here)[0].about["parent"] == "step-000000004.1"
    [other, *_] = run_ranks(ranks, train, config(tmp_path, **slower, **_saved(here, start_from="good")))
    assert other["state"].step == 8 and not same_bits(other["weights"], through[0]["weights"])
    # Without `start_from` the run continues where it was last, rather than from another line's higher step.
    shutil.rmtree(storage.complete(here)[0].path)
    run_ranks(ranks, train, config(tmp_path, **slower, **_saved(here)))
    assert _resumed(tmp_path) == [(4, "step-000000004.1"), (7, "step-000000007.1"), (7, "step-000000007.1")]
    [again, *_] = run_ranks(ranks, train, config(tmp_path, **EXACT, **_saved(here, start_from="step-000000004.1")))
    assert same_bits(again["weights"], through[0]["weights"])


@pytest.mark.torch
def test_a_run_starts_from_another_directorys_checkpoint_and_then_needs_it_no_more(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    through = run_ranks(2, train, config(tmp_path, **EXACT, **_saved(there)))
    start = f"{there}/step-000000004.1/"
    [first, *_] = run_ranks(2, train, config(tmp_path, **EXACT, **_saved(here, start_from=start)))
    assert same_bits(first["weights"], through[0]["weights"])
    assert storage.complete(here)[-1].about["parent"] == start.rstrip("/")
    shutil.rmtree(there)
    shutil.rmtree(storage.complete(here)[0].path)
    [second, *_] = run_ranks(2, train, config(tmp_path, **EXACT, **_saved(here, start_from=start)))
    assert same_bits(second["weights"], through[0]["weights"])
    assert _resumed(tmp_path) == [(4, start.rstrip("/")), (6, "step-000000006.1")]
    assert dict(facts(read_metrics(tmp_path / "report" / "metrics.jsonl")))["lineage"].endswith(
        f"; attempt 2 from {start.rstrip('/')}, step 4 to 8; attempt 3 from step-000000006.1, step 6 to 8"
    )


@pytest.mark.torch
def test_attempts_are_counted_along_the_line_where_no_agent_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "saved"
    for steps in (2, 4, 6):
        run_ranks(2, train, config(tmp_path, **_saved(here), steps=steps))
    assert [one.about["attempt"] for one in storage.complete(here)] == [3, 2, 1]
    assert dict(facts(read_metrics(tmp_path / "report" / "metrics.jsonl")))["attempts"] == (
        "3, 2 resumed from a checkpoint (step 2, 4)"
    )
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "2")
    run_ranks(1, train, config(tmp_path, **_saved(here, start_from="step-000000002.1"), steps=4))
    assert storage.complete(here)[0].about["attempt"] == 2


@pytest.mark.torch
@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ("goo", "'goo' is neither a tag nor a checkpoint of .*saved: tags are good, checkpoints step-000000002.1"),
        ("step-000000009.1", "'step-000000009.1' is neither a tag nor a checkpoint of"),
        ("/nowhere/good", "'good' is neither a tag nor a checkpoint of /nowhere: tags are none, checkpoints none"),
    ],
)
def test_what_is_not_there_can_not_be_started_from(tmp_path: Path, start: str, sentence: str) -> None:
    run_ranks(1, train, config(tmp_path, **_saved(tmp_path / "saved")), 2)
    storage.set_tag(storage.complete(tmp_path / "saved")[0], "good")
    with pytest.raises(RankFailed, match=f"ConfigError: checkpoint.start_from can't be found by rank 0: {sentence}"):
        run_ranks(1, train, config(tmp_path, **_saved(tmp_path / "saved", start_from=start)))


@pytest.mark.torch
def test_a_dry_run_needs_no_checkpoint_to_start_from(tmp_path: Path) -> None:
    assert run_ranks(1, dry_run, config(tmp_path, **_saved(tmp_path / "saved", start_from="good"))) == [None]
    assert not (tmp_path / "saved").exists()


def test_a_start_without_a_directory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINMASTER_CHECKPOINT_DIR", "SAVE_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"checkpoint\.start_from is 'good' without a directory: set path too"):
        Checkpointer.from_settings(config(checkpoint={"start_from": "good"}).checkpoint, _alone())


def _alone() -> World:
    return World(0, 1, 0, 1, torch.device("cpu"), "gloo")


@pytest.mark.torch
def test_a_tag_on_one_nodes_disk_is_enough(tmp_path: Path) -> None:
    """Each rank has its own disk. Only rank 1's has the tag, and rank 0's was replaced by an empty one."""
    run_ranks(2, _on_own_disk, config(tmp_path, **EXACT), tmp_path, None, 4)
    shutil.rmtree(tmp_path / "disk0")
    storage.set_tag(storage.resolve(tmp_path / "disk1", "step-000000002.1"), "good")
    steps = run_ranks(2, _on_own_disk, config(tmp_path, **EXACT), tmp_path, "good", 4)
    assert steps == [4, 4]
    for disk in ("disk0", "disk1"):
        assert storage.complete(tmp_path / disk)[0].name == "step-000000004.2"


def _on_own_disk(settings: Config, folder: Path, start: str | None, until: int) -> int:
    path = folder / f"disk{os.environ['RANK']}"
    checkpoint = settings.checkpoint.model_copy(update={"path": str(path), "start_from": start, "every_steps": 2})
    with joined(settings.distributed) as world:
        trainer = Trainer(settings.model_copy(update={"checkpoint": checkpoint}), world)
        trainer.prepare()
        while trainer.state.step < until:
            trainer.train_step()
            if trainer.state.step % 2 == 0:
                trainer.save()
        return trainer.state.step


@pytest.mark.torch
def test_a_roll_back_follows_the_runs_own_line_and_leaves_what_has_a_tag(tmp_path: Path) -> None:
    """An older run's step 4 lies in between. The newer of this run's two checkpoints has a tag and is damaged."""
    here = tmp_path / "saved"
    run_ranks(1, train, config(tmp_path, **_saved(here), steps=4))
    changes = {**_saved(here, resume=False), "schedule": {"kind": "constant"}, "hooks": [f"{__name__}:damage_step_6"]}
    changes["checkpoint"]["every_steps"] = 3
    [run] = run_ranks(1, train, config(tmp_path, **changes, **toy(poison=[7, 8, 9], factor=math.nan), steps=10))
    [back] = [line for line in _lines(tmp_path) if line.get("event") == "rolledBack"]
    assert (back["step"], back["to"], back["checkpoint"]) == (9, 3, "step-000000003.1")
    assert run["state"].step == 10
    assert dict(facts(read_metrics(tmp_path / "report" / "metrics.jsonl")))["lineage"] == (
        "attempt 1 from the start, step 0 to 4; attempt 2 from the start, step 0 to 9 back to step-000000003.1 to 10"
    )
    assert (here / "step-000000006.1").is_dir(), "it has a tag"
    newest = storage.complete(here)[0]
    assert newest.about["parent"] in ("step-000000009.1", "step-000000006.2")
    (newest.path / "state.pt").write_bytes(b"")
    run_ranks(1, train, config(tmp_path, **_saved(here, every_steps=3), steps=10))
    assert _resumed(tmp_path)[-1][1] == newest.about["parent"], "the line that was written last"


def damage_step_6(trainer: Any) -> None:
    def damage(trainer: Any) -> None:
        if trainer.state.step == 8 and trainer.checkpoints.parent == "step-000000006.1":
            newest = storage.resolve(trainer.checkpoints.path, trainer.checkpoints.parent)
            storage.set_tag(newest, "kept")
            flip_a_byte(newest.path / storage.STATE)

    trainer.after_step.append(damage)


@pytest.mark.torch
def test_another_lines_checkpoint_with_a_parents_name_is_no_ancestor(tmp_path: Path) -> None:
    """Step 2 of the first line was deleted, and since then a second line has saved its own step 2 under the
    same name.
    """
    saving.write(tmp_path, 2, {}, {"parent": None})
    storage.set_tag(saving.write(tmp_path, 4, {}, {"parent": "step-000000002.1"}), "good")
    assert run_ranks(1, _ancestors, tmp_path) == [["step-000000004.1", "step-000000002.1"]]
    shutil.rmtree(tmp_path / "step-000000002.1")
    assert saving.write(tmp_path, 2, {}, {"parent": None}).name == "step-000000002.1"
    assert run_ranks(1, _ancestors, tmp_path) == [["step-000000004.1"]]


def _ancestors(folder: Path) -> list[str]:
    with joined(config().distributed) as world:
        settings = CheckpointSettings.model_validate({"start_from": "good"})
        checkpoints = Checkpointer(settings, world, folder)
        next(checkpoints.valid(checkpoints.to_go_on_from()))
        return [checkpoint.name for checkpoint in ancestors(checkpoints)]
