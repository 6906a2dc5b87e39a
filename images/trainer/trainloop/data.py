"""The data order says which samples make a step; it doesn't depend on how many ranks there are.

An epoch's order is `permutation(seed, epoch)`. The position, which is in the checkpoint, is how many samples are done
since the run's beginning, so `position // length` is the epoch. A step takes the next `batch` samples (the last of an
epoch may be smaller: nothing is dropped) and cuts them into the ranks' shares and each share into micro-batches. So
any number of ranks goes on from any position with every sample seen once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any, Protocol, cast

import numpy as np
import torch
from pydantic import ConfigDict, Field, model_validator
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainloop import seeding
from trainloop.distributed.world import World
from trainloop.settings import Settings

#: A micro-batch is what the task's `collate` gives: any nesting of containers, with tensors and other things in it.
Batch = Any


class SizedDataset(Protocol):
    """A map-style dataset has a length and an index; it is sent to worker processes, so it must be picklable."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def is_stream(data: Any) -> bool:
    """Returns whether samples can only be had one after the other, by `iter(data)`, as of an IterableDataset."""
    return isinstance(data, IterableDataset) or not hasattr(data, "__getitem__")


def length_of(data: Any) -> int | None:
    """Returns how many samples there are; None where a stream doesn't say."""
    return len(data) if hasattr(data, "__len__") else None


def few(data: Any) -> SizedDataset:
    """Returns `data`, or a stream's first samples: the same at every start, on every rank. The stream stays where it
    was.
    """
    if not is_stream(data):
        return cast("SizedDataset", data)
    state = data.state_dict() if hasattr(data, "state_dict") else None
    with seeding.drawing(torch.device("cpu"), 0):
        samples = list(islice(data, 8))
    if state is not None:
        data.load_state_dict(state)
    return samples


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
        if self.size is not None:
            return self.size
        assert self.per_rank is not None
        return self.per_rank * self.accumulation * ranks

    def micro_size(self, ranks: int) -> int:
        """Returns the most samples of one forward pass."""
        return self.per_rank or -(-self.global_size(ranks) // (ranks * self.accumulation))


class DataSettings(Settings):
    """These settings say how samples are read."""

    workers: int = Field(0, ge=0, description="Loader processes of each rank; 0 reads in the training process.")
    prefetch: int = Field(2, ge=1, description="Steps that each loader process reads ahead.")
    pin_memory: bool = Field(True, description="Copy through pinned memory where there is an accelerator.")


def permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the epoch's order of `length` samples; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(length)


def share_out(total: int, weights: Sequence[float]) -> list[int]:
    """Cut `total` samples into whole shares in proportion to `weights` (largest remainder, ties to the lower rank)."""
    exact = [total * weight / sum(weights) for weight in weights]
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
    position: int  # in the data, after this step


@dataclass(frozen=True)
class Sampler:
    """Cuts the endless row of epochs into steps, and each step into the ranks' shares."""

    length: int
    batch: int
    micro_size: int
    seed: int
    equal_passes: bool  # whether all ranks make as many forward passes as the busiest

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.length // self.batch)

    def steps(self, position: int, rank: int, weights: Callable[[], Sequence[float]]) -> Iterator[RankStep]:
        """Yields the rank's steps from `position` on, epoch after epoch, endlessly; `weights` gives the shares."""
        while True:
            epoch, done = divmod(position, self.length)
            order = permutation(self.seed, epoch, self.length)
            for start in range(done, self.length, self.batch):
                indices = order[start : start + self.batch].tolist()
                position += len(indices)
                yield self._part_of(indices, position, rank, share_out(len(indices), weights()))

    def _part_of(self, indices: list[int], position: int, rank: int, shares: list[int]) -> RankStep:
        first = sum(shares[:rank])
        mine = indices[first : first + shares[rank]]
        micro = [mine[start : start + self.micro_size] for start in range(0, len(mine), self.micro_size)]
        wanted = -(-max(shares) // self.micro_size) if self.equal_passes else 1
        padding = max(0, wanted - len(micro))
        return RankStep(micro + [indices[:1]] * padding, padding, len(mine), len(indices), position)


class _Steps(Dataset[Any]):
    """Reads a whole step's micro-batches at once, so that a loader process hands over steps."""

    def __init__(self, dataset: SizedDataset, collate: Callable[[list[Any]], Batch]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, step: RankStep) -> tuple[RankStep, list[Batch]]:
        return step, [self.collate([self.dataset[index] for index in micro]) for micro in step.micro]


@dataclass(frozen=True)
class Fetched:
    """A step's micro-batches are as they were `read`, on the host, and on the rank's device; `waited` is how long the
    rank waited for them (seconds).
    """

    read: Sequence[Batch]
    batches: Sequence[Batch]
    step: RankStep
    waited: float


class Loader:
    """Reads this rank's part of each step, from any position.

    `weights`, to which the ranks' shares are in proportion, may change at any time, on all ranks after the same step.
    What was read ahead has the shares of before, so a change holds `data.prefetch` x `data.workers` steps later: the
    loader processes live on and nothing is read twice.
    """

    def __init__(
        self,
        settings: DataSettings,
        dataset: SizedDataset,
        collate: Callable[[list[Any]], Batch],
        sampler: Sampler,
        world: World,
    ) -> None:
        self.sampler = sampler
        self.weights: Sequence[float] = [1.0] * world.data_size
        self._settings, self._world = settings, world
        self._steps = _Steps(dataset, collate)

    def start(self, position: int) -> None:
        """Begin to read at `position`."""
        workers = self._settings.workers
        loader = DataLoader(
            self._steps,
            batch_size=None,
            sampler=self.sampler.steps(position, self._world.data_rank, lambda: self.weights),
            num_workers=workers,
            prefetch_factor=self._settings.prefetch if workers else None,
            collate_fn=_as_is,
            pin_memory=self._settings.pin_memory and self._world.device.type != "cpu",
            # A generator of its own: the default one would draw from the global RNG at every start, and a resumed run
            # would no longer equal an uninterrupted one.
            generator=torch.Generator().manual_seed(self.sampler.seed),
            multiprocessing_context="forkserver" if workers else None,
        )
        self._iterator = iter(loader)

    def fetch(self) -> Fetched:
        """Returns this rank's part of the next step; `start` comes first."""
        began = time.perf_counter()
        step, batches = next(self._iterator)
        waited = time.perf_counter() - began
        return Fetched(batches, on_device(batches, self._world.device), step, waited)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Returns the batch with all on `device` that has a `to(device)`, however it is nested; other things stay."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
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


def _as_is(step: Any) -> Any:
    return step
