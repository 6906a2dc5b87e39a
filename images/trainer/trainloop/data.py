"""The data order decides which samples make a step; it doesn't depend on the number of ranks.

An epoch's order is `permutation(seed, epoch)`. The checkpoint stores the place: the epoch, and the number of samples
completed in the epoch. A step processes the next `batch` samples, or the next of the task's own batches (`OwnBatches`).
The last step of an epoch may be smaller, because no sample is dropped. The step's samples are divided into the ranks'
shares, and each share into micro-batches. So any number of ranks can continue from any place, and each sample is used
once per epoch. Data without an index has its own order (`streams`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict, Field, model_validator
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset

from trainloop import seeding
from trainloop.errors import ConfigError
from trainloop.settings import Settings

#: A micro-batch, which the task's `collate` returns: tensors and other values in any nesting of containers.
Batch = Any


def is_stream(data: Any) -> bool:
    """Returns whether the samples can only be read in sequence, by `iter(data)`, as in an IterableDataset."""
    return isinstance(data, IterableDataset) or not hasattr(data, "__getitem__")


def length_of(data: Any) -> int | None:
    """Returns the number of samples; None for a stream without a length."""
    return len(data) if hasattr(data, "__len__") else None


class BatchSettings(Settings):
    """These settings decide how many samples an optimizer step processes, and how many a forward pass does."""

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
        """Returns the maximum number of samples in one forward pass."""
        return self.per_rank or -(-self.global_size(ranks) // (ranks * self.accumulation))


class DataSettings(Settings):
    """These settings decide how samples are read."""

    workers: int = Field(
        0,
        ge=0,
        description="Loader processes of each rank; 0 reads in the training process, "
        "and a stream is read by one at most.",
    )
    prefetch: int = Field(2, ge=1, description="Steps that each loader process reads ahead.")
    pin_memory: bool = Field(True, description="Copy through pinned memory where there is an accelerator.")


def permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the epoch's order of `length` samples, which depends only on the arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(length)


def share_out(total: int, weights: Sequence[float]) -> list[int]:
    """Divides `total` samples in proportion to `weights`, by the largest remainder; ties go to the lower rank."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda rank: (shares[rank] - exact[rank], rank))
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return shares


@dataclass(frozen=True)
class RankStep:
    """This is a rank's part of a step. `micro` lists the sample indices of each micro-batch.

    The last `padding` micro-batches are dummies, whose loss is multiplied by zero. They exist because a rank without
    samples must still take part in the collectives.
    """

    micro: list[list[int]]
    padding: int
    samples: int  # on this rank
    all_samples: int  # on all ranks together
    position: int  # samples that the run has completed after this step
    place: Mapping[str, Any]  # after this step: `epoch`, the number of samples `done` in it, and a stream's `state`
    digest: int = 0  # hash of a stream's first sample, in its first step


@dataclass(frozen=True)
class Sampler:
    """The sampler divides the endless sequence of epochs into steps, and each step into the ranks' shares."""

    length: int
    batch: int
    micro_size: int
    seed: int
    equal_passes: bool  # whether every rank makes as many forward passes as the rank with the most
    #: Whether every step has `batch` samples, except the last step of an epoch.
    steady: ClassVar[bool] = True

    def steps_in(self, epochs: float) -> int:
        """Returns the number of steps in `epochs`."""
        if not self.length:
            raise ConfigError(f"epochs is {epochs:g}, but the task's train has no len(): set steps in its place")
        return math.ceil(epochs * -(-self.length // self.batch))

    def steps(
        self, position: int, place: Mapping[str, Any], rank: int, weights: Callable[[], Sequence[float]]
    ) -> Iterator[RankStep]:
        """Yields the rank's steps endlessly, starting at `place`.

        `position` is the number of samples on which the run has trained. `weights` returns the weights of the ranks'
        shares.
        """
        epoch, done = place["epoch"], place["done"]
        while True:
            for indices in self.batches(epoch, done):
                position, done = position + len(indices), done + len(indices)
                yield self.part_of(indices, position, {"epoch": epoch, "done": done}, rank, weights())
            epoch, done = epoch + 1, 0

    def batches(self, epoch: int, done: int) -> Iterator[list[int]]:
        """Yields the epoch's global batches that follow its first `done` samples."""
        order = permutation(self.seed, epoch, self.length)
        for start in range(done, self.length, self.batch):
            yield order[start : start + self.batch].tolist()

    def part_of(
        self, indices: list[int], position: int, place: Mapping[str, Any], rank: int, weights: Sequence[float]
    ) -> RankStep:
        """Returns this rank's part of a global batch."""
        shares = share_out(len(indices), weights)
        first = sum(shares[:rank])
        mine = indices[first : first + shares[rank]]
        micro = [mine[start : start + self.micro_size] for start in range(0, len(mine), self.micro_size)]
        wanted = -(-max(shares) // self.micro_size) if self.equal_passes else 1
        padding = max(0, wanted - len(micro))
        return RankStep(micro + [indices[:1]] * padding, padding, len(mine), len(indices), position, place)


@dataclass(frozen=True)
class OwnBatches(Sampler):
    """This sampler turns the task's own batches into steps. The number of batches may differ between epochs.

    `batch` is the maximum size of a batch. Raises ConfigError if the task's batches can't be used as global batches.
    """

    task: Any
    device: torch.device  # drawing batches leaves the state of its random generators unchanged
    # : The first epoch's batches, which are kept from when they are counted until they are used.
    first: list[list[list[int]]] = field(default_factory=list)
    steady: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if is_stream(self.task.train):
            raise ConfigError("the task's batches are of indices, which its train, a stream, doesn't have: remove them")
        inner = getattr(getattr(self.task, "batch_sampler", None), "sampler", None)
        if isinstance(inner, DistributedSampler):
            raise ConfigError(
                "the task's batch_sampler has a DistributedSampler: give the global batches, in their place the loop "
                "gives each rank its share"
            )

    def steps_in(self, epochs: float) -> int:
        """Returns the number of steps in `epochs`."""
        last = round(epochs - math.ceil(epochs) + 1, 9)  # the fraction of the last epoch
        counts = [self._count(epoch) for epoch in range(math.ceil(epochs))]
        return sum(counts[:-1]) + math.ceil(last * counts[-1])

    def _count(self, epoch: int) -> int:
        """Returns the number of batches in the epoch.

        If the sampler isn't torch's, its batches are read and counted, because its `len()` may be an estimate.
        """
        sampler: Any = getattr(self.task, "batch_sampler", None)
        torchs = type(sampler) is BatchSampler and type(sampler.sampler).__module__ == BatchSampler.__module__
        if torchs and not hasattr(self.task, "batches"):
            return len(sampler)
        batches = self._given(epoch)
        if not epoch:
            self.first.append(batches)
        return len(batches)

    def batches(self, epoch: int, done: int) -> Iterator[list[int]]:
        """Yields the epoch's batches that follow its first `done` samples."""
        kept = self.first.pop() if self.first else None
        passed = 0
        for indices in self._given(epoch) if epoch or kept is None else kept:
            if not 0 < len(indices) <= self.batch:
                raise ConfigError(
                    f"the task gives a batch of {len(indices)} samples in epoch {epoch}: it must have 1 to "
                    f"{self.batch} (batch.size, or batch.per_rank x accumulation x ranks)"
                )
            if passed >= done:
                yield indices
            passed += len(indices)
        if not passed:
            raise ConfigError(f"the task gives no batches in epoch {epoch}")

    def _given(self, epoch: int) -> list[list[int]]:
        with seeding.drawing(self.device, self.seed, seeding.ORDER, epoch):
            given = self.task.batches(epoch) if hasattr(self.task, "batches") else self._begun(epoch)
            return [[int(index) for index in indices] for indices in given]

    def _begun(self, epoch: int) -> Any:
        """Returns the task's batch sampler, prepared for the beginning of this epoch."""
        sampler = self.task.batch_sampler
        parts: list[Any] = [sampler, getattr(sampler, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            if getattr(part, "generator", None) is not None:
                part.generator.manual_seed(self.seed + epoch)
        return sampler
