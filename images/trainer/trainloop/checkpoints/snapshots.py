"""A run's state is captured for a checkpoint, and `resume` restores it from memory or a checkpoint.

In a sharded checkpoint, every rank writes and reads its own part of the weights and the optimizer's state (`shards`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from trainloop import seeding
from trainloop.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.checkpoints.storage import CheckpointError
from trainloop.errors import ConfigError
from trainloop.metrics import MetricsLog
from trainloop.state import RunState, stateful_states


def capture(
    run: RunState, attempt: int, *, whole: bool, keep: bool, loss: Callable[[], float] | None
) -> dict[str, Any]:
    """Returns the state that a run needs to continue bit for bit; collective.

    If `whole` is true, the state includes the weights and the optimizer's state; ranks where `keep` is false only take
    part in gathering them. `loss` computes a sample loss, with which a loaded checkpoint is verified later.
    """
    run.replica.settle(run.optimizer)
    own = {
        "rank": run.world.data_rank,  # because another rank's state is gathered for an absent rank
        "random": seeding.capture(run.world.device),
        "compression": {name: tensor.cpu() for name, tensor in run.exchange.memory.items()},
    }
    weights: dict[str, Any] = {}
    if whole:
        model, buffers = run.replica.model_state(keep=keep), run.replica.model.named_buffers()
        # Buffers are copied, because a forward pass may change them while a thread still saves. The other tensors
        # change only in the optimizer's step.
        model |= {name: buffer.clone() for name, buffer in buffers if name in model}
        weights = {"model": model, "optimizer": run.replica.optimizer_state(run.optimizer, keep=keep)}
    return {
        **weights,
        "train": asdict(run.train),
        "attempt": attempt,
        "delayed": run.delayed.state(),
        "scaler": run.precision.scaler.state_dict(),
        "anomaly": run.history.state(),
        "stateful": stateful_states(run.stateful),
        "ranks": run.world.gather(own)[:: run.world.tensor],
        "sampleLoss": loss() if loss else None,
    }


def save(
    run: RunState,
    checkpoints: Checkpointer,
    attempt: int,
    fingerprint: dict[str, str],
    configuration: str,
    sample_loss: Callable[[], float],
) -> list[str]:
    """Save a checkpoint as configured; returns messages about problems. Collective."""
    settings, problems, partial = checkpoints.settings, list[str](), None
    loss, whole = sample_loss if settings.verify_loss else None, settings.format == "full"
    state = capture(run, attempt, whole=whole, keep=checkpoints.is_writer, loss=loss)
    try:
        if not whole:
            problems = checkpoints.wait()
            # Imported on use, with DTensor: import time is part of every recovery.
            from trainloop.checkpoints.shards import save_shards

            partial = save_shards(run, checkpoints)
    except CheckpointError as error:
        return [*problems, str(error)]
    about = {"attempt": attempt, "world_size": run.world.size, "results": run.train.results}
    about |= {"code": fingerprint["code"], "configuration": fingerprint["config"]}
    return problems + checkpoints.save(run.train.step, state, about, partial, configuration)


def resume(
    settings: CheckpointSettings,
    run: RunState,
    checkpoints: Checkpointer | None,
    memory: NothingInMemory,
    log: MetricsLog,
    sample_loss: Callable[[], float],
) -> bool:
    """Restore the newest usable state; returns whether a state was restored.

    The order is: the state in memory, the newest checkpoint that verifies and reproduces the loss saved with it, and
    the checkpoint that `checkpoint.start_from` names.

    Raises ConfigError if checkpoints exist but none is usable, because nobody would expect the run to start from
    scratch then.
    """
    candidates = checkpoints.to_go_on_from() if checkpoints else iter(())
    newest = next(candidates, None)
    if memory.resume(newest):
        return True
    if checkpoints is not None and newest is not None:
        from trainloop.checkpoints.restoring import restore_newest  # a new run doesn't need it

        if restore_newest(run, checkpoints, itertools.chain([newest], candidates), log, sample_loss):
            return True
    if checkpoints is not None and (checkpoints.any_there() or settings.start_from):
        raise ConfigError(
            "no checkpoint can be used: delete them to start from scratch, or set checkpoint.resume to false"
        )
    return False
