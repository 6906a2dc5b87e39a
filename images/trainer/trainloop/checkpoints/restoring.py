"""A run's state is restored from a checkpoint when the run starts, or after several odd steps in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from trainloop import seeding
from trainloop.checkpoints import storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.checkpoints.storage import Checkpoint, CheckpointError
from trainloop.distributed.world import has_agent
from trainloop.errors import ConfigError, Diverged
from trainloop.metrics import MetricsLog
from trainloop.state import RunState, restore_stateful


def restore_newest(
    run: RunState,
    checkpoints: Checkpointer,
    candidates: Iterable[Checkpoint],
    log: MetricsLog,
    sample_loss: Callable[[], float],
) -> bool:
    """Restore the first of `candidates` that verifies and reproduces its saved loss; returns whether there was one."""
    for checkpoint, saved in restored(run, checkpoints, candidates, log):
        if computes_the_same(run, saved["sampleLoss"], sample_loss):
            run.judge.can_return = True
            log.info(f"resumed from {checkpoint.path}")
            if not has_agent():  # an agent counts attempts itself
                log.attempt = saved["attempt"] + 1
            about = {"world": run.world.size, "checkpoint": checkpoints.parent}
            log.write("event", {"event": "resumed", "step": run.train.step, **about})
            return True
        log.info(f"checkpoint passed over: {checkpoint.path} doesn't compute the loss that it was saved with")
    return False


def computes_the_same(run: RunState, expected: float | None, sample_loss: Callable[[], float]) -> bool:
    """Returns whether the loaded model reproduces the saved sample loss on all ranks."""
    if expected is None:
        return True
    whole = {run.precision.compute, run.train.precision} <= {"fp32", "fp64", ""}
    tolerance = 1e-4 if whole else 2e-2
    loss = sample_loss()
    both_nan = math.isnan(loss) and math.isnan(expected)
    agrees = both_nan or math.isclose(loss, expected, rel_tol=tolerance, abs_tol=tolerance)
    return run.world.sum([float(not agrees)])[0] == 0


def restored(
    run: RunState, checkpoints: Checkpointer, candidates: Iterable[Checkpoint], log: MetricsLog
) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
    """Restore each valid checkpoint of `candidates` in order, and yield the checkpoint and its state."""
    for checkpoint, saved in checkpoints.valid(candidates):
        try:
            restore(run, checkpoint, saved, checkpoints.settings.format, log)
        except CheckpointError as error:
            log.info(f"checkpoint passed over: {error}")
        else:
            yield checkpoint, saved


def restore(run: RunState, checkpoint: Checkpoint, saved: dict[str, Any], form: str, log: MetricsLog) -> None:
    """Restore a state from `capture`, which may have been saved by another number of ranks.

    `form` is the format that the configuration allows.

    Raises CheckpointError on every rank if parts of a sharded checkpoint can't be read, and ConfigError if the
    checkpoint belongs to another model or optimizer.
    """
    run.train.load(saved["train"])
    try:
        if "model" in saved:
            run.replica.load_model(saved["model"])
            run.replica.load_optimizer(run.optimizer, saved["optimizer"])
        elif form == "sharded":
            from trainloop.checkpoints.shards import load_shards

            load_shards(run, checkpoint)
        else:
            # The configuration decides which format is read, so that a program that can write to the directory doesn't.
            raise CheckpointError(f"{checkpoint.path} is sharded, and only checkpoint.format sharded reads such")
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint.path} is of another model or optimizer: set checkpoint.path to a new directory, or "
            f"checkpoint.resume to false. {' '.join(str(error).split())}"
        ) from error
    restore_stateful(run.stateful, saved["stateful"], log.warn)
    run.delayed.load(saved["delayed"], run.train.step)
    if saved["scaler"]:  # empty if the state was saved in another precision
        run.precision.scaler.load_state_dict(saved["scaler"])
    run.history.load(saved["anomaly"])
    ranks, world = saved["ranks"], run.world
    if run.exchange.load([rank["compression"] for rank in ranks], world.rank):
        log.info(f"{checkpoint.path} has remainders of compression that fit no parameter: they are dropped")
    if world.data_rank < len(ranks) and ranks[world.data_rank]["rank"] == world.data_rank:
        seeding.restore(ranks[world.data_rank]["random"], world.device)
    else:
        seeding.seed_all(run.seed, seeding.RANK, world.data_rank, run.train.step)


def roll_back(
    run: RunState, checkpoints: Checkpointer | None, memory: NothingInMemory, log: MetricsLog, most: int
) -> None:
    """Restore the newest checkpoint, but continue with the data after the current step; the data in between is skipped.

    Raises Diverged if there is no checkpoint to return to, or if the run has already returned `most` times.
    """
    before, judge = replace(run.train), run.judge
    odd = f"{run.history.odd_in_a_row} steps in a row stand out at step {before.step}"
    advice = "look at the data and at optimizer.lr"
    if checkpoints is None or not judge.can_return:
        raise Diverged(f"{odd} and there is no checkpoint to go back to: {advice}")
    if judge.rollbacks >= most:
        raise Diverged(f"{odd}, after {judge.rollbacks} returns to a checkpoint: {advice}")
    run.optimizer.zero_grad(set_to_none=True)
    memory.changing()
    memory.forget()  # drops the state after the steps that are reverted
    for checkpoint, _ in restored(run, checkpoints, ancestors(checkpoints), log):
        # The checkpoint may be from an attempt with another length, batch or precision, so the current values are kept.
        for name in ("position", "place", "total", "batch", "precision"):
            setattr(run.train, name, getattr(before, name))
        judge.rollbacks += 1
        # The checkpoint may have been saved within a row of odd steps. Their data is skipped too, so the row ends.
        run.history.end_row()
        back = {"step": before.step, "to": run.train.step, "checkpoint": checkpoint.name}
        log.write("event", {"event": "rolledBack", **back})
        memory.finished()
        log.warn(f"went back to step {run.train.step}, continuing with the data after what stood out")
        return
    raise Diverged(f"{odd} and no checkpoint can be read any more")


def ancestors(checkpoints: Checkpointer) -> Iterator[Checkpoint]:
    """Yields the checkpoint from which the run continues, then that checkpoint's parent, and so on."""
    name, seen = checkpoints.parent, set[str]()
    while name is not None and name not in seen:
        seen.add(name)
        if found := storage.named(checkpoints.path, name) or checkpoints.start:
            yield found
        name = checkpoints.parents.get(name)
