"""Threads and memory follow the container's limits; a run that exhausts the device's memory ends with advice.

A process in a container sees all cores of the node. If it runs 64 threads with a limit of two cores, it is throttled
most of the time.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import torch

from trainloop.config import Config
from trainloop.distributed.world import World
from trainloop.errors import OutOfMemory
from trainloop.recovery.room import container_memory

Method = TypeVar("Method", bound=Callable[..., Any])

#: The activities of a trainer that need the device's memory.
Doing = Literal[
    "building the model",
    "continuing from a checkpoint",
    "in the forward and backward pass",
    "making the optimizer's step",
    "evaluating",
    "saving a checkpoint",
]

CGROUP = Path("/sys/fs/cgroup")


def cpu_limit(cgroup: Path = CGROUP) -> float | None:
    """Returns the number of cores that `cpu.max` of cgroup v2 allows; None without a limit ("max")."""
    try:
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
    except (OSError, ValueError):
        return None
    return quota / period


def cores(cgroup: Path = CGROUP) -> float:
    """Returns the number of cores that this container may use: the smaller of affinity mask and cgroup limit."""
    return min(float(len(os.sched_getaffinity(0))), cpu_limit(cgroup) or float("inf"))


def fit_threads(ranks: int, loader_workers: int) -> int:
    """Sets the number of torch's threads, so that `ranks` ranks and their loaders fit the container; returns it.

    OMP_NUM_THREADS takes precedence. Callers count ranks by host name, which is unique to each pod. Too many threads
    are slow, because waiting threads spin: on two cores, two ranks with two threads each took ten times as long as with
    one thread each.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, int(cores() / ranks) - loader_workers))
    return torch.get_num_threads()


def memory(device: torch.device) -> dict[str, float]:
    """Returns memory use in bytes, and how often the allocator had to free its cache and retry.

    Memory use consists of the process's peak in host memory, its peak on the device, and the memory reserved there.
    """
    host = {"hostMemory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}  # Linux counts KiB
    if device.type != "cuda":
        return host
    # memory_stats() is slower, because it sorts a hundred names.
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    return {
        **host,
        "peakMemory": stats["allocated_bytes"]["all"]["peak"],
        "reservedMemory": stats["reserved_bytes"]["all"]["current"],
        "allocationRetries": stats["num_alloc_retries"],
    }


class MemoryPressure:
    """This class checks whether this rank runs short of memory; `reason` explains the last result.

    Device memory is short if the allocator had to empty its cache and retry. If ranks did that at different times, each
    would delay all others, so all ranks empty their caches together (`relieve`). Host memory is short if the bytes that
    can't be reclaimed are close to the container's limit.
    """

    HOST_SHARE = 0.95

    def __init__(self, device: torch.device, cgroup: Path | None = None) -> None:
        self._device, self._cgroup = device, cgroup
        self._retries, self._full = 0.0, False
        self.reason = ""

    def rises(self) -> bool:
        """Returns whether memory has become shorter since the last call."""
        retries = memory(self._device).get("allocationRetries", 0.0)
        limit, used = container_memory(self._cgroup) or (0, 0)
        full = used > self.HOST_SHARE * limit
        reasons = []
        if retries > self._retries:
            reasons.append(f"{self._device} had to empty its cache {retries - self._retries:.0f} times")
        if full and not self._full:
            reasons.append(f"{used / 2**30:.2f} of the container's {limit / 2**30:.2f} GiB are in use")
        self._retries, self._full, self.reason = retries, full, ", ".join(reasons)
        return bool(reasons)

    def relieve(self) -> None:
        """Frees cached memory."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class _Trains(Protocol):
    config: Config
    world: World


def explaining_out_of_memory(doing: Doing) -> Callable[[Method], Method]:
    """Returns a decorator for the trainer's methods. It turns torch's out-of-memory error into OutOfMemory."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def explained(self: _Trains, *arguments: Any, **named: Any) -> Any:
            try:
                return method(self, *arguments, **named)
            except torch.OutOfMemoryError as error:
                raise out_of_memory(self.config, self.world, doing, error) from error

        return cast("Method", explained)

    return decorate


def out_of_memory(config: Config, world: World, doing: Doing, error: BaseException) -> OutOfMemory:
    """Returns the error for a run that exhausted its memory while `doing` something, with advice for this run."""
    device = world.device
    numbers = {name: value / 2**30 for name, value in memory(device).items()}
    peak, reserved = numbers.get("peakMemory", 0.0), numbers.get("reservedMemory", 0.0)
    advice = remedies(config, world, doing)
    if reserved > 1.2 * peak:
        advice.append("PYTORCH_ALLOC_CONF=expandable_segments:True (the memory is fragmented)")
    return OutOfMemory(
        f"{device} is out of memory {doing} ({peak:.1f} GiB used at the peak, {reserved:.1f} GiB reserved). "
        f"Try, in this order: {'; '.join(advice)}. {str(error).splitlines()[0]}"
    )


def remedies(config: Config, world: World, doing: Doing) -> list[str]:
    """Returns ways to reduce the memory that `doing` needs, the cheapest first, without those already configured.

    For a single rank, strategies that need more ranks come last.
    """
    alone = world.size == 1
    samples, strategy = config.batch.micro_size(world.data_size), config.parallel.strategy
    batch = [f"batch.per_rank below {samples} with batch.size as it is (more passes, the same step)"]
    half = ["precision.compute: bf16"] if config.precision.compute in ("fp32", "fp64") else []
    recompute = ["blocks.activation_checkpointing: full"] if config.blocks.activation_checkpointing == "none" else []
    zero1 = "parallel.strategy: zero1 (each rank keeps a part of the optimizer's state)"
    state = [zero1] if strategy == "ddp" and not alone else []
    if strategy == "zero1" and hasattr(world, "continuing"):
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
        case "building the model" | "continuing from a checkpoint":
            return [*spread, *state, "a smaller model", *last]
