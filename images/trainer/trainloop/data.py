"""Which samples each rank trains on, in an order that doesn't depend on how many ranks there are.

An epoch's order is `permutation(seed, epoch)`, and the position in it, `consumed`, is in the checkpoint. A step takes
the next `batch` samples (the last of an epoch may be smaller: nothing is dropped) and cuts them into the ranks'
shares and each share into micro-batches. So any number of ranks goes on from any position with every sample seen
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import Field, model_validator
from torch.utils.data import DataLoader, Dataset

from trainloop.distributed import World
from trainloop.settings import Settings

#: A micro-batch: tensors by name, the first dimension being the sample.
Batch = Mapping[str, torch.Tensor]


class SizedDataset(Protocol):
    """A map-style dataset; with worker processes it is sent to them, so it must be picklable."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchSettings(Settings):
    """How many samples make one optimizer step, and how many go through the model at once."""

    size: int | None = Field(
        None,
        gt=0,
        description="Samples in an optimizer step over all ranks; null is per_rank x accumulation x ranks at the first "
        "start. It is kept in the checkpoint: another number of ranks goes on with the same global batch.",
    )
    per_rank: int | None = Field(
        None,
        gt=0,
        description="Samples in one forward pass of a rank; null spreads `size` over ranks and accumulation.",
    )
    accumulation: int = Field(1, gt=0, description="Forward passes of a rank in an optimizer step.")

    @model_validator(mode="after")
    def _one_is_there(self) -> BatchSettings:
        if self.size is None and self.per_rank is None:
            raise ValueError("batch needs size (samples in a step, all ranks) or per_rank (samples in a forward pass)")
        return self

    def global_size(self, ranks: int) -> int:
        if self.size is not None:
            return self.size
        assert self.per_rank is not None
        return self.per_rank * self.accumulation * ranks

    def micro_size(self, ranks: int) -> int:
        """The most samples of one forward pass."""
        return self.per_rank or -(-self.global_size(ranks) // (ranks * self.accumulation))


class DataSettings(Settings):
    """How samples are read."""

    workers: int = Field(0, ge=0, description="Loader processes of each rank; 0 reads in the training process.")
    prefetch: int = Field(2, ge=1, description="Steps that each loader process reads ahead.")
    pin_memory: bool = Field(True, description="Copy through pinned memory where there is an accelerator.")


@dataclass(frozen=True)
class Position:
    """Where in the data a run is: `consumed` samples of `epoch`'s order are done."""

    epoch: int = 0
    consumed: int = 0


@dataclass(frozen=True)
class Plan:
    """One step's samples: `indices` of the dataset in the epoch's order, and the position after them."""

    indices: np.ndarray[Any, np.dtype[np.int64]]
    start: Position
    after: Position


def permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The epoch's order of `length` samples; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(length)


def plans(position: Position, length: int, batch: int, seed: int) -> Iterator[Plan]:
    """Every step's samples from `position` on, epoch after epoch, without end."""
    while True:
        order = permutation(seed, position.epoch, length)
        while position.consumed < length:
            stop = min(position.consumed + batch, length)
            after = Position(position.epoch, stop) if stop < length else Position(position.epoch + 1)
            yield Plan(order[position.consumed : stop], position, after)
            position = after if stop < length else Position(position.epoch, stop)
        position = Position(position.epoch + 1)


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
    """What one rank computes in a step: `micro` lists of sample indices. The last `padding` of them are stand-ins.

    A stand-in's loss is multiplied by zero: a rank without samples of its own must still take part in the collectives.
    """

    micro: list[list[int]]
    padding: int
    samples: int


def rank_step(plan: Plan, rank: int, weights: Sequence[float], micro_size: int, equal_passes: bool) -> RankStep:
    """This rank's part of `plan`. With `equal_passes` all ranks make as many forward passes as the busiest."""
    shares = share_out(len(plan.indices), weights)
    first = sum(shares[:rank])
    mine = plan.indices[first : first + shares[rank]].tolist()
    micro = [mine[start : start + micro_size] for start in range(0, len(mine), micro_size)]
    wanted = -(-max(shares) // micro_size) if equal_passes else 1
    padding = max(0, wanted - len(micro))
    return RankStep(micro + [[int(plan.indices[0])]] * padding, padding, len(mine))


@dataclass(frozen=True)
class Fetched:
    """A step's micro-batches on the rank's device, and how long the rank waited for them in seconds."""

    batches: list[Batch]
    padding: int
    samples: int
    plan: Plan
    waited: float


class _Steps(Dataset[Any]):
    """Reads a whole step's micro-batches at once, so that a loader process hands over steps."""

    def __init__(self, dataset: SizedDataset, collate: Callable[[list[Any]], Batch]) -> None:
        self.dataset = dataset
        self.collate = collate

    def __getitem__(self, step: tuple[Plan, RankStep]) -> tuple[Plan, RankStep, list[Batch]]:
        plan, mine = step
        return plan, mine, [self.collate([self.dataset[index] for index in micro]) for micro in mine.micro]


class Loader:
    """Gives this rank's part of each step, from any position, with any shares."""

    def __init__(
        self,
        settings: DataSettings,
        dataset: SizedDataset,
        collate: Callable[[list[Any]], Batch],
        world: World,
        *,
        batch: int,
        micro_size: int,
        seed: int,
        equal_passes: bool,
    ) -> None:
        self.length = len(dataset)
        self.steps_per_epoch = -(-self.length // batch)
        self._settings, self._world, self._batch, self._micro_size = settings, world, batch, micro_size
        self._seed, self._equal_passes = seed, equal_passes
        self._weights: list[float] = [1.0] * world.size
        self._steps = _Steps(dataset, collate)
        self._iterator: Iterator[tuple[Plan, RankStep, list[Batch]]] | None = None

    def start(self, position: Position, weights: Sequence[float] | None = None) -> None:
        """Go on from `position`; `weights` set the ranks' shares from here on. What was read ahead is dropped."""
        self._weights = list(weights) if weights is not None else self._weights
        steps = (
            (plan, rank_step(plan, self._world.rank, self._weights, self._micro_size, self._equal_passes))
            for plan in plans(position, self.length, self._batch, self._seed)
        )
        workers = self._settings.workers
        loader = DataLoader(
            self._steps,
            batch_size=None,
            sampler=steps,
            num_workers=workers,
            prefetch_factor=self._settings.prefetch if workers else None,
            collate_fn=_as_is,
            # A generator of its own: the default one would draw from the global RNG at every start, and a resumed run
            # would no longer equal an uninterrupted one.
            generator=torch.Generator().manual_seed(self._seed),
            multiprocessing_context="forkserver" if workers else None,
        )
        self._iterator = iter(loader)

    def fetch(self) -> Fetched:
        """This rank's part of the next step."""
        assert self._iterator is not None, "start() comes first"
        began = time.perf_counter()
        plan, mine, batches = next(self._iterator)
        waited = time.perf_counter() - began
        return Fetched([self._to_device(batch) for batch in batches], mine.padding, mine.samples, plan, waited)

    def _to_device(self, batch: Batch) -> Batch:
        device = self._world.device
        if device.type == "cpu":
            return batch
        if self._settings.pin_memory:
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def _as_is(step: Any) -> Any:
    return step
