"""`checkpoint.mode: thread` copies a GPU's state while the GPU computes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.test_side_copies import moments
from tests.trainer.toy import config, toy, weights
from trainloop.checkpoints import storage
from trainloop.checkpoints.saving import HostCopies
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer


def test_a_copy_waits_for_what_comes_before_it_and_the_next_change_for_the_copy() -> None:
    """256 MiB take 5 ms, and the products before them 50 ms or more; the host waits for neither.

    First uses take longer, so everything is used once before.
    """
    copies, large = HostCopies(), torch.randn(8192, 8192, device="cuda")
    state: dict[str, Any] = {"one": torch.zeros(1 << 26, device="cuda"), "number": 3}
    _, done = copies.begin(state)
    large @ large
    assert done is not None
    done.synchronize()
    for value in (1.0, 2.0):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            large @ large
        state["one"].fill_(value)
        torch.cuda.set_sync_debug_mode("error")
        copy, done = copies.begin(state)
        copies.before_change()
        state["one"].fill_(-1.0)
        torch.cuda.set_sync_debug_mode("default")
        seconds = time.perf_counter() - began
        assert done is not None and not done.query() and seconds < 0.03
        done.synchronize()
        assert copy["one"].is_pinned() and bool((copy["one"] == value).all()) and copy["number"] == 3
        torch.cuda.synchronize()
        assert bool((state["one"] == -1.0).all())
    copies.close()


def test_a_checkpoint_is_the_state_after_its_step_while_training_goes_on(tmp_path: Path) -> None:
    run_ranks(1, _saved_beside_steps, tmp_path)


def _saved_beside_steps(folder: Path) -> None:
    checkpoint = {"path": str(folder), "mode": "thread", "every_steps": 1000}
    task = toy(norm=True, dropout=0.1, double=False, hidden=512, depth=4)
    settings = config(folder, checkpoint=checkpoint, precision={}, **task, steps=1000)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        assert trainer.checkpoints is not None
        for number in (3, 6, 9):
            while trainer.state.step < number:
                trainer.train_step()
            expected = {**weights(trainer), **{f"moment {name}": one for name, one in moments(trainer).items()}}
            trainer.save()
            for _ in range(2):
                trainer.train_step()
            trainer.checkpoints.wait()
            state = storage.load(storage.complete(folder)[0])
            saved = {**state["model"], **{f"moment {n}": own["exp_avg"] for n, own in state["optimizer"].items()}}
            assert state["train"]["step"] == number and saved.keys() == expected.keys()
            assert all(torch.equal(saved[name].cpu(), one.cpu()) for name, one in expected.items())
        trainer.checkpoints.close()
