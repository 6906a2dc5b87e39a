"""A signal to one rank stops all of them with a checkpoint (`trainer`)."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop import run
from trainloop.checkpoints import storage
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer


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
