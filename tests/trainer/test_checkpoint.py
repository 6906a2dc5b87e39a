"""Checkpoints: resumed runs are bit-exact, killed saves leave a loadable one, damaged ones are passed over (T14)."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankFailed, free_port, run_ranks, start_rank
from tests.trainer.toy import config, train
from trainloop import run
from trainloop.checkpoints import storage
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.checkpoints.saving import Saver
from trainloop.config import Config
from trainloop.distributed.world import World, joined
from trainloop.errors import ConfigError, TrainingError
from trainloop.trainer import Trainer

#: Single precision, dropout and Adam: a resume is only bit-exact when weights, moments, generators and buckets all are.
#: At depth 6 the gradients fill several buckets of 4 KiB, which DDP orders anew after the first step.
EXACT: dict[str, Any] = {
    "task": {
        "name": "tests.trainer.toy:Toy",
        "options": {"dropout": 0.3, "double": False, "hidden": 40, "depth": 6},
    },
    "precision": {"compute": "fp32"},
    "parallel": {"bucket_mb": 0.004},
    "steps": 8,
}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "mode"), [(2, "thread"), (2, "process"), (4, "sync")])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path: Path, ranks: int, mode: str) -> None:
    through = run_ranks(ranks, train, config(tmp_path / "through", **EXACT))
    changes = {**EXACT, "checkpoint": {"path": str(tmp_path / "saved"), "mode": mode}}
    run_ranks(ranks, train, config(tmp_path, **changes), 3)
    resumed = run_ranks(ranks, train, config(tmp_path, **changes))
    assert '"event": "resumed", "step": 3' in (tmp_path / "report" / "metrics.jsonl").read_text()
    for rank in range(ranks):
        assert same_bits(resumed[rank]["weights"], through[rank]["weights"])


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
def test_when_every_checkpoint_is_damaged_the_run_ends_and_says_so(tmp_path: Path) -> None:
    run_ranks(1, train, config(tmp_path))
    [only] = storage.complete(tmp_path / "checkpoints")
    (only.path / "state.pt").write_bytes(b"")
    with pytest.raises(RankFailed, match="ConfigError: no checkpoint can be used: delete them to start anew"):
        run_ranks(1, train, config(tmp_path))


@pytest.mark.torch
def test_what_may_change_from_one_attempt_to_the_next_and_what_may_not(tmp_path: Path) -> None:
    """Precision, batch and length may; another model or optimizer is a sentence. BatchNorm needs two samples a pass."""
    toy: dict[str, Any] = {"name": "tests.trainer.toy:Toy", "options": {"double": False, "norm": True}}
    changes: dict[str, Any] = {"task": toy, "optimizer": {"name": "sgd", "lr": 0.1}, "precision": {"compute": "fp32"}}
    run_ranks(1, train, config(tmp_path, **changes))
    for other in ({"task": {**toy, "options": {"double": False, "hidden": 9}}}, {"optimizer": {"name": "adamw"}}):
        with pytest.raises(RankFailed, match=r"ConfigError: .*step-000000006\.1 is of another model or optimizer: set"):
            run_ranks(1, train, config(tmp_path, **{**changes, **other}))
    changes |= {"precision": {"compute": "fp16"}, "batch": {"size": 10}, "steps": 9}
    [longer] = run_ranks(1, train, config(tmp_path, **changes))
    assert (longer["state"].step, longer["state"].position) == (9, 6 * 8 + 3 * 10)


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
    assert storage.verify(storage.complete(tmp_path / "disk0")[0]) is None


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


@pytest.mark.torch
def test_sigterm_to_one_rank_stops_all_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    stopped = run_ranks(2, _stopped_by_sigterm, config(tmp_path, steps=1_000_000))
    assert [rank["stopped"] for rank in stopped] == [True, True]
    assert stopped[0]["step"] == stopped[1]["step"] < 1_000_000
    assert storage.complete(tmp_path / "checkpoints")[0].step == stopped[0]["step"]


def _stopped_by_sigterm(settings: Config) -> dict[str, Any]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)

        def terminate_in_training() -> None:
            while trainer.state.step < 5:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        if world.rank == 1:
            threading.Thread(target=terminate_in_training).start()
        stopped = trainer.run()
        return {"stopped": stopped, "step": trainer.state.step}


@pytest.mark.torch
def test_ctrl_c_stops_as_sigterm_does(tmp_path: Path) -> None:
    hook = f"{__name__}:press_ctrl_c_in_step_2"
    assert run_ranks(1, run.train, config(tmp_path, hooks=[hook], steps=1_000_000)) == [True]
    assert storage.complete(tmp_path / "checkpoints")[0].step == 3


def press_ctrl_c_in_step_2(trainer: Trainer) -> None:
    trainer.after_step.append(lambda _: os.kill(os.getpid(), signal.SIGINT) if trainer.state.step == 2 else None)


@pytest.mark.torch
def test_sigterm_in_the_midst_of_an_evaluation_saves_and_does_not_wait_for_its_end(tmp_path: Path) -> None:
    """An evaluation may take longer than the pod's grace period."""
    runs = run_ranks(2, _stopped_in_evaluation, config(tmp_path, evaluation={"batch": 1}))
    assert [(run["stopped"], run["step"]) for run in runs] == [(True, 6), (True, 6)]
    assert max(run["passes"] for run in runs) < 10
    assert storage.complete(tmp_path / "checkpoints")[0].step == 6


def _stopped_in_evaluation(settings: Config) -> dict[str, Any]:
    with joined(settings.distributed) as world:
        trainer, passes = Trainer(settings, world), list[int]()

        def measure(model: Any, batch: Any) -> dict[str, torch.Tensor]:
            passes.append(1)
            if world.rank == 1 and trainer.state.step == 6 and len(passes) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return {"correct": torch.zeros(())}

        trainer.task.measure = measure  # type: ignore[method-assign]
        stopped = trainer.run()
        return {"stopped": stopped, "step": trainer.state.step, "passes": len(passes)}


#: Notes what is synced, renamed and deleted, in this process and, as its sitecustomize, in a writing process.
RECORDER = """
import os, shutil
fsync, rename, rmtree = os.fsync, os.rename, shutil.rmtree
def note(*words):
    with open(os.environ["RECORDED_CALLS"], "a") as file:
        print(*words, file=file)
def recorded_fsync(descriptor):
    fsync(descriptor)
    note("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
def recorded_rename(old, new):
    rename(old, new)
    note("rename", old, new)
def recorded_rmtree(path, *arguments, **options):
    note("delete", path)
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


@pytest.mark.torch
def test_kill_9_at_any_point_of_a_save_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    """Saves follow each other without a pause, so that a kill nearly always comes in the middle of one."""
    for delay in (0.02, 0.11, 0.23):
        process = start_rank(_save_for_ever, 0, 1, free_port(), tmp_path / "out", tmp_path)
        while not storage.complete(tmp_path):
            time.sleep(0.005)
        time.sleep(delay)
        process.kill()
        process.join()
        newest = storage.complete(tmp_path)[0]
        assert storage.verify(newest) is None
        assert storage.load(newest)["step"] == newest.step


def _save_for_ever(folder: Path) -> None:
    step = max((found.step for found in storage.complete(folder)), default=0)
    tensor = torch.zeros(1_000_000)
    while True:
        step += 1
        storage.prune(storage.write(folder, step, {"step": step, "tensor": tensor}, {}), 2)


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def written(folder: Path, step: int, value: float = 0.0) -> storage.Checkpoint:
    return storage.write(folder, step, {"tensor": torch.full((4,), value)}, {"results": {"accuracy": value}})


def test_a_flipped_byte_anywhere_is_found(tmp_path: Path) -> None:
    for name in (storage.STATE, storage.MANIFEST):
        checkpoint = written(tmp_path, 1)
        assert storage.verify(checkpoint) is None
        flip_a_byte(checkpoint.path / name)
        problem = storage.verify(checkpoint)
        assert problem is not None and name in problem


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
    assert [found.step for found in storage.complete(tmp_path) if storage.verify(found) is None] == [15]


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


def test_what_an_unfinished_save_left_is_never_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="pickle"):
        storage.write(tmp_path, 3, {"not a plain value": lambda: None}, {})
    assert list(tmp_path.iterdir()) != []
    assert storage.complete(tmp_path) == []
    storage.clean(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(storage.CheckpointError, match="checkpoint of step 3 can't be written to"):
        written(tmp_path / "file", 3)


@pytest.mark.torch
def test_when_the_writing_process_is_killed_each_save_says_so(tmp_path: Path) -> None:
    saver = Saver("process")
    assert storage.verify(saver.save(tmp_path, 1, {"tensor": torch.ones(3)}, {}).result()) is None
    [writer] = multiprocessing.active_children()
    writer.kill()
    for step in (2, 3):
        with pytest.raises(storage.CheckpointError, match=f"checkpoint of step {step}: the writing process has ended"):
            saver.save(tmp_path, step, {"tensor": torch.ones(3)}, {}).result()
    saver.close()
    assert [found.step for found in storage.complete(tmp_path)] == [1]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "how"), [(2, {"mode": "sync"}), (1, {"mode": "process"}), (2, {"format": "sharded"})]
)
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
    assert "checkpoint of step 2 can't be written to" in log and "training goes on without it" in log
    assert '"kind": "step", "attempt": 1' in log and '"step": 6, "totalSteps": 6' in log


def _on_a_full_disk(settings: Config) -> str:
    return _to_its_end_with_files_of(20_000, settings)


def _on_a_disk_that_takes_nothing(settings: Config) -> str:
    return _to_its_end_with_files_of(600, settings)


def _to_its_end_with_files_of(size: int, settings: Config) -> str:
    """No file may be larger than `size` bytes: a disk that is full in the middle of one. What the run ends with."""
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
def test_a_disk_that_takes_nothing_any_more_does_not_end_a_run(tmp_path: Path) -> None:
    """Metrics are on the checkpoints' disk unless told otherwise; the weights alone are written when all is done."""
    hook, checkpoint = f"{__name__}:be_quiet", {"path": str(tmp_path / "saved"), "every_steps": 2}
    settings = config(tmp_path, checkpoint=checkpoint, hooks=[hook])
    [end] = run_ranks(1, _on_a_disk_that_takes_nothing, settings)
    assert end.startswith("nothing of the run's end could be saved in"), "it went on to its end, which is no good one"
    assert [path.name for path in (tmp_path / "saved").iterdir() if not path.name.startswith(".")] == []


def be_quiet(trainer: Trainer) -> None:
    trainer.log.quiet = True  # what pytest captures is in a file too


def test_a_directory_that_can_not_be_written_to_is_said_before_training(
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
