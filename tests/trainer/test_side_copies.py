"""An accelerator's state is copied for a checkpoint during the next passes, and nobody waits (`checkpoints/saving`)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, toy, weights
from trainloop.checkpoints import saving, storage
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer


class Stream:
    """Plays a device's second queue, whose copies are made as late as the device may make them."""

    def __init__(self, device: torch.device) -> None:
        self.behind: Any = None
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.patch = pytest.MonkeyPatch()

    def wait_stream(self, other: Any) -> None:
        self.behind = other

    def __enter__(self) -> None:
        def queue(into: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
            assert non_blocking
            self.copies.append((into, source))
            return into

        self.patch.setattr(torch.Tensor, "copy_", queue)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()

    def record_event(self) -> Event:
        return Event(self)


class Event:
    """Comes after the copies that are in the queue."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.reached = stream, threading.Event()

    def wait(self) -> None:
        """The device's own queue waits: the code below this line runs when the copies are made."""
        for into, source in self.stream.copies:
            into.copy_(source)
        self.stream.copies.clear()
        self.reached.set()

    def synchronize(self) -> None:
        """Only the writing thread waits."""
        assert threading.current_thread() is not threading.main_thread()
        assert self.reached.wait(30), "nothing waits for the copy before the state changes"


@pytest.mark.torch
def test_a_checkpoint_is_copied_beside_the_next_passes_which_only_the_device_waits_for(tmp_path: Path) -> None:
    run_ranks(1, _on_a_device, tmp_path)


def _on_a_device(folder: Path) -> None:
    """BatchNorm's statistics change in a forward pass, the weights in an optimizer's step."""
    checkpoint = {"path": str(folder), "mode": "thread", "every_steps": 1000}
    settings = config(checkpoint=checkpoint, **toy(norm=True, dropout=0.1), steps=20)
    with joined(settings.distributed) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Stream", Stream)
        patch.setattr(torch.accelerator, "current_stream", lambda device: f"that of {device}")
        patch.setattr(torch.accelerator, "synchronize", pytest.fail)
        patch.setattr(saving, "_devices", _seems_on_a_device)
        trainer = Trainer(settings, world)
        trainer.prepare()
        for number in (3, 6):
            while trainer.state.step < number:
                trainer.train_step()
            expected = {**weights(trainer), **{f"moment {name}": one for name, one in moments(trainer).items()}}
            trainer.save()
            stream = trainer.checkpoints._thread._copies._stream  # type: ignore[union-attr]
            assert isinstance(stream, Stream) and stream.behind == "that of meta"
            assert len(stream.copies) >= len(expected), "the copy is in the queue alone"
            trainer.train_step()
            assert not stream.copies
            trainer.checkpoints.wait()  # type: ignore[union-attr]
            state = storage.load(storage.complete(folder)[0])
            saved = {**state["model"], **{f"moment {n}": own["exp_avg"] for n, own in state["optimizer"].items()}}
            assert saved.keys() == expected.keys() and state["train"]["step"] == number
            assert all(torch.equal(saved[name], one) for name, one in expected.items())
        trainer.checkpoints.close()  # type: ignore[union-attr]


def _seems_on_a_device(state: Any) -> set[torch.device]:
    return {torch.device("meta")}


def moments(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Returns copies of the optimizer's first moments, by parameter."""
    state = trainer.replica.optimizer_state(trainer.optimizer)
    return {name: own["exp_avg"].clone() for name, own in state.items()}
