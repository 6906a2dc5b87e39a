"""A run's state is captured for a checkpoint, and restored from one: `resume` is how a run goes on.

In a sharded checkpoint every rank writes and reads its own part of weights and optimizer (`sharded`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trainloop import seeding
from trainloop.checkpoints.storage import Checkpoint
from trainloop.checkpoints.verification import CheckpointError, computes_the_same
from trainloop.data import on_device
from trainloop.distributed.world import has_agent
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


def capture(trainer: Trainer) -> dict[str, Any]:
    """Returns all that a run needs to go on to the bit, collective; ranks that don't write may lack weights."""
    if trainer.stateful:
        from trainloop.checkpoints import stateful  # imported by the runs whose hooks keep something

    trainer.replica.settle(trainer.optimizer)
    own = {
        "random": seeding.capture(trainer.world.device),
        "compression": {name: tensor.cpu() for name, tensor in trainer.exchange.memory.items()},
    }
    whole: dict[str, Any] = {}
    if trainer.config.checkpoint.format == "full":
        # A rank that doesn't write has no use for whole tensors.
        keep = trainer.checkpoints is None or trainer.checkpoints.is_writer
        model = trainer.replica.model_state(keep=keep)
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


def restored(
    trainer: Trainer, candidates: Iterable[Checkpoint], *, warm_up: bool = False
) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
    """Restore the first valid checkpoint of `candidates`, and yield it with its state; then, if the caller wants
    another, the next.
    """
    assert trainer.checkpoints is not None
    for checkpoint, saved in trainer.checkpoints.valid(candidates):
        if warm_up:
            _warm_up(trainer)
        try:
            restore(trainer, checkpoint, saved)
        except CheckpointError as error:
            trainer.log.info(f"checkpoint passed over: {error}")
        else:
            yield checkpoint, saved


def restore(trainer: Trainer, checkpoint: Checkpoint, saved: dict[str, Any]) -> None:
    """Restore a state that `capture` made, by this or another number of ranks.

    Raises CheckpointError, on every rank alike, where parts of a sharded one can't be read.
    """
    trainer.state = TrainState(**saved["train"])
    try:
        if "model" in saved:
            trainer.replica.load_model(saved["model"])
            trainer.replica.load_optimizer(trainer.optimizer, saved["optimizer"])
        else:
            from trainloop.checkpoints.sharded import load_shards

            load_shards(trainer, checkpoint)
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint.path} is of another model or optimizer: set checkpoint.path to a new directory, or "
            f"checkpoint.resume to false. {' '.join(str(error).split())}"
        ) from error
    if trainer.stateful or saved.get("stateful"):
        from trainloop.checkpoints import stateful  # imported by the runs whose hooks keep something

        stateful.restore(trainer, saved.get("stateful", {}))
    trainer.delayed.load(saved["delayed"], trainer.state.step)
    if saved["scaler"]:  # else it was saved in another precision
        trainer.precision.scaler.load_state_dict(saved["scaler"])
    (trainer.objectives or trainer.detector).load(saved["anomaly"])
    ranks, world = saved["ranks"], trainer.world
    if trainer.exchange.load([rank["compression"] for rank in ranks], world.rank):
        trainer.log.info(f"{checkpoint.path} has remainders of compression that fit no parameter: they are dropped")
    if world.data_rank < len(ranks):
        seeding.restore(ranks[world.data_rank]["random"], world.device)
    else:
        seeding.seed_all(trainer.config.seed.value, seeding.RANK, world.data_rank, trainer.state.step)


def resume(trainer: Trainer) -> bool:
    """Go on from the newest checkpoint that verifies and computes the loss that it was saved with, or from the one
    that `checkpoint.start_from` names; returns whether there was one.

    Raises ConfigError when there are checkpoints and none of them can be used: starting anew would be a surprise.
    """
    settings, checkpoints = trainer.config.checkpoint, trainer.checkpoints
    if checkpoints is None or not (settings.resume or settings.start_from):
        return False
    trainer.progress.enter("checkpoint", message="looking for a checkpoint")
    for checkpoint, saved in restored(trainer, checkpoints.to_go_on_from(), warm_up=True):
        if computes_the_same(trainer, saved["sampleLoss"]):
            trainer.log.info(f"resumed from {checkpoint.path}")
            if not has_agent():  # which counts attempts
                trainer.log.attempt = saved.get("attempt", 0) + 1
            about = {"world": trainer.world.size, "checkpoint": checkpoints.parent}
            trainer.log.write("event", {"event": "resumed", "step": trainer.state.step, **about})
            return True
        trainer.log.info(f"checkpoint passed over: {checkpoint.path} doesn't compute the loss that it was saved with")
    if checkpoints.any_there() or settings.start_from:
        raise ConfigError("no checkpoint can be used: delete them to start anew, or set checkpoint.resume to false")
    return False


def _warm_up(trainer: Trainer) -> None:
    """Make two passes whose results are thrown away, before a checkpoint is loaded.

    DDP orders its buckets anew after the first backward. An uninterrupted run has done so long before; a resumed one
    would reduce its first step in other chunks, and with four ranks (not with two) sums come out differently.
    """
    # Two samples, because BatchNorm refuses one.
    batch = on_device(trainer.task.collate([trainer.evaluator.few[0]] * 2), trainer.world.device)
    for _ in range(2):
        with trainer.replica.synchronising(last=True):
            with trainer.precision.autocast():
                loss = trainer.task.loss(trainer.replica.forward, batch)
            loss.backward()  # type: ignore[no-untyped-call]
    trainer.optimizer.zero_grad(set_to_none=True)
