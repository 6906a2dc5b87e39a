"""All ranks save and load a sharded checkpoint together: each writes and reads its own part (`shards`), in a directory
that isn't a checkpoint yet, which then gets its manifest and its name like any other.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainloop.checkpoints import room, storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.shards import SHARDS, Shards, own_pieces, write_own
from trainloop.checkpoints.storage import Checkpoint
from trainloop.checkpoints.verification import CheckpointError
from trainloop.parallel.strategies import Replica

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def save_shards(trainer: Trainer, checkpoints: Checkpointer) -> Path:
    """Save weights and optimizer by shards, those of the first replica; returns where they are. Raises CheckpointError
    on every rank alike.
    """
    world, directory, step = trainer.world, checkpoints.path, trainer.state.step
    replica = trainer.replica
    own = Replica.optimizer_state(replica, trainer.optimizer)  # not gathered, as the strategy's own method does
    writes = world.rank // world.unit == world.first // world.unit
    pieces = list(own_pieces(replica.model.state_dict(), own, world)) if writes else []
    needed = int(world.sum([storage.size_of(pieces)])[0])
    for last in (False, True):
        name, has_room = world.from_rank(
            0, (storage.partial_name(directory, step).name, storage.has_room(directory, needed))
        )
        partial = storage.inside(directory, name)
        problem: OSError | RuntimeError | None = None
        try:
            if not has_room:
                raise storage.disk_full()
            if writes:
                write_own(partial / SHARDS, world.rank, pieces)
        except (OSError, RuntimeError) as error:
            problem = error
        refused = [rank for rank, failed in enumerate(world.gather(problem is not None)) if failed]
        if not refused:
            break
        made, sentence = False, ""
        if problem is not None and world.rank == refused[0]:
            shutil.rmtree(partial, ignore_errors=True)
            made = not last and room.make(directory, problem, needed, checkpoints.parent)
            sentence = room.refusal(directory, step, problem, needed)
        made, sentence = world.from_rank(refused[0], (made, sentence))
        if not made:
            raise CheckpointError(sentence)
    return partial


def load_shards(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Fill weights and optimizer from a sharded checkpoint, whatever number of ranks wrote it."""
    if trainer.config.checkpoint.format != "sharded":
        # The configuration decides what is read, not who can write to the directory.
        raise CheckpointError(f"{checkpoint.path} is sharded, and only checkpoint.format sharded reads such")
    damaged = different = None
    try:
        shards = Shards(checkpoint.path / SHARDS)
        model, optimizer = shards.model_state(trainer.replica), shards.optimizer_state(trainer.replica)
    except CheckpointError as error:
        damaged = str(error)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, KeyError) as error:
        different = str(error)
    gathered = trainer.world.gather((damaged, different))
    for text in (one for one, _ in gathered if one):
        raise CheckpointError(text)
    for text in (other for _, other in gathered if other):
        raise RuntimeError(text)
    trainer.replica.load_model(model)
    trainer.replica.load_optimizer(trainer.optimizer, optimizer)
