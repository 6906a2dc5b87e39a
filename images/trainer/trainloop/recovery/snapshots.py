"""Ranks write snapshots of the state to memory during training, for faults that no rank with the state survives.

Ranks write a snapshot every k steps. The device copies it during the following steps. Training waits for the copy only
before the copied tensors change next, and the host never waits. A thread seals the finished copy. After each copy, k is
chosen from the copy's duration, so that all snapshots together cost less than a hundredth of the time. There are two
generations: when all ranks are known to have a snapshot, the previous one may be overwritten.

If all ranks have the same state, the first rank of each of the first two workers writes it. If each rank has its own
part, it writes that part, and sends a copy to its neighbour, the rank with the same local rank in the next worker. If
the parts have replicas, only the ranks of the first two replicas write their parts.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trainloop.recovery import sealed
from trainloop.recovery.agreement import Group
from trainloop.recovery.device import Device, Event
from trainloop.recovery.encoding import Encoded, EncodingError
from trainloop.recovery.generations import File, Generations
from trainloop.recovery.place import Place
from trainloop.recovery.sealed import Seal

#: The fraction of a run's time during which snapshots are copied. Steps made during a device's copy are 5 % slower.
SHARE = 0.008
#: Steps of an attempt before its first snapshot, because the first steps take longer than others.
_FIRST = 4
#: Seconds before the first snapshot of an attempt that continues from memory, which still contains the earlier state.
_AGAIN = 10.0
#: Seconds that a survivor waits for a copy that has begun.
_PATIENCE = 5.0
#: The minimum time between two snapshots, in seconds.
_LEAST = 1.0
#: The cost of a second of sending, relative to a second of copying. Sending only uses the host's network.
_SENDING = 0.1
#: The number of workers or replicas that have a snapshot of a state that several ranks share. The second is a reserve.
_COPIES = 2


def has_snapshots(place: Place, divided: bool) -> bool:
    """Returns whether the memory of this rank's worker contains snapshots."""
    return (place.rank // place.part(True)[0] if divided else place.worker) < _COPIES


class Snapshots:
    """This class makes one rank's snapshots. All ranks call `make` after the same steps."""

    def __init__(
        self,
        place: Place,
        directory: Path,
        device: Device,
        group: Group,
        neighbours: Group | None,
        generations: Generations,
        divided: bool,
        say: Callable[[str], None],
    ) -> None:
        self.place, self._device, self._group, self._say = place, device, group, say
        self._divided, self._generations, self._neighbours = divided, generations, neighbours
        self._writes = has_snapshots(place, divided) and (divided or place.is_first_of_worker)
        self._before = (place.rank - place.local_ranks) % place.ranks
        copies = f"copy-{self._before}"
        # The copies are filled from the network, so they needn't be pinned.
        host = Device(device.device)
        self._copies = Generations(directory, place.job, copies, host, 2 if neighbours is not None else 0)
        #: The age of the newest state that every rank is known to have written.
        self.kept = (-1, 0)  # differs from the age of any file, including an empty one's
        self._next = self._asks = 0
        self._again = False
        self._since = (0, 0.0)  # the step and the time at which the timing of steps begins
        self._stream = device.stream()
        self._copied: Event | None = None  # the end of the copy, for which the next change waits
        self._busy: threading.Thread | None = None
        self._whole: Event | None = None  # when it is complete, the device has made the copied step
        self._closing = threading.Lock()  # held while a seal is written
        self._round = 0  # a snapshot of an earlier round is never sealed
        self._ended = self._held = False
        self._age = (-1, -1)  # of the newest snapshot
        self._seconds = 0.0  # the cost of that snapshot
        self._problem: str | None = None

    def begin(self, step: int, source: int | None) -> None:
        """Begin after `step`. If the attempt `source` is given, it has left that step's state in memory."""
        self.kept = (-1 if source is None else source, step)
        self._again, self._asks = source is not None, 0
        self._next = step + _FIRST
        self._since = (step, time.monotonic())

    def begin_again(self, step: int) -> None:
        """Count steps from `step` again, because the ranks have formed another group; some ranks may be new."""
        self._again, self._held, self._asks = False, False, 0
        self._next = step + _FIRST
        self._since = (step, time.monotonic())

    def hold(self) -> None:
        """Seal nothing until `begin_again` is called.

        Collectives are about to be ended, and what the device computes after that belongs to no step.
        """
        self._held = True
        self.forget()

    def is_due(self, step: int) -> bool:
        """Returns whether `make` is needed after `step`, to begin a snapshot or to ask about one."""
        if step == self._next - _FIRST + 1 and not self._asks:
            self._since = (step, time.monotonic())
        return step in (self._next, self._asks)

    def make(self, step: int, encoded: Callable[[], Encoded]) -> None:
        """Begin a snapshot of the state after `step`, or ask whether all ranks have made the last one."""
        of = self._round  # read before the flags, because `hold` sets them first
        if self._ended or self._held:
            return
        if step == self._asks:
            self._ask(step)
            return
        if self._again:
            # In the first seconds, the state that the run continues from is as good as a snapshot.
            self._again = False
            self._next = step + _steps(_AGAIN, max(self._group.gather(self._step_seconds(step))))
            return
        began = time.monotonic()
        self._age, self._problem, written = (self.place.attempt, step), None, None
        try:
            if self._writes:
                written = self._begin(encoded(), of)
        except (OSError, EncodingError, RuntimeError) as error:
            self._fail(error)
        # From here on, only the thread changes `_seconds` and `_problem`, until it ends.
        self._seconds = time.monotonic() - began
        if self._device.queues or self._neighbours is not None:
            self._busy = threading.Thread(target=self._finish, args=(written,), daemon=True, name="snapshot")
            self._busy.start()
        else:
            self._finish(written)
        self._next, self._asks = 0, step + 1

    def let_go(self) -> None:
        """Make work that is queued later, which changes the copied tensors, wait for the end of the copy."""
        if self._copied is not None:
            self._device.wait(self._copied)
            self._copied = None

    def is_begun_by(self, step: int) -> bool:
        """Returns whether a snapshot begins after `step`."""
        return step == self._next and not self._again and not self._ended

    def end(self) -> None:
        """Seal no further snapshot, because a collective may have been ended, and later copies would be garbage.

        A copy is finished first if the device had certainly made its step.
        """
        if self._whole is not None and self._whole.query():
            self.wait(_PATIENCE)
        self.forget()
        self._ended = True

    def forget(self) -> None:
        """Make sure that no snapshot that has begun is sealed, because the run continues from an older state."""
        with self._closing:
            self._round += 1

    def wait(self, seconds: float) -> None:
        """Wait for the current snapshot, for at most `seconds`."""
        if self._busy is not None:
            self._busy.join(seconds)

    def _begin(self, encoded: Encoded, of: int) -> _Written:
        """Queue the copying of a snapshot. Raises OSError if there is no room for it."""
        file = self._generations.next(self.kept)
        self._generations.make(file, encoded.size)
        claim = file.claim()
        if claim is None:
            raise OSError("another rank of this worker is writing it")
        self._whole = whole = self._device.event()
        with self._device.on(self._stream):
            self._device.wait(whole)
            file.fill(encoded)
            self._copied = copied = self._device.event()
        parts, part = self.place.part(self._divided)
        seal = Seal(*self._age, parts, part, self.place.job, encoded.size)
        return _Written(file, seal, whole, copied, claim, of)

    def _finish(self, written: _Written | None) -> None:
        """Seal the finished snapshot, and send it to the neighbour."""
        self._device.enter_thread()
        try:
            if written is not None:
                written.whole.synchronize()
                began = time.monotonic()
                written.copied.synchronize()
                self._seconds += time.monotonic() - began
                with self._closing:
                    if written.round != self._round:
                        return
                    written.file.close(written.seal)
            if self._neighbours is not None:
                began = time.monotonic()
                self._give_to_neighbour(self._neighbours, written)
                self._seconds += (time.monotonic() - began) * _SENDING
        except (OSError, EncodingError, RuntimeError) as error:
            self._fail(error)
        finally:
            if written is not None:
                os.close(written.claim)

    def _fail(self, error: Exception) -> None:
        self._problem = str(error)
        if not self._ended:
            self._say(f"no snapshot of step {self._age[1]} in memory: {error}")

    def _ask(self, step: int) -> None:
        """Ask whether all ranks have the snapshot; if so, the previous one may be replaced."""
        busy = self._busy is not None and self._busy.is_alive()
        each = self._group.gather([busy, self._problem is None, self._seconds, self._step_seconds(step)])
        if any(busy for busy, *_ in each):
            self._asks = step + max(1, step - self._age[1])  # doubles the waiting time so far
            return
        if all(good for _, good, *_ in each):
            self.kept = self._age
        longest, shortest = max(seconds for _, _, seconds, _ in each), min(seconds for *_, seconds in each)
        self._asks, self._next = 0, step + _steps(max(longest / SHARE, _LEAST), shortest)
        self._since = (step, time.monotonic())

    def _step_seconds(self, step: int) -> float:
        return (time.monotonic() - self._since[1]) / max(1, step - self._since[0])

    def _give_to_neighbour(self, group: Group, written: _Written | None) -> None:
        """Send this rank's snapshot to the neighbour in the next worker, and keep the previous neighbour's snapshot."""
        heads = group.gather(None if written is None else vars(written.seal))
        theirs = sealed.seal_of(heads[self._before])
        file = None
        if theirs is not None:
            file = self._copies.next(self.kept)
            try:
                self._copies.make(file, theirs.size)
            except OSError as error:
                self._say(f"no copy of rank {self._before}'s snapshot of step {theirs.step} in memory: {error}")
                theirs = None
        takes, place = group.gather(theirs is not None), self.place
        after = (place.rank + place.local_ranks) % place.ranks
        sent = written.file.content(written.seal.size) if written is not None and takes[after] else None
        if file is not None and theirs is not None:
            group.pass_on(sent, after, file.receive(theirs.size), self._before)
            with self._closing:
                if written is None or written.round == self._round:
                    file.close(theirs)
        else:
            group.pass_on(sent, after, torch.empty(0, dtype=torch.uint8), self._before)


@dataclass
class _Written:
    """This is a snapshot whose copy is under way."""

    file: File
    seal: Seal
    whole: Event  # when the device has made the step
    copied: Event
    claim: int  # a descriptor that keeps other writers out while it is open
    round: int


def _steps(seconds: float, step_seconds: float) -> int:
    return max(1, math.ceil(seconds / max(step_seconds, 1e-6)))
