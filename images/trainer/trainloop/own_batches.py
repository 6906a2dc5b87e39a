"""A task may give its own global batches (by length, say): by a function of the epoch, or as a torch BatchSampler.

What they draw from the global generators follows from seed and epoch. So they are the same on every rank, which takes
its share of each, and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from trainloop import seeding
from trainloop.data import Sampler, is_stream
from trainloop.errors import ConfigError


@dataclass(frozen=True)
class OwnBatches(Sampler):
    """Makes steps of the batches of `task`, which may have another number of them in each epoch; `batch` is the most
    samples that one may have. Raises ConfigError for what can't be a global batch.
    """

    task: Any
    device: torch.device  # whose generators are left as they are
    #: The first epoch's batches, from when they are counted until they are trained on.
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
        """Returns the steps of so many epochs."""
        last = round(epochs - math.ceil(epochs) + 1, 9)  # the part of the last epoch
        counts = [self._count(epoch) for epoch in range(math.ceil(epochs))]
        return sum(counts[:-1]) + math.ceil(last * counts[-1])

    def _count(self, epoch: int) -> int:
        """Returns how many batches the epoch has. Only torch's own samplers need no draw: another's `len()` may be an
        estimate.
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
        """Yields the epoch's batches after its first `done` samples."""
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
        """Returns the torch BatchSampler as it begins this epoch."""
        sampler = self.task.batch_sampler
        parts: list[Any] = [sampler, getattr(sampler, "sampler", None)]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            if getattr(part, "generator", None) is not None:
                part.generator.manual_seed(self.seed + epoch)
        return sampler
