"""The loader reads this rank's part of each step, in the training process or ahead of time in separate processes.

Loader processes are forked from a server that has imported torch, so their parent is the server and not the rank. So if
the rank is killed, torch's check of the parent doesn't notice that, and the processes would hold memory until the pod
ends. Therefore each loader process waits for the end of its rank, which multiprocessing reports through a pipe.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from trainloop.data import Batch, DataSettings, OwnBatches, RankStep, Sampler, is_stream, length_of
from trainloop.distributed.world import World
from trainloop.errors import TrainingError


def few(data: Any) -> Any:
    """Returns `data`, or, if it is a stream, its first samples, which are the same at every start and on every rank.

    The stream's position doesn't change.
    """
    if not is_stream(data):
        return data
    from trainloop.streams import first

    return first(data)


def sampler_of(task: Any, batch: int, micro_size: int, seed: int, equal_passes: bool, device: torch.device) -> Sampler:
    """Returns the sampler for the task's data. It uses the task's own batches if the task defines them."""
    if not hasattr(task, "batches") and not hasattr(task, "batch_sampler"):
        return Sampler(length_of(task.train) or 0, batch, micro_size, seed, equal_passes)
    return OwnBatches(length_of(task.train) or 0, batch, micro_size, seed, equal_passes, task, device)


@dataclass(frozen=True)
class Fetched:
    """A fetched step holds micro-batches on the host; `waited` is how long the rank waited for them, in seconds."""

    batches: Sequence[Batch]
    step: RankStep
    waited: float
    warning: str | None = None


class Loader:
    """The loader reads this rank's part of each step, starting at any place.

    The ranks' shares are proportional to `weights`, which may change after any step, but only on all ranks at the same
    step. Steps that were read ahead keep their shares. So a change takes effect `data.prefetch` x `data.workers` steps
    later, but the loader processes needn't restart, and nothing is read twice.
    """

    def __init__(self, settings: DataSettings, task: Any, sampler: Sampler, world: World) -> None:
        self.sampler = sampler
        self.weights: Sequence[float] = [1.0] * world.data_size
        self._settings, self._task, self._world = settings, task, world

    def start(self, position: int, place: Mapping[str, Any]) -> list[str]:
        """Starts reading at `place`, where the run has completed `position` samples; returns warnings."""
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
        prefetch, seed = self._settings.prefetch, self.sampler.seed
        self.iterator = read_ahead(reader, requests, workers, prefetch, seed, pin_memory=pin_memory)
        return warnings

    def peek(self) -> Fetched | None:
        """Returns the next step if it is a full batch, and otherwise the step after it; None if there is none.

        `fetch` still returns these steps later.
        """
        found, ahead = None, list[Any]()
        while len(ahead) < 2 and (found is None or found.step.all_samples < self.sampler.batch):
            ahead.append(next(self.iterator))
            if isinstance(ahead[-1], TrainingError):
                break
            found = Fetched(ahead[-1][1], ahead[-1][0], 0.0)
        self.iterator = itertools.chain(ahead, self.iterator)
        return found

    def fetch(self) -> Fetched:
        """Returns this rank's part of the next step; call `start` first.

        Raises TrainingError if a stream ends too early.
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


class _Steps(Dataset[Any]):
    """This dataset reads all micro-batches of a step as one item, so that loader processes return complete steps."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Batch]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, step: RankStep) -> tuple[RankStep, list[Batch]]:
        return step, [self.collate([self.dataset[index] for index in micro]) for micro in step.micro]


def read_ahead(
    reader: Dataset[Any], requests: Iterator[Any], workers: int, prefetch: int, seed: int, *, pin_memory: bool
) -> Iterator[Any]:
    """Yields the reader's result for each request, in order.

    Each of `workers` processes reads `prefetch` requests ahead. If `workers` is 0, the calling process reads.
    """
    # The server must not import the task's module, because a fork would lose threads that the module starts.
    multiprocessing.set_forkserver_preload(["__main__", __name__])
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_is,
        pin_memory=pin_memory,
        # Without this generator, every start would draw from the global generator, and a resumed run would differ from
        # an uninterrupted one.
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context="forkserver" if workers else None,
        worker_init_fn=_end_with_rank,
    )
    return iter(loader)


def _as_is(step: Any) -> Any:
    return step


def _end_with_rank(_: int) -> None:
    """Ends this process as soon as its rank has ended."""
    rank = multiprocessing.parent_process()

    def wait() -> None:
        if rank is not None:
            rank.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Returns the batch, in which each nested value with a method `to` is moved to `device`; others stay unchanged."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if type(batch) is dict:
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, MutableMapping):
        there = copy.copy(batch)  # keeps the type, such as OrderedDict, defaultdict or UserDict
        there.update({key: on_device(value, device) for key, value in batch.items()})
        return there
    if isinstance(batch, list | tuple):
        values = [on_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in fields(batch) if field.init]
        return replace(batch, **{name: on_device(getattr(batch, name), device) for name in names})
    return batch
