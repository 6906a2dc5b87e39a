"""A run's state is restored from a checkpoint; imported by runs that go on from one, or back to one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from trainloop import seeding
from trainloop.checkpoints.snapshots import TrainState
from trainloop.checkpoints.storage import Checkpoint
from trainloop.checkpoints.verification import CheckpointError, computes_the_same
from trainloop.data import Fetched, Loader, on_device
from trainloop.distributed.world import has_agent
from trainloop.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def go_on(trainer: Trainer, candidates: Iterable[Checkpoint]) -> bool:
    """Go on from the first of `candidates` that verifies and computes the loss that it was saved with; returns whether
    there is one.
    """
    assert trainer.checkpoints is not None
    for checkpoint, saved in restored(trainer, candidates):
        if computes_the_same(trainer, saved["sampleLoss"]):
            trainer.judge.can_return = True
            trainer.log.info(f"resumed from {checkpoint.path}")
            if not has_agent():  # which counts attempts
                trainer.log.attempt = saved.get("attempt", 0) + 1
            about = {"world": trainer.world.size, "checkpoint": trainer.checkpoints.parent}
            trainer.log.write("event", {"event": "resumed", "step": trainer.state.step, **about})
            return True
        trainer.log.info(f"checkpoint passed over: {checkpoint.path} doesn't compute the loss that it was saved with")
    return False


def restored(trainer: Trainer, candidates: Iterable[Checkpoint]) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
    """Restore the first valid checkpoint of `candidates`, and yield it with its state; then, if the caller wants
    another, the next.
    """
    assert trainer.checkpoints is not None
    for checkpoint, saved in trainer.checkpoints.valid(candidates):
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
    if world.data_rank < len(ranks) and ranks[world.data_rank].get("rank", world.data_rank) == world.data_rank:
        seeding.restore(ranks[world.data_rank]["random"], world.device)
    else:
        seeding.seed_all(trainer.config.seed.value, seeding.RANK, world.data_rank, trainer.state.step)


def prepare(trainer: Trainer) -> None:
    """Do what comes between a restored state and the first step that is made from it."""
    before, now = trainer.state.precision, trainer.precision.compute
    if before not in ("", now):
        trainer.warn(
            f"steps until here were computed in {before}, and are in {now} from here on: set precision.compute to "
            f"{before} to go on as before"
        )
    rehearse(trainer)


def rehearse(trainer: Trainer) -> None:
    """Make a pass over a coming micro-batch, whose results are thrown away.

    DDP orders its buckets anew at the first forward after the first backward. An uninterrupted run has done so long
    before; a resumed one would reduce its first step in other chunks, and with four ranks (not with two) sums come out
    differently. Blocks are compiled here for the shapes that most steps have, as in an uninterrupted run: if an
    evaluation or an epoch's last step came first, all others would get a graph for shapes that vary.
    """
    if trainer.objectives or not (trainer.replica.wrapped or trainer.config.blocks.compile):
        return
    model, device, random = trainer.replica.model, trainer.world.device, seeding.capture(trainer.world.device)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    trainer.exchange.begin(trainer.state.step)
    if (fetched := _peek(trainer.loader)) is not None:
        with trainer.compiling(fetched.step), trainer.replica.synchronising(last=True):
            with trainer.precision.autocast():
                loss = trainer.task.loss(trainer.replica.forward, on_device(fetched.batches[0], device))
            loss.backward()  # type: ignore[no-untyped-call]
    trainer.exchange.skip()
    trainer.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    seeding.restore(random, device)


def _peek(loader: Loader) -> Fetched | None:
    """Returns the first of the next two steps that isn't shorter than others, or the second, which are fetched later;
    None where there is none.
    """
    found, ahead = None, list[Any]()
    while len(ahead) < 2 and (found is None or found.step.all_samples < loader.sampler.batch):
        ahead.append(next(loader.iterator))
        if isinstance(ahead[-1], TrainingError):
            break
        found = Fetched(ahead[-1][1], ahead[-1][0], 0.0)
    loader.iterator = itertools.chain(ahead, loader.iterator)
    return found
