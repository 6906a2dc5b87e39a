"""One rank of each disk writes a checkpoint, the newest and the best are kept, and the weights are exported at
the end.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import UNEVEN, config, largest_difference, train
from trainloop import run
from trainloop.checkpoints import retention, saving, storage
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.config import load_config
from trainloop.distributed.world import World, joined
from trainloop.errors import ConfigError
from trainloop.trainer import Trainer


@pytest.mark.torch
def test_a_rank_with_an_empty_disk_is_given_the_others_checkpoint(tmp_path: Path) -> None:
    """Each rank has its own disk, as with an emptyDir; rank 0's pod was replaced."""
    first = run_ranks(3, _with_own_disk, tmp_path)
    for file in sorted((tmp_path / "disk0").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    second = run_ranks(3, _with_own_disk, tmp_path)
    assert [rank["writer"] for rank in first] == [0, 1, 2]
    assert [rank["loaded"] for rank in first] == [None] * 3
    assert [rank["loaded"] for rank in second] == [5] * 3
    assert storage.verify(storage.complete(tmp_path / "disk0")[0].path) is None


def _with_own_disk(folder: Path) -> dict[str, Any]:
    with joined(config().distributed) as world:
        disk = folder / f"disk{world.rank}"
        checkpoints = Checkpointer(CheckpointSettings.model_validate({}), world, disk)
        loaded = next((state["number"] for _, state in checkpoints.valid(checkpoints.to_go_on_from())), None)
        if loaded is None:
            checkpoints.save(1, {"number": 5, "tensor": torch.arange(3)}, {})
        return {"writer": checkpoints.writer, "loaded": loaded}


def _alone() -> World:
    return World(0, 1, 0, 1, torch.device("cpu"), "gloo")


@pytest.mark.torch
def test_ranks_that_share_a_directory_have_one_writer(tmp_path: Path) -> None:
    assert run_ranks(3, _writer_of, tmp_path) == [0, 0, 0]


def _writer_of(folder: Path) -> int:
    with joined(config().distributed) as world:
        return Checkpointer(CheckpointSettings.model_validate({}), world, folder).writer


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["sync", "thread"])
def test_an_older_checkpoint_goes_when_the_newer_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Otherwise a crash of the machine could leave neither: a rename may reach the disk before the file's content."""
    lines, folder = list[str](), tmp_path / "made" / "saved"
    fsync, rename, rmtree = os.fsync, os.rename, shutil.rmtree

    def record(line: str, done: object) -> None:
        lines.append(line)

    def recorded_fsync(descriptor: int) -> None:
        record(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink()}", fsync(descriptor))

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", lambda old, new: record(f"rename {old} {new}", rename(old, new)))
    monkeypatch.setattr(shutil, "rmtree", lambda path, **how: record(f"delete {path}", rmtree(path, **how)))
    world = _alone()
    checkpoints = Checkpointer(CheckpointSettings.model_validate({"mode": mode, "keep": 1}), world, folder)
    for step in (1, 2):
        partial = storage.partial_name(folder, step)
        (partial / "shards").mkdir(parents=True)
        (partial / "shards" / "rank-00000.pt").write_bytes(b"its part")
        assert checkpoints.save(step, {"tensor": torch.ones(3)}, {}, partial) == []
    assert checkpoints.close() == []
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


def test_retention_of_whatever_there_is(tmp_path: Path) -> None:
    """Checkpoints are drawn at random, with repeated steps, other lines, damage and tags. The result is compared with
    the rule, written out.
    """
    for seed in range(60):
        draw, folder = random.Random(seed), tmp_path / str(seed)
        folder.mkdir()
        keep, order, broken = draw.randint(1, 3), list[storage.Checkpoint](), set[str]()
        for _ in range(draw.randint(2, 7)):
            order.append(_bare(folder, draw.choice((5, 10, 15, 20)), time.time() - draw.choice((0, 0, 100))))
            if draw.random() < 0.3:
                _break(order[-1], draw.choice(("manifest", "state", "format", "empty")))
                broken.add(order[-1].name)
        tagged = draw.sample(order, draw.randint(0, 2))
        for number, checkpoint in enumerate(tagged):
            storage.set_tag(checkpoint, f"tag{number}")
        best = draw.choice([None, *order])
        written = _bare(folder, draw.choice((5, 10, 15, 20, 25)), time.time())
        before = {one.name for one in [*order, written]}
        retention.prune(written, storage.survey(folder), keep, best)
        left = {path.name for path in folder.glob("step-*")}
        newest = [one for one in [*reversed(order)] if one.name not in broken][: keep - 1]
        must = {one.name for one in [written, *newest, *tagged, *filter(None, [best])]}
        assert must <= left <= before, seed
        oldest = min([written, *newest]) if len(newest) == keep - 1 else None
        for name in left - must:
            assert name in broken, (seed, "a whole one more than it says")
            assert oldest is None or storage.named(folder, name) > oldest, (seed, "a broken one that is past")


def _bare(folder: Path, step: int, now: float) -> storage.Checkpoint:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)  # a clock that was set back
        return written(folder, step)


def _break(checkpoint: storage.Checkpoint, how: str) -> None:
    manifest = checkpoint.path / storage.MANIFEST
    if how == "manifest":
        manifest.unlink()
    elif how == "format":
        manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 3'))
    else:
        (checkpoint.path / storage.STATE).write_bytes(b"")
    if how == "empty":
        shutil.rmtree(checkpoint.path)
        checkpoint.path.mkdir()


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    best, *_, newest = [written(tmp_path, step) for step in range(1, 7)]
    retention.prune(newest, storage.survey(tmp_path), 2, best)
    assert [found.step for found in storage.complete(tmp_path)] == [6, 5, 1]


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["sync", "thread"])
def test_a_save_reads_every_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """On a network volume each read is a round trip, and training waits for it."""
    read, reads = storage.read_manifest, list[str]()
    monkeypatch.setattr(storage, "read_manifest", lambda folder: (reads.append(folder.name), read(folder))[1])
    settings = CheckpointSettings.model_validate({"mode": mode, "keep": 2, "best": "loss"})
    checkpoints = Checkpointer(settings, _alone(), tmp_path)
    for step in range(1, 6):
        before = sorted(path.name for path in tmp_path.glob("step-*"))
        reads.clear()
        assert checkpoints.save(step, {"tensor": torch.ones(3)}, {"results": {"loss": -step}}) == []
        assert checkpoints.wait() == []
        assert sorted(reads) == before
    assert checkpoints.close() == []
    assert [found.step for found in storage.complete(tmp_path)] == [5, 4, 1], "the newest two and the best"


def test_what_is_deleted_while_a_checkpoint_is_written_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a checkpoint is deleted, by the command or to make room, it counts neither as one of the newest nor as the
    best.
    """
    for step, accuracy in ((1, 0.0), (2, 0.8), (3, 0.0), (4, 0.9), (5, 0.0)):
        written(tmp_path, step, accuracy)
    write = saving.write

    def meanwhile(*what: Any) -> storage.Checkpoint:
        for step in (4, 5):
            shutil.rmtree(tmp_path / f"step-{step:09d}.1")
        return write(*what)

    monkeypatch.setattr(saving, "write", meanwhile)
    settings = CheckpointSettings.model_validate({"keep": 2, "best": "accuracy"})
    assert Checkpointer(settings, _alone(), tmp_path).save(6, {}, {}) == []
    assert [one.step for one in storage.complete(tmp_path)] == [6, 3, 2]


def test_a_checkpoint_that_another_program_deletes_first_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def too_late(old: Path, new: Path) -> None:
        if ".saving-deleted-" in str(new):
            shutil.rmtree(old)
        rename(old, new)

    monkeypatch.setattr(os, "rename", too_late)
    checkpoints = Checkpointer(CheckpointSettings.model_validate({"keep": 1}), _alone(), tmp_path)
    assert [checkpoints.save(step, {}, {}) for step in (1, 2)] == [[], []]
    assert [one.step for one in storage.complete(tmp_path)] == [2]


def test_retention_never_deletes_what_was_just_written_for_a_damaged_newer_one(tmp_path: Path) -> None:
    """A resume passed over step 20 and saved at 15, which is the last checkpoint that verifies."""
    damaged, _ = written(tmp_path, 20), written(tmp_path, 10)
    flip_a_byte(damaged.path / storage.STATE)
    newest = written(tmp_path, 15)
    retention.prune(newest, storage.survey(tmp_path), 1)
    assert [found.step for found in storage.complete(tmp_path) if storage.verify(found.path) is None] == [15]


def test_a_tag_keeps_a_checkpoint_from_retention(tmp_path: Path) -> None:
    tagged, *_, newest = [written(tmp_path, step) for step in range(1, 6)]
    storage.set_tag(tagged, "good")
    retention.prune(newest, storage.survey(tmp_path), 1)
    assert storage.complete(tmp_path) == [newest, tagged]
    assert storage.resolve(tmp_path, "good") == storage.resolve(tmp_path, tagged.name) == tagged
    storage.set_tag(newest, "good")
    assert storage.tags(tmp_path) == {"good": newest.name}, "a tag moves"
    storage.delete_tag(tmp_path, "good")
    assert storage.tags(tmp_path) == {}


@pytest.mark.parametrize("tag", ["", ".hidden", "-x", "a/b", "..", "step-000000001.1", "step-5", "a b", "ä", "x" * 101])
def test_what_can_not_be_a_tag_is_a_sentence(tmp_path: Path, tag: str) -> None:
    with pytest.raises(storage.CheckpointError, match="can't be a tag: up to 100 letters"):
        storage.set_tag(written(tmp_path, 1), tag)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000001.1"]


def test_a_tag_that_is_not_there_is_a_sentence_with_those_that_are(tmp_path: Path) -> None:
    storage.set_tag(written(tmp_path, 1), "good")
    sentence = "'bad' is neither a tag nor a checkpoint of .*: tags are good, checkpoints step-000000001.1"
    with pytest.raises(storage.CheckpointError, match=sentence):
        storage.resolve(tmp_path, "bad")
    with pytest.raises(storage.CheckpointError, match="has no tag 'bad': it has good"):
        storage.delete_tag(tmp_path, "bad")


def test_a_tag_whose_checkpoint_is_gone_is_said_with_its_name_and_what_to_do(tmp_path: Path) -> None:
    for step, tag in ((1, "good"), (2, "other")):
        storage.set_tag(written(tmp_path, step), tag)
    shutil.rmtree(tmp_path / "step-000000001.1")
    sentence = (
        f"'good' is the tag of step-000000001.1, which was deleted from {tmp_path}: copy it back, or name another one "
        "(tags are other, checkpoints step-000000002.1)"
    )
    with pytest.raises(storage.CheckpointError, match=re.escape(sentence)):
        storage.resolve(tmp_path, "good")


@pytest.mark.parametrize("content", ["../../etc", "step-5", "step-0000000001.1", "step-000000001.01", "\udcff", ""])
def test_a_file_that_names_no_checkpoint_is_no_tag(tmp_path: Path, content: str) -> None:
    written(tmp_path, 1)
    (tmp_path / "tags").mkdir()
    (tmp_path / "tags" / "odd").write_text(content, errors="surrogateescape")
    assert storage.tags(tmp_path) == {}
    with pytest.raises(storage.CheckpointError, match="'odd' is neither a tag nor"):
        storage.resolve(tmp_path, "odd")


@pytest.mark.torch
def test_a_checkpoint_says_where_it_comes_from_and_with_what_it_was_made(tmp_path: Path) -> None:
    changes = {**UNEVEN, "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 3}}
    run_ranks(2, train, config(tmp_path, **changes))
    checkpoints = storage.complete(tmp_path / "saved")[::-1]
    abouts = [storage.read_manifest(checkpoint.path)["about"] for checkpoint in checkpoints]
    assert [about["parent"] for about in abouts] == [None, "step-000000003.1", "step-000000006.1"]
    assert {(about["attempt"], about["world_size"]) for about in abouts} == {(1, 2)}
    assert abouts[-1]["results"].keys() == {"loss", "accuracy"}
    mine = config(tmp_path, **changes).fingerprint()
    assert {(about["code"], about["configuration"]) for about in abouts} == {(mine["code"], mine["config"])}
    for checkpoint in checkpoints:
        assert load_config(checkpoint.path / "config.yaml") == config(tmp_path, **changes)
        assert "config.yaml" in storage.read_manifest(checkpoint.path)["files"]
    [more] = run_ranks(1, train, config(tmp_path, **{**changes, "steps": 8}))
    newest = storage.read_manifest(storage.complete(tmp_path / "saved")[0].path)["about"]
    assert (more["state"].step, newest["parent"], newest["world_size"]) == (8, "step-000000007.1", 1)


def test_the_best_checkpoint_of_an_earlier_attempt_is_kept() -> None:
    """This holds with `best_is: min`, across a restart, and on every rank's disk."""
    with tempfile.TemporaryDirectory() as folder:
        for attempt in ([3.0, 1.0, 2.0], [5.0, 4.0]):
            run_ranks(1, _save_with_results, Path(folder), attempt)
        assert [found.results["loss"] for found in storage.complete(Path(folder))] == [4.0, 1.0]


def _save_with_results(folder: Path, losses: list[float]) -> None:
    settings = CheckpointSettings.model_validate({"keep": 1, "best": "loss", "best_is": "min"})
    with joined(config().distributed) as world:
        checkpoints = Checkpointer(settings, world, folder)
        step = max((found.step for found in storage.complete(folder)), default=0)
        for number, loss in enumerate(losses, step + 1):
            assert checkpoints.save(number, {"step": number}, {"results": {"loss": loss}}) == []


def test_a_directory_that_can_not_be_written_to_ends_the_run_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, which may write anywhere
    with pytest.raises(ConfigError, match=r"checkpoint.path .* can't be written to"):
        Checkpointer(CheckpointSettings.model_validate({}), _alone(), tmp_path)


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
