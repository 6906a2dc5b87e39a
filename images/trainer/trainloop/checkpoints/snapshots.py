"""A run's state is captured for a checkpoint, and `resume` is how a run goes on: from memory, or from a checkpoint
(`restoring`).

In a sharded checkpoint every rank writes and reads its own part of weights and optimizer (`sharded`).
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trainloop import seeding
from trainloop.checkpoints.verification import CheckpointError
from trainloop.errors import ConfigError

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


@dataclass
class TrainState:
    """Holds a run's position in a few numbers."""

    step: int = 0  # global batches done
    updates: int = 0  # of which the optimizer made a step
    position: int = 0  # samples done
    place: dict[str, Any] = field(default_factory=dict)  # in the data: an epoch, how many of its samples are done
    batch: int = 0  # samples in a global batch, as at the first start
    total: int = 0  # steps of the whole run
    results: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    precision: str = ""  # that steps are computed in


def capture(trainer: Trainer) -> dict[str, Any]:
    """Returns all that a run needs to go on to the bit, collective; ranks that don't write may lack weights."""
    if trainer.stateful:
        from trainloop.checkpoints import stateful  # imported by the runs whose hooks keep something

    trainer.replica.settle(trainer.optimizer)
    own = {
        "rank": trainer.world.data_rank,  # another one's stands in for a rank that is absent
        "random": seeding.capture(trainer.world.device),
        "compression": {name: tensor.cpu() for name, tensor in trainer.exchange.memory.items()},
    }
    whole: dict[str, Any] = {}
    if trainer.config.checkpoint.format == "full":
        # A rank that doesn't write has no use for whole tensors.
        keep = trainer.checkpoints is None or trainer.checkpoints.is_writer
        model, buffers = trainer.replica.model_state(keep=keep), trainer.replica.model.named_buffers()
        # These a forward pass may change, while a thread still saves; all else changes with the optimizer's step.
        model |= {name: buffer.clone() for name, buffer in buffers if name in model}
        optimizer = trainer.replica.optimizer_state(trainer.optimizer, keep=keep)
        whole = {"model": model, "optimizer": optimizer}
    return {
        **whole,
        "train": asdict(trainer.state),
        "attempt": trainer.log.attempt,
        "delayed": trainer.delayed.state(),
        "scaler": trainer.precision.scaler.state_dict(),
        "anomaly": (trainer.objectives or trainer.detector).state(),
        "stateful": stateful.capture(trainer) if trainer.stateful else {},
        "ranks": trainer.world.gather(own)[:: trainer.world.tensor],
        "sampleLoss": trainer.evaluator.sample_loss() if trainer.config.checkpoint.verify_loss else None,
    }


def save(trainer: Trainer) -> list[str]:
    """Save a checkpoint as the configuration says; returns what went wrong, as sentences."""
    from trainloop.config import dump_config  # which has this package's settings

    assert trainer.checkpoints is not None
    checkpoints, state = trainer.checkpoints, capture(trainer)
    problems, partial = list[str](), None
    try:
        if "model" not in state:
            problems = checkpoints.wait()
            # Imported when used, with DTensor: the time to start is part of every recovery.
            from trainloop.checkpoints.sharded import save_shards

            partial = save_shards(trainer, checkpoints)
    except CheckpointError as error:
        return [*problems, str(error)]
    about = {"attempt": trainer.log.attempt, "world_size": trainer.world.size, "results": trainer.state.results}
    about |= {"code": trainer.fingerprint["code"], "configuration": trainer.fingerprint["config"]}
    return problems + checkpoints.save(trainer.state.step, state, about, partial, dump_config(trainer.config))


def resume(trainer: Trainer) -> bool:
    """Go on from the state in memory, or from the newest checkpoint that verifies and computes the loss that it was
    saved with, or from the one that `checkpoint.start_from` names; returns whether there was one.

    Raises ConfigError when there are checkpoints and none of them can be used: starting anew would be a surprise.
    """
    settings, checkpoints = trainer.config.checkpoint, trainer.checkpoints
    if not (settings.resume or settings.start_from):
        return False
    trainer.progress.enter("checkpoint", message="looking for a checkpoint")
    candidates = checkpoints.to_go_on_from() if checkpoints else iter(())
    newest = next(candidates, None)
    if trainer.memory.resume(newest):
        return True
    if newest is not None:
        from trainloop.checkpoints.restoring import go_on  # which a run that starts anew doesn't need

        if go_on(trainer, itertools.chain([newest], candidates)):
            return True
    if checkpoints is not None and (checkpoints.any_there() or settings.start_from):
        raise ConfigError("no checkpoint can be used: delete them to start anew, or set checkpoint.resume to false")
    return False
