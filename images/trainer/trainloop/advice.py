"""Where the device's memory wasn't enough, the run ends with what to change; imported when that has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trainloop.errors import OutOfMemory
from trainloop.resources import memory

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

#: What a trainer does with the device's memory.
Doing = Literal[
    "building the model",
    "going on from a checkpoint",
    "in the forward and backward pass",
    "making the optimizer's step",
    "evaluating",
    "saving a checkpoint",
]


def out_of_memory(trainer: Trainer, doing: Doing, error: BaseException) -> OutOfMemory:
    """Returns the error that ends a run that ran out of memory `doing` something, with advice that fits this run."""
    device = trainer.world.device
    numbers = {name: value / 2**30 for name, value in memory(device).items()}
    peak, reserved = numbers.get("peakMemory", 0.0), numbers.get("reservedMemory", 0.0)
    advice = remedies(trainer, doing)
    if reserved > 1.2 * peak:
        advice.append("PYTORCH_ALLOC_CONF=expandable_segments:True (the memory is fragmented)")
    return OutOfMemory(
        f"{device} is out of memory {doing} ({peak:.1f} GiB used at the peak, {reserved:.1f} GiB reserved). "
        f"Try, in this order: {'; '.join(advice)}. {str(error).splitlines()[0]}"
    )


def remedies(trainer: Trainer, doing: Doing) -> list[str]:
    """Returns what makes `doing` need less memory, the cheapest first, without what the configuration has already.

    Where there is one rank, a strategy that spreads something over ranks comes last: it needs more of them.
    """
    config, alone = trainer.config, trainer.world.size == 1
    samples, strategy = config.batch.micro_size(trainer.world.data_size), config.parallel.strategy
    batch = [f"batch.per_rank below {samples} with batch.size as it is (more passes, the same step)"]
    half = ["precision.compute: bf16"] if config.precision.compute in ("fp32", "fp64") else []
    recompute = ["blocks.activation_checkpointing: full"] if config.blocks.activation_checkpointing == "none" else []
    zero1 = "parallel.strategy: zero1 (each rank keeps a part of the optimizer's state)"
    state = [zero1] if strategy == "ddp" and not alone else []
    if strategy == "zero1" and hasattr(trainer.world, "continuing"):
        state = ["parallel.copies: false (half of the optimizer's state; a lost rank then restarts all)"]
    spread = ["more ranks, each of which has a smaller part" if strategy == "fsdp" else "parallel.strategy: fsdp"]
    last = list[str]()
    if alone:
        spread, last = [], ["more ranks with parallel.strategy: fsdp, each of which has a part of the model"]
    match doing:
        case "in the forward and backward pass":
            return [*(batch if samples > 1 else []), *half, *recompute, *spread, *last]
        case "making the optimizer's step":
            return [*state, *spread, *(batch if samples > 1 else []), *recompute, *last]
        case "evaluating":
            smaller = [f"evaluation.batch below {config.evaluation.batch}"] if config.evaluation.batch > 1 else []
            return [*smaller, *half, *spread, *last]
        case "saving a checkpoint":
            whole = strategy == "fsdp" and config.checkpoint.format == "full" and not alone
            return [*(["checkpoint.format: sharded"] if whole else []), *spread, *state, *last]
        case "building the model" | "going on from a checkpoint":
            return [*spread, *state, "a smaller model", *last]
