"""Sharded checkpoints: every rank writes and reads its own part, through torch.distributed.checkpoint (DCP).

DCP has no checksums and writes over what is there; so it writes into a directory that isn't a checkpoint yet, which
then gets its manifest and its name like any other. DCP reads it with any number of ranks.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trainloop import storage
from trainloop.storage import Checkpoint

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

#: The part of the checkpoint's directory that DCP writes.
SHARDS = "shards"


def save(trainer: Trainer, small: dict[str, Any]) -> list[str]:
    """Save weights and optimizer by shards and `small` beside them; what went wrong, as sentences."""
    checkpoints, world, step = trainer.checkpoints, trainer.world, trainer.state.step
    assert checkpoints is not None
    partial = Path(world.from_rank(0, str(storage.partial_name(checkpoints.path, step))))
    model, optimizer = get_state_dict(trainer.replica.model, trainer.optimizer)
    problem = None
    try:
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=partial / SHARDS)
        if checkpoints.is_writer:
            storage.save_tensors(small, partial / storage.STATE)
    except (OSError, RuntimeError, dcp.CheckpointException) as error:
        problem = f"checkpoint of step {step} can't be written to {checkpoints.path}: {str(error).splitlines()[0]}"
    problems = [text for text in world.gather(problem) if text] or checkpoints.take(
        partial, step, trainer.state.results
    )
    if problems and checkpoints.is_writer:
        shutil.rmtree(partial, ignore_errors=True)
    return problems


def load(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Fill weights and optimizer from a sharded checkpoint, whatever number of ranks wrote it."""
    model, optimizer = get_state_dict(trainer.replica.model, trainer.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=checkpoint.path / SHARDS)
    set_state_dict(trainer.replica.model, trainer.optimizer, model_state_dict=model, optim_state_dict=optimizer)
