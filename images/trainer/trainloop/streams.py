"""A stream's samples can only be read in sequence, by `iter`, like those of torch's IterableDataset.

Every rank reads the complete stream, in a single process, and collates only its own share of each global batch. So
steps are the same with any number of ranks. To resume, a stream needs only a place: the epoch, the number of samples
completed in the epoch, and the result of the stream's `state_dict`. The end of the stream ends the epoch. `set_epoch`
is called before each epoch.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from trainloop import seeding
from trainloop.data import Batch, RankStep, Sampler
from trainloop.distributed.serialization import encode
from trainloop.errors import TrainingError


def first(data: Any) -> list[Any]:
    """Returns a few samples of a stream without changing its position."""
    state = data.state_dict() if hasattr(data, "state_dict") else None
    with seeding.drawing(torch.device("cpu"), 0):
        samples = list(islice(data, 8))
    if state is not None:
        data.load_state_dict(state)
    return samples


def warnings_of(place: Mapping[str, Any], workers: int) -> list[str]:
    """Returns warnings if reading from `place` costs more than usual."""
    warnings = []
    if workers > 1:
        warnings.append(f"data.workers is {workers}, but one process of each rank reads a stream")
    if place["done"] and place.get("state") is None:
        warnings.append(f"the stream has no state_dict: its {place['done']} samples that are done are read again")
    return warnings


class Stream(Dataset[Any]):
    """This dataset reads one rank's steps from `place` on, after `position` samples of the run.

    It defines `__getitem__` because the DataLoader requires an index.
    """

    def __init__(
        self, data: Any, collate: Callable[[list[Any]], Batch], sampler: Sampler, rank: int, position: int, place: Any
    ) -> None:
        self._data, self._collate, self._sampler, self._rank = data, collate, sampler, rank
        self._position, self._place = position, place
        self._batches: Iterator[tuple[list[Any], Mapping[str, Any]]] | None = None

    def __getitem__(self, weights: Sequence[float]) -> tuple[RankStep, list[Batch]] | TrainingError:
        """Returns the next step, with shares set by `weights`, or a TrainingError.

        The error isn't raised, because an error that a loader process raises loses its message.
        """
        first = self._batches is None
        self._batches = self._batches or self._read()  # made here, because a generator can't be sent to a process
        try:
            samples, place = next(self._batches)
        except TrainingError as error:
            return error
        self._position += len(samples)
        step = self._sampler.part_of(list(range(len(samples))), self._position, place, self._rank, weights)
        if first:
            try:
                encode(place["state"])
            except TypeError as error:
                return TrainingError(f"the state_dict of the task's train must be of plain values and tensors: {error}")
            # Remove memory addresses, because they differ between processes.
            text = re.sub(r" at 0x\w+", "", repr(samples[0]))
            step = replace(step, digest=zlib.crc32(text.encode()))
        return step, [self._collate([samples[index] for index in micro]) for micro in step.micro]

    def _read(self) -> Iterator[tuple[list[Any], Mapping[str, Any]]]:
        """Yields each global batch and the place after it, epoch after epoch."""
        data, epoch, done = self._data, self._place["epoch"], self._place["done"]
        samples = self._begin(**self._place)
        while True:
            try:
                while batch := list(islice(samples, self._sampler.batch)):
                    done += len(batch)
                    state = data.state_dict() if hasattr(data, "state_dict") else None
                    yield batch, {"epoch": epoch, "done": done, "state": state}
            except Exception as error:
                error.add_note(f"raised by the task's train, a stream, in epoch {epoch} after {done} samples")
                raise
            if not done:
                raise TrainingError(
                    f"the task's train, a stream, has no samples in epoch {epoch}: each iter() must begin again"
                )
            epoch, done = epoch + 1, 0
            samples = self._begin(epoch)

    def _begin(self, epoch: int, done: int = 0, state: Any = None) -> Iterator[Any]:
        """Returns the epoch's samples that follow the first `done` samples."""
        if get_worker_info() is not None:
            # If the stream shuffles without its own seed, the order is then the same on every rank and after a resume.
            seeding.seed_all(self._sampler.seed, seeding.ORDER, epoch)
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        if state is not None:
            self._data.load_state_dict(state)
        samples: Iterator[Any] = iter(self._data)
        passed = sum(1 for _ in islice(samples, done)) if state is None else done
        if passed < done:
            raise TrainingError(
                f"the task's train, a stream, has {passed} samples in epoch {epoch}, of which {done} were done before: "
                "it must be the same data, or checkpoint.path a new directory"
            )
        return samples
