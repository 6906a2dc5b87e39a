"""This module reports the progress of Lightning's Trainer, whose Rich bar prints nothing without a terminal.

Lightning adds the callbacks of installed packages' entry points to each Trainer (lightning.pytorch and
pytorch_lightning 2, `callback_connector.py`), and the agent's library looks like an installed package. If the callback
can't be imported, there is none, and the training runs without it.

Sections outside of training have long limits, which grow with each batch of an evaluation, because nobody knows how
long an evaluation, a save or an epoch's end may take.
"""

from __future__ import annotations

import math
import os
import time
from importlib import import_module
from typing import Any, Optional

LONG_SECONDS, ENDLESS_SECONDS = 3600.0, 604800.0
LOSS_SECONDS = 1.0
"""The minimum time between two reads of the loss, because a read waits for the device."""


def lightning() -> list[Any]:
    """Returns the callbacks for `lightning.pytorch`."""
    return callbacks("lightning.pytorch.callbacks")


def pytorch_lightning() -> list[Any]:
    """Returns the callbacks for `pytorch_lightning`."""
    return callbacks("pytorch_lightning.callbacks")


def callbacks(module: str) -> list[Any]:
    """Returns a list with the callback, or an empty list if it can't report."""
    try:
        from trainloop.progress import Progress
    except ImportError:
        return []
    return [callback(module)] if os.environ.get("TRAINMASTER_PROGRESS_FILE") and hasattr(Progress, "extend") else []


def callback(module: str) -> Any:
    """Returns a callback that inherits from the module's `Callback`."""

    base: Any = import_module(module).Callback

    class TrainmasterProgress(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._progress: Any = None
            self._loss: Optional[float] = None
            self._read_at, self._began = -math.inf, 0.0
            self._ended: Optional[float] = None

        def __reduce__(self) -> Any:
            return callback, (module,)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            from trainloop.progress import Progress

            rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            if trainer.global_rank not in (rank, 0):
                # Lightning itself has started this process, and its files would be another rank's.
                return
            self._progress = Progress.from_environment(rank, local)
            self._progress.begin(trainer.global_step)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if self._progress is None:
                return
            if self._ended is not None and self._progress.section == "train":
                self._progress.wait_for_data(time.monotonic() - self._ended)
            self._enter("train")

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self._progress is None:
                return
            if time.monotonic() - self._read_at >= LOSS_SECONDS:
                self._loss, self._read_at = _loss(outputs), time.monotonic()
            self._progress.step(
                trainer.global_step, totalSteps=_total(trainer), epoch=_epoch(trainer, batch_idx), loss=self._loss
            )
            if trainer.is_last_batch:
                # The epoch's end may evaluate, save, or run code of the user.
                self._enter("evaluate")
            self._ended = time.monotonic()

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            self._enter("evaluate")

        def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
            if self._progress is not None:
                self._progress.extend(time.monotonic() - self._began + LONG_SECONDS)

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            self._enter("checkpoint")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._enter("finish", ENDLESS_SECONDS)

        def _enter(self, section: str, seconds: float = LONG_SECONDS) -> None:
            if self._progress is not None and self._progress.section != section:
                self._began = time.monotonic()
                self._progress.enter(section, None if section == "train" else seconds)

    return TrainmasterProgress()


def _loss(outputs: Any) -> Optional[float]:
    """Returns a batch's loss; None if the training step returns none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    try:
        return None if loss is None else float(loss)
    except (TypeError, ValueError, RuntimeError):
        return None


def _total(trainer: Any) -> Optional[int]:
    """Returns the number of optimizer steps, if it is known."""
    if trainer.max_steps and trainer.max_steps > 0:
        return int(trainer.max_steps)
    batches: float = trainer.num_training_batches
    epochs: Optional[int] = trainer.max_epochs
    if not epochs or epochs < 0 or not math.isfinite(batches):
        return None
    return math.ceil(batches / max(int(trainer.accumulate_grad_batches), 1)) * epochs


def _epoch(trainer: Any, batch_idx: int) -> float:
    batches = trainer.num_training_batches
    return float(trainer.current_epoch) + ((batch_idx + 1) / batches if batches and math.isfinite(batches) else 0)
