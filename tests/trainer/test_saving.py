"""A save that is killed or meets a full disk leaves a loadable checkpoint, and training goes on."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.damage import written
from tests.trainer.ranks import free_port, run_ranks, start_rank
from tests.trainer.toy import EXACT, config
from trainloop import run
from trainloop.checkpoints import storage, verification
from trainloop.config import Config
from trainloop.errors import TrainingError
from trainloop.trainer import Trainer


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
        assert verification.verify(newest.path) is None
        assert storage.load(newest)["step"] == newest.step


def _save_for_ever(folder: Path) -> None:
    step = max((found.step for found in storage.complete(folder)), default=0)
    tensor = torch.zeros(1_000_000)
    while True:
        step += 1
        storage.prune(storage.write(folder, step, {"step": step, "tensor": tensor}, {}), 2)


def test_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(verification.CheckpointError, match="checkpoint of step 3 can't be written to"):
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
    assert "checkpoint of step 2 can't be written to" in log and "training goes on without it" in log
    assert '"kind": "step", "attempt": 1' in log and '"step": 6, "totalSteps": 6' in log


def _on_a_full_disk(settings: Config) -> str:
    return _to_its_end_with_files_of(20_000, settings)


def _on_a_disk_that_refuses_every_write(settings: Config) -> str:
    return _to_its_end_with_files_of(600, settings)


def _to_its_end_with_files_of(size: int, settings: Config) -> str:
    """Returns what a run ends with where no file may have more than `size` bytes: a disk gets full in one."""
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
    """Metrics are on the checkpoints' disk by default; the weights alone are written when all is done."""
    hook, checkpoint = f"{__name__}:be_quiet", {"path": str(tmp_path / "saved"), "every_steps": 2}
    settings = config(tmp_path, checkpoint=checkpoint, hooks=[hook])
    [end] = run_ranks(1, _on_a_disk_that_refuses_every_write, settings)
    assert end.startswith("nothing of the run's end could be saved in"), "it went on to its end, which is no good one"
    assert [path.name for path in (tmp_path / "saved").iterdir() if not path.name.startswith(".")] == []


def be_quiet(trainer: Trainer) -> None:
    trainer.log.quiet = True  # what pytest captures is in a file too
