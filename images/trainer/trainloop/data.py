"""The data order says which samples make a step; it doesn't depend on how many ranks there are.

An epoch's order is `permutation(seed, epoch)`. The place, which is in the checkpoint, is the epoch and how many of its
samples are done. A step takes the next `batch` samples (the last of an epoch may be smaller: nothing is dropped), or
the next of the task's own batches, and cuts them into the ranks' shares and each share into micro-batches. So any
number of ranks goes on from any place with every sample seen once. Data without an index has its order in itself
(`streams`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict, Field, model_validator
from torch.utils.data import Dataset, IterableDataset

from trainloop.distributed.world import World
from trainloop.errors import ConfigError, TrainingError
from trainloop.settings import Settings

#: A micro-batch is what the task's `collate` gives: any nesting of containers, with tensors and other things in it.
Batch = Any


def is_stream(data: Any) -> bool:
    """Returns whether samples can only be had one after the other, by `iter(data)`, as of an IterableDataset."""
    return isinstance(data, IterableDataset) or not hasattr(data, "__getitem__")


def length_of(data: Any) -> int | None:
    """Returns how many samples there are; None where a stream doesn't say."""
    return len(data) if hasattr(data, "__len__") else None


def few(data: Any) -> Any:
    """Returns `data`, or a stream's first samples: the same at every start, on every rank. The stream stays where it
    was.
    """
    if not is_stream(data):
        return data
    from trainloop.streams import first

    return first(data)


class BatchSettings(Settings):
    """These settings say how many samples make one optimizer step, and how many go through the model at once."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["size"]}, {"required": ["per_rank"]}]})

    size: int | None = Field(
        None, gt=0, description="Samples in a step; null: per_rank x accumulation x ranks of the first start."
    )
    per_rank: int | None = Field(None, gt=0, description="Samples in one forward pass; null follows from `size`.")
    accumulation: int = Field(1, gt=0, description="Forward passes of a rank in an optimizer step.")

    @model_validator(mode="after")
    def _one_is_there(self) -> BatchSettings:
        if self.size is None and self.per_rank is None:
            raise ValueError("batch needs size (samples in a step, all ranks) or per_rank (samples in a forward pass)")
        if self.size is not None and self.per_rank is not None and self.accumulation > 1:
            raise ValueError("with size and per_rank the accumulation follows: leave one of the three out")
        return self

    def global_size(self, ranks: int) -> int:
        return self.size or (self.per_rank or 1) * self.accumulation * ranks

    def micro_size(self, ranks: int) -> int:
        """Returns the most samples of one forward pass."""
        return self.per_rank or -(-self.global_size(ranks) // (ranks * self.accumulation))


class DataSettings(Settings):
    """These settings say how samples are read."""

    workers: int = Field(
        0,
        ge=0,
        description="Loader processes of each rank; 0 reads in the training process, "
        "and a stream is read by one at most.",
    )
    prefetch: int = Field(2, ge=1, description="Steps that each loader process reads ahead.")
    pin_memory: bool = Field(True, description="Copy through pinned memory where there is an accelerator.")


def permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the epoch's order of `length` samples; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(length)


def share_out(total: int, weights: Sequence[float]) -> list[int]:
    """Cut `total` samples into whole shares in proportion to `weights` (largest remainder, ties to the lower rank)."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda rank: (shares[rank] - exact[rank], rank))
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares


@dataclass(frozen=True)
class RankStep:
    """A step of one rank has `micro` lists of sample indices. The last `padding` of them are stand-ins.

    A stand-in's loss is multiplied by zero: a rank without samples of its own must still enter the collectives.
    """

    micro: list[list[int]]
    padding: int
    samples: int  # of this rank
    all_samples: int  # of all ranks together
    position: int  # samples of the run that are done after this step
    place: Mapping[str, Any]  # after this step: `epoch`, how many of its samples are `done`, a stream's own `state`
    digest: int = 0  # of a stream's first sample, in its first step


@dataclass(frozen=True)
class Sampler:
    """Cuts the endless row of epochs into steps, and each step into the ranks' shares."""

    length: int
    batch: int
    micro_size: int
    seed: int
    equal_passes: bool  # whether all ranks make as many forward passes as the busiest
    #: Whether all steps have `batch` samples, but for an epoch's last one.
    steady: ClassVar[bool] = True

    def steps_in(self, epochs: float) -> int:
        """Returns the steps of so many epochs."""
        if not self.length:
            raise ConfigError(f"epochs is {epochs:g}, but the task's train has no len(): set steps in its place")
        return math.ceil(epochs * -(-self.length // self.batch))

    def steps(
        self, position: int, place: Mapping[str, Any], rank: int, weights: Callable[[], Sequence[float]]
    ) -> Iterator[RankStep]:
        """Yields the rank's steps from `place` on, epoch after epoch, endlessly, after `position` samples of the run;
        `weights` gives the ranks' shares.
        """
        epoch, done = place["epoch"], place["done"]
        while True:
            for indices in self.batches(epoch, done):
                position, done = position + len(indices), done + len(indices)
                yield self.part_of(indices, position, {"epoch": epoch, "done": done}, rank, weights())
            epoch, done = epoch + 1, 0

    def batches(self, epoch: int, done: int) -> Iterator[list[int]]:
        """Yields the epoch's global batches after its first `done` samples."""
        order = permutation(self.seed, epoch, self.length)
        for start in range(done, self.length, self.batch):
            yield order[start : start + self.batch].tolist()

    def part_of(
        self, indices: list[int], position: int, place: Mapping[str, Any], rank: int, weights: Sequence[float]
    ) -> RankStep:
        """Returns what the rank has of a global batch."""
        shares = share_out(len(indices), weights)
        first = sum(shares[:rank])
        mine = indices[first : first + shares[rank]]
        micro = [mine[start : start + self.micro_size] for start in range(0, len(mine), self.micro_size)]
        wanted = -(-max(shares) // self.micro_size) if self.equal_passes else 1
        padding = max(0, wanted - len(micro))
        return RankStep(micro + [indices[:1]] * padding, padding, len(mine), len(indices), position, place)


def sampler_of(task: Any, batch: int, micro_size: int, seed: int, equal_passes: bool, device: torch.device) -> Sampler:
    """Returns what makes steps of the task's data, in batches of its own if it has some."""
    if not hasattr(task, "batches") and not hasattr(task, "batch_sampler"):
        return Sampler(length_of(task.train) or 0, batch, micro_size, seed, equal_passes)
    from trainloop.own_batches import OwnBatches  # imported when used, as streams are

    return OwnBatches(length_of(task.train) or 0, batch, micro_size, seed, equal_passes, task, device)


class _Steps(Dataset[Any]):
    """Reads a whole step's micro-batches at once, so that a loader process hands over steps."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Batch]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, step: RankStep) -> tuple[RankStep, list[Batch]]:
        return step, [self.collate([self.dataset[index] for index in micro]) for micro in step.micro]


@dataclass(frozen=True)
class Fetched:
    """A step's micro-batches are on the host; `waited` is how long the rank waited for them (seconds)."""

    batches: Sequence[Batch]
    step: RankStep
    waited: float
    warning: str | None = None


class Loader:
    """Reads this rank's part of each step, from any place: what `iterator` yields.

    `weights`, to which the ranks' shares are in proportion, may change at any time, on all ranks after the same step.
    What was read ahead has the shares of before, so a change holds `data.prefetch` x `data.workers` steps later: the
    loader processes live on and nothing is read twice.
    """

    def __init__(self, settings: DataSettings, task: Any, sampler: Sampler, world: World) -> None:
        self.sampler = sampler
        self.weights: Sequence[float] = [1.0] * world.data_size
        self._settings, self._task, self._world = settings, task, world

    def start(self, position: int, place: Mapping[str, Any]) -> list[str]:
        """Begin to read at `place`, after `position` samples of the run; returns warnings."""
        # Checkpoints of before have no place.
        place = place or dict(zip(("epoch", "done"), divmod(position, self.sampler.length or 1), strict=True))
        rank, workers, warnings = self._world.data_rank, self._settings.workers, list[str]()
        reader: Dataset[Any] = _Steps(self._task.train, self._task.collate)
        requests: Iterator[Any] = self.sampler.steps(position, place, rank, lambda: self.weights)
        if is_stream(self._task.train):
            from trainloop.streams import Stream, warnings_of

            reader = Stream(self._task.train, self._task.collate, self.sampler, rank, position, place)
            requests, warnings, workers = iter(lambda: self.weights, None), warnings_of(place, workers), min(workers, 1)
        pin_memory = self._settings.pin_memory and self._world.device.type != "cpu"
        if not workers and not pin_memory:
            self.iterator: Iterator[Any] = map(reader.__getitem__, requests)
            return warnings
        from trainloop.loader_processes import read_ahead

        prefetch, seed = self._settings.prefetch, self.sampler.seed
        self.iterator = read_ahead(reader, requests, workers, prefetch, seed, pin_memory=pin_memory)
        return warnings

    def fetch(self) -> Fetched:
        """Returns this rank's part of the next step; `start` comes first. Raises TrainingError for a stream that ends
        too early.
        """
        began = time.perf_counter()
        fetched = next(self.iterator)
        if isinstance(fetched, TrainingError):
            raise fetched
        step, batches = fetched
        waited = time.perf_counter() - began
        differ = step.digest and len(set(self._world.gather(step.digest))) > 1
        warning = "ranks don't see the same stream: each must read all of it in the same order" if differ else None
        return Fetched(batches, step, waited, warning)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Returns the batch with all on `device` that has a `to(device)`, however it is nested; other things stay."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if type(batch) is dict:
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, MutableMapping):
        there = copy.copy(batch)  # of its own kind: an OrderedDict, a defaultdict, a UserDict
        there.update({key: on_device(value, device) for key, value in batch.items()})
        return there
    if isinstance(batch, list | tuple):
        values = [on_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in fields(batch) if field.init]
        return replace(batch, **{name: on_device(getattr(batch, name), device) for name in names})
    return batch
