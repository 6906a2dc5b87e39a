"""Where no rank may survive that has the state, a snapshot of it is in memory already.

Ranks write one every k steps, where k follows from what writing takes: it is chosen anew after each, so that all
snapshots together cost two thousandths of the time. The one before is deleted when all ranks have sealed the newer.
Where all ranks have the same state the first rank of the first two workers writes it. Where each has a part of its own,
each writes it, and gives a copy to its neighbour, the rank of the same number in the next worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from trainloop.recovery import room, sealed
from trainloop.recovery.agreement import Group
from trainloop.recovery.encoding import Encoded, EncodingError
from trainloop.recovery.place import Place

#: The part of a run's time that its snapshots may cost; with what every step copies it is to stay under a hundredth.
SHARE = 0.002
#: Steps of an attempt before its first snapshot; the first steps take longer than others do.
_FIRST = 4
#: Where all ranks have the same state, the workers that have a snapshot of it: one, and another one if that is lost.
_COPIES = 2


class Snapshots:
    """Makes this rank's snapshots; every rank calls every method after the same step."""

    def __init__(self, place: Place, directory: Path, group: Group, divided: bool, say: Callable[[str], None]) -> None:
        self._place, self._directory, self._group, self._say = place, directory, group, say
        self._divided = divided
        self._writes = divided or (place.is_first_of_worker and place.worker < _COPIES)
        self._next = 0
        self._since = (0, 0.0)  # the step and the time from which on steps are timed

    def begin(self, step: int) -> None:
        self._next = step + _FIRST
        self._since = (step, time.monotonic())

    def is_due(self, step: int) -> bool:
        """Returns whether a snapshot is to be made after `step`."""
        if step == self._next - _FIRST + 1:
            self._since = (step, time.monotonic())
        return step == self._next

    def make(self, step: int, encoded: Callable[[], Encoded]) -> None:
        """Make a snapshot of the state after `step`, and choose when the next one comes."""
        steps, began = step - self._since[0], time.monotonic()
        step_seconds = (began - self._since[1]) / max(1, steps)
        problem = None
        try:
            problem = self._write(step, encoded()) if self._writes else None
        except (OSError, EncodingError, RuntimeError) as error:
            problem = str(error)
        if problem:
            self._say(f"no snapshot of step {step} in memory: {problem}")
        if self._divided and self._place.ranks > self._place.local_ranks:
            self._give_to_neighbour(step)
        costs = self._group.gather([time.monotonic() - began, step_seconds, problem is None])
        self._remove_older(step, whole=all(good for _, _, good in costs))
        seconds = max(cost for cost, _, _ in costs) + time.monotonic() - began - costs[self._place.rank][0]
        [longest] = {max(self._group.gather(seconds))}
        shortest = min(each for _, each, _ in costs)
        self._next = step + max(1, math.ceil(longest / SHARE / max(shortest, 1e-6)))
        self._since = (step, time.monotonic())

    def _write(self, step: int, encoded: Encoded) -> str | None:
        """Write this rank's snapshot; returns why it couldn't."""
        if lacking := room.lacking(self._directory, encoded.size):
            return lacking
        place = self._place
        parts, part = (place.ranks, place.rank) if self._divided else (1, 0)
        sealed.write(self._directory, encoded, place.job, place.attempt, step, parts, part)
        return None

    def _remove_older(self, step: int, *, whole: bool) -> None:
        """Delete what is older than this step's snapshot, or this one where some rank couldn't write it."""
        here, _ = sealed.sealed_files(self._directory, self._place.job)
        for seal, file in here.items():
            age = (self._place.attempt, step)
            if seal.age < age if whole else seal.age == age:
                sealed.remove(file)

    def _give_to_neighbour(self, step: int) -> None:
        """Send this rank's snapshot to the same rank of the next worker, and keep the one of the worker before."""
        place = self._place
        mine = self._file(step, place.rank)
        before = (place.rank - place.local_ranks) % place.ranks
        sizes = self._group.gather(mine.stat().st_size if mine.is_file() else 0)
        sent = torch.frombuffer(bytearray(mine.read_bytes()), dtype=torch.uint8) if sizes[place.rank] else None
        received = torch.empty(sizes[before], dtype=torch.uint8)
        self._group.pass_on(sent, (place.rank + place.local_ranks) % place.ranks, received, before)
        target = self._file(step, before)
        if len(received) and not target.is_file():  # workers may share a directory, on a machine of one's own
            if lacking := room.lacking(self._directory, len(received)):
                self._say(f"no copy of rank {before}'s snapshot of step {step} in memory: {lacking}")
                return
            sealed.place(received, target)

    def _file(self, step: int, part: int) -> Path:
        place = self._place
        return self._directory / sealed.name_of(place.attempt, step, part, place.ranks)
