"""A save that is killed, or that fills the disk, leaves a loadable checkpoint, and training continues."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import free_port, run_ranks, start_rank
from tests.trainer.toy import EXACT, config
from trainloop import run
from trainloop.checkpoints import retention, saving, storage
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.checkpoints.storage import CheckpointError
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError, TrainingError
from trainloop.trainer import Trainer


@pytest.mark.torch
def test_kill_9_at_any_point_of_a_save_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    """Saves follow each other without a pause, so that a kill nearly always hits the middle of one."""
    for delay in (0.02, 0.11, 0.23):
        process = start_rank(_save_for_ever, 0, 1, free_port(), tmp_path / "out", tmp_path)
        while not storage.complete(tmp_path):
            time.sleep(0.005)
        time.sleep(delay)
        process.kill()
        process.join()
        newest = storage.complete(tmp_path)[0]
        assert storage.verify(newest.path) is None
        assert storage.load(newest)["step"] == newest.step


def _save_for_ever(folder: Path) -> None:
    step = max((found.step for found in storage.complete(folder)), default=0)
    tensor = torch.zeros(1_000_000)
    while True:
        step += 1
        found = storage.survey(folder)
        written = saving.write(folder, step, {"step": step, "tensor": tensor}, {}, found=found)
        retention.prune(written, found, 2)


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(storage.CheckpointError, match="checkpoint of step 3 can't be written to"):
        written(tmp_path / "file", 3)


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "how"), [(2, {"mode": "sync"}), (1, {"mode": "thread"}), (2, {"format": "sharded"})])
def test_training_goes_on_when_the_disk_is_full(tmp_path: Path, ranks: int, how: dict[str, str]) -> None:
    changes: dict[str, Any] = {
        "checkpoint": {"path": str(tmp_path / "saved"), "every_steps": 2, "export": False, **how}
    }
    runs = run_ranks(
        ranks, _on_a_full_disk, config(tmp_path, **changes, task=EXACT["task"], precision=EXACT["precision"])
    )
    sentence = f"nothing of the run's end could be saved in {tmp_path}/saved: make room there, and start it again"
    assert runs == [sentence] * ranks
    assert list((tmp_path / "saved").iterdir()) == []
    log = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert "checkpoint of step 2 can't be written to" in log and "training continues without it" in log
    assert '"kind": "step", "attempt": 1' in log and '"step": 6, "totalSteps": 6' in log


class SmallDisk:
    """Stands in for a file system of `size` bytes under `folder`, for what torch.save writes. With `honest` false it
    reports free space when there is none, as if a quota were the limit.
    """

    def __init__(self, folder: Path, size: int, *, honest: bool = True, number: int = errno.ENOSPC) -> None:
        self.folder, self.size, self.honest, self.number = folder, size, honest, number
        self.refused = 0
        self._save = torch.save

    def free(self) -> int:
        used = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        return max(0, self.size - used)

    def usage(self, path: Any) -> SimpleNamespace:
        return SimpleNamespace(total=self.size, free=self.free() if self.honest else 10**12)

    def save(self, value: Any, stream: Any) -> None:
        self._save(value, _Full(stream, self))

    def mounted(self) -> Any:
        patch = pytest.MonkeyPatch.context()
        return _patched(patch, self)


class _Full:
    """Writes until the disk is full; everything written before that occupies space."""

    def __init__(self, stream: Any, disk: SmallDisk) -> None:
        self.stream, self.disk, self.left = stream, disk, disk.free()

    def write(self, data: Any) -> int:
        if len(data) > self.left:
            self.disk.refused += 1
            raise OSError(self.disk.number, os.strerror(self.disk.number))
        self.left -= len(data)
        return int(self.stream.write(data))

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def _patched(context: Any, disk: SmallDisk) -> Iterator[SmallDisk]:
    with context as patch:
        patch.setattr(torch, "save", disk.save)
        patch.setattr(shutil, "disk_usage", disk.usage)
        yield disk


STATE_BYTES = 40_000


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "tensor": torch.full((STATE_BYTES // 4,), float(step))}


@pytest.mark.parametrize("honest", [True, False], ids=["says so", "quota"])
def test_a_full_disk_makes_room_by_older_checkpoints_and_never_by_the_last_that_can_be_read(
    tmp_path: Path, honest: bool
) -> None:
    """There is room for four and a half checkpoints; the newest is damaged, one has a tag, one is broken."""
    checkpoints = [saving.write(tmp_path, step, _state(step), {}) for step in (1, 2, 3, 4)]
    storage.set_tag(checkpoints[0], "kept")
    (checkpoints[1].path / storage.MANIFEST).unlink()
    flip_a_byte(checkpoints[3].path / storage.STATE)
    disk = SmallDisk(tmp_path, int(4.5 * STATE_BYTES), honest=honest, number=errno.ENOSPC if honest else errno.EDQUOT)
    with disk.mounted():
        written = saving.write(tmp_path, 5, _state(5), {})
        assert disk.refused == (0 if honest else 1), "where it is said, nothing is written in vain"
        left = {path.name for path in tmp_path.glob("step-*")}
        assert left == {"step-000000001.1", "step-000000003.1", "step-000000005.1"}
        assert storage.verify(written.path) is None
        # The disk is full of others' files.
        disk.size = int(2.2 * STATE_BYTES)
        why = "No space left on device" if honest else "Disk quota exceeded"
        sentence = f"checkpoint of step 6 can't be written to {tmp_path}: {why}; .* bytes are free, 40,000 and a little"
        for _ in range(2):
            with pytest.raises(storage.CheckpointError, match=sentence):
                saving.write(tmp_path, 6, _state(6), {})
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-000000001.1", "step-000000005.1"}
    assert [path.name for path in tmp_path.glob(".saving-*")] == []


def test_nothing_is_deleted_where_the_room_would_not_do_either(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saving.write(tmp_path, step, _state(step), {})
    large = {"tensor": torch.zeros(STATE_BYTES)}  # four times as large
    with SmallDisk(tmp_path, int(4.5 * STATE_BYTES)).mounted(), pytest.raises(storage.CheckpointError):
        saving.write(tmp_path, 4, large, {})
    assert len(list(tmp_path.glob("step-*"))) == 3


def test_a_disk_that_others_fill_in_the_midst_of_a_save_counts_what_the_save_had_written(tmp_path: Path) -> None:
    for step in (1, 2):
        saving.write(tmp_path / "saved", step, _state(step), {})
    disk = SmallDisk(tmp_path, 4 * STATE_BYTES)
    save = disk.save

    def filled_meanwhile(value: Any, stream: Any) -> None:
        if not (tmp_path / "others").exists():
            stream.write(bytes(STATE_BYTES // 2))
            stream.flush()
            (tmp_path / "others").write_bytes(bytes(disk.free()))
        save(value, stream)

    disk.save = filled_meanwhile  # type: ignore[method-assign]
    with disk.mounted():
        written = saving.write(tmp_path / "saved", 3, _state(3), {})
    assert storage.verify(written.path) is None
    assert {path.name for path in (tmp_path / "saved").glob("step-*")} == {"step-000000002.1", "step-000000003.1"}


@pytest.mark.parametrize("name", [storage.STATE, storage.CONFIGURATION, storage.MANIFEST])
def test_a_file_that_a_full_disk_cut_off_is_no_part_of_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """This holds for whichever file of a checkpoint is cut off. A manifest that was cut off used to list itself among
    the next one's files.
    """
    for step in (1, 2, 3):
        written(tmp_path, step)
    opened, refused = Path.open, list[str]()

    def cut_off(file: Path, mode: str = "r", *how: Any, **more: Any) -> Any:
        stream = opened(file, mode, *how, **more)
        if file.name == name and "w" in mode and not refused:
            refused.append(name)
            stream.write(b"{" if "b" in mode else "{")
            stream.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return stream

    monkeypatch.setattr(Path, "open", cut_off)
    saved = saving.write(tmp_path, 4, _state(4), {}, None, "steps: 4")
    assert refused == [name] and storage.verify(saved.path) is None
    assert storage.load(saved)["step"] == 4
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-000000003.1", "step-000000004.1"}


def test_what_a_checkpoint_needs_is_said_to_be_at_least_what_was_written_of_it(tmp_path: Path) -> None:
    """In a small model, here 4,000 bytes in a thousand tensors, the file's own structure is the larger part."""
    state = {str(number): torch.zeros(1) for number in range(1_000)}
    sentence = "; 150,000 bytes are free, 1[0-9]{2},[0-9]{3} and a little more are needed"
    with SmallDisk(tmp_path, 150_000).mounted(), pytest.raises(CheckpointError, match=sentence):
        saving.write(tmp_path, 1, state, {})


def test_where_none_can_be_read_a_full_disk_deletes_nothing(tmp_path: Path) -> None:
    for step in (1, 2):
        flip_a_byte(saving.write(tmp_path, step, _state(step), {}).path / storage.STATE)
    with SmallDisk(tmp_path, 2 * STATE_BYTES).mounted(), pytest.raises(storage.CheckpointError):
        saving.write(tmp_path, 3, _state(3), {})
    assert len(list(tmp_path.glob("step-*"))) == 2


def test_the_room_that_a_state_needs_is_never_said_to_be_more_than_it_takes(tmp_path: Path) -> None:
    """Tied weights share their memory, and a view brings its whole tensor along."""
    tensor = torch.zeros(10_000)
    for state in ({"a": tensor, "b": [tensor]}, {"part": tensor[:10]}, {"none": 1}, {"empty": torch.empty(0)}):
        file = saving.write(tmp_path, 1, state, {}).path / storage.STATE
        assert storage.size_of(state) <= file.stat().st_size < storage.size_of(state) + 3_000


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "how", "honest"),
    [
        (1, {"mode": "sync"}, True),
        (2, {"mode": "thread"}, False),
        (2, {"format": "sharded"}, False),
        (2, {"format": "sharded", "mode": "thread"}, True),
        (2, {"own": True}, False),
    ],
    ids=["sync", "thread, quota", "sharded, quota", "sharded, thread", "own disks, quota"],
)
def test_a_run_on_a_full_disk_saves_its_end(tmp_path: Path, ranks: int, how: dict[str, Any], honest: bool) -> None:
    """There is room for two and a half checkpoints, and five would be kept."""
    settings = config(tmp_path, **{**EXACT, "steps": 6})
    saved = run_ranks(ranks, _on_a_small_disk, settings, tmp_path, dict(how), honest)
    for rank in saved:
        assert rank["problems"] == saved[0]["problems"] == []
        assert (rank["step"], rank["parent"]) == (6, "step-000000006.1")
        assert rank["left"] in (["step-000000006.1"], ["step-000000005.1", "step-000000006.1"])
        assert rank["verified"] == [None] * len(rank["left"])


def _on_a_small_disk(settings: Config, folder: Path, how: dict[str, Any], honest: bool) -> dict[str, Any]:
    own = how.pop("own", False)
    with joined(settings.distributed) as world:
        path = folder / (f"disk{world.rank}" if own else "disk")
        update = {"path": str(path), "every_steps": 1, "export": False, **how}
        checkpoint = settings.checkpoint.model_copy(update=update)
        with SmallDisk(path, 450_000, honest=honest).mounted():
            trainer = Trainer(settings.model_copy(update={"checkpoint": checkpoint}), world)
            problems = list[str]()
            trainer.warn = problems.append  # type: ignore[method-assign]
            trainer.run()
        assert trainer.checkpoints is not None
        left = sorted(entry.name for entry in path.glob("step-*"))
        return {
            "problems": problems,
            "step": trainer.state.step,
            "parent": trainer.checkpoints.parent,
            "left": left,
            "verified": [storage.verify(path / name) for name in left],
        }


@pytest.mark.torch
@pytest.mark.parametrize("size", [4.5, 1.5, 0.5], ids=["older ones go", "the last one stays", "empty"])
def test_a_node_that_lacks_a_checkpoint_makes_room_for_it_or_all_ranks_say_what_is_needed(
    tmp_path: Path, size: float
) -> None:
    """Rank 1's disk has as many older steps as fit, and rank 0's own disk has step 4 too."""
    older = [step for step in (1, 2, 3) if step <= size]
    for step in older:
        for disk in ("disk0", "disk1"):
            saving.write(tmp_path / disk, step, _state(step), {})
    saving.write(tmp_path / "disk0", 4, _state(4), {})
    outcome = run_ranks(2, _given_on_a_small_disk, tmp_path, int(size * STATE_BYTES) if size < 4 else 160_000)
    left = sorted(path.name for path in (tmp_path / "disk1").iterdir())
    if size > 4:
        assert outcome == [4, 4] and left == ["step-000000003.1", "step-000000004.1"]
        return
    [sentence] = set(outcome)
    lacking = "rank 1 lacks a checkpoint that others have: checkpoint of step 4 can't be written to"
    assert sentence.startswith(f"{lacking} {tmp_path}/disk1: No space left on device; ")
    assert left == [f"step-{step:09d}.1" for step in older]


def _given_on_a_small_disk(folder: Path, size: int) -> int | str:
    with joined(config().distributed) as world:
        path = folder / f"disk{world.rank}"
        with SmallDisk(path, size if world.rank == 1 else 10**9).mounted():
            checkpoints = Checkpointer(CheckpointSettings.model_validate({}), world, path)
            try:
                return next(found.step for found, _ in checkpoints.valid(checkpoints.to_go_on_from()))
            except ConfigError as error:
                return str(error)


@pytest.mark.torch
def test_a_disk_that_refuses_a_copy_in_its_midst_leaves_no_rank_waiting(tmp_path: Path) -> None:
    """On rank 1 no file may exceed 20,000 bytes, as if a quota were the limit."""
    saving.write(tmp_path / "disk0", 4, _state(4), {})
    [sentence] = set(run_ranks(2, _given_where_files_are_cut_off, tmp_path))
    assert "rank 1 lacks a checkpoint that others have: checkpoint of step 4 can't be written to" in sentence
    assert list((tmp_path / "disk1").iterdir()) == []


def _given_where_files_are_cut_off(folder: Path) -> int | str:
    if os.environ["RANK"] == "1":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return _given_on_a_small_disk(folder, 10**9)


def _on_a_full_disk(settings: Config) -> str:
    return _to_its_end_with_files_of(20_000, settings)


def _on_a_disk_that_refuses_every_write(settings: Config) -> str:
    return _to_its_end_with_files_of(600, settings)


def _to_its_end_with_files_of(size: int, settings: Config) -> str:
    """Returns the result of a run in which no file may exceed `size` bytes: the disk fills up in the middle of
    a file.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        run.train(settings)
    except TrainingError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return "a good end"


@pytest.mark.torch
def test_a_disk_that_refuses_every_write_does_not_end_a_run(tmp_path: Path) -> None:
    """By default metrics are on the checkpoints' disk; the weights alone are written when everything else is done."""
    hook, checkpoint = f"{__name__}:be_quiet", {"path": str(tmp_path / "saved"), "every_steps": 2}
    settings = config(tmp_path, checkpoint=checkpoint, hooks=[hook])
    [end] = run_ranks(1, _on_a_disk_that_refuses_every_write, settings)
    assert end.startswith("nothing of the run's end could be saved in"), "it went on to its end, which is no good one"
    assert [path.name for path in (tmp_path / "saved").iterdir() if not path.name.startswith(".")] == []


def be_quiet(trainer: Trainer) -> None:
    trainer.log.quiet = True  # what pytest captures is in a file too


def test_a_refusal_counts_what_ranks_have_written_before_as_taken(tmp_path: Path) -> None:
    partial = storage.partial_name(tmp_path, 1)
    partial.mkdir()
    (partial / "shards").write_bytes(bytes(STATE_BYTES))
    with (
        SmallDisk(tmp_path, STATE_BYTES + 1_000).mounted(),
        pytest.raises(CheckpointError, match=f"; 1,000 bytes are free, {STATE_BYTES:,} and a little more are needed"),
    ):
        saving.write(tmp_path, 1, _state(1), {}, partial)
    assert list(tmp_path.iterdir()) == []
