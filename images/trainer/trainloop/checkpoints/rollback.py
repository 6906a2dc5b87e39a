"""A run whose steps stand out goes back to a checkpoint; imported when that happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from trainloop.checkpoints import storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.restoring import restored
from trainloop.checkpoints.storage import Checkpoint
from trainloop.errors import Diverged

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def roll_back(trainer: Trainer) -> None:
    """Restore the newest checkpoint and go on with the data after this step; what lies between is passed over.

    Raises Diverged where there is nothing to go back to, or the run went back often enough.
    """
    before, judge = trainer.state, trainer.judge
    in_a_row = (trainer.objectives or trainer.detector).odd_in_a_row
    odd = f"{in_a_row} steps in a row stand out at step {before.step}"
    advice = "look at the data and at optimizer.lr"
    if trainer.checkpoints is None or not judge.can_return:
        raise Diverged(f"{odd} and there is no checkpoint to go back to: {advice}")
    if judge.rollbacks >= trainer.config.anomaly.rollbacks:
        raise Diverged(f"{odd}, after {judge.rollbacks} returns to a checkpoint: {advice}")
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.memory.changing()
    trainer.memory.forget()  # of the steps that are given up
    for checkpoint, _ in restored(trainer, ancestors(trainer.checkpoints)):
        # The checkpoint may be of an attempt with another length, batch or precision.
        kept = {name: getattr(before, name) for name in ("position", "place", "total", "batch", "precision")}
        trainer.state = replace(trainer.state, **kept)
        judge.rollbacks += 1
        # The checkpoint may be of a moment between odd steps, whose data is passed over too.
        (trainer.objectives or trainer.detector).end_row()
        back = {"step": before.step, "to": trainer.state.step, "checkpoint": checkpoint.name}
        trainer.log.write("event", {"event": "rolledBack", **back})
        trainer.memory.finished()
        trainer.warn(f"went back to step {trainer.state.step}, going on with the data after what stood out")
        return
    raise Diverged(f"{odd} and no checkpoint can be read any more")


def ancestors(checkpoints: Checkpointer) -> Iterator[Checkpoint]:
    """Yields the checkpoints that the run, as it is now, has come from, the newest first."""
    name, seen = checkpoints.parent, set[str]()
    while name is not None and name not in seen:
        seen.add(name)
        if found := storage.named(checkpoints.path, name) or checkpoints.start:
            yield found
        name = checkpoints.parents.get(name)
