"""A rank that survives a fault writes the state of the last finished step to memory as soon as it learns of the fault.

Weights and moments only change while the optimizer makes its step, so as long as the next step hasn't got there they
are those of the last one: nothing is copied while nothing fails (just-in-time checkpointing, Gupta et al., EuroSys
2024). What a step changes before that, such as random generators, is small, and copied at each step's end (`slots`).

A rank learns of a fault by an exception, or by SIGTERM. Its main thread may then be inside a collective for good, so a
thread writes, which the signal's C handler wakes through a pipe. While the state changes nobody writes it: what is half
updated is never sealed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainloop.recovery import room, sealed, slots
from trainloop.recovery.agreement import Group
from trainloop.recovery.encoding import Encoded, EncodingError, decode
from trainloop.recovery.place import Place
from trainloop.recovery.saving import announced
from trainloop.recovery.slots import Slots
from trainloop.recovery.snapshots import Snapshots

#: Seconds that a rank waits for the end of an update, or for another rank of its worker that writes the same state.
PATIENCE = 10.0
_STOP = 0


@dataclass(frozen=True)
class Kept:
    """What is kept of a run. `state` is called in any thread, while nothing of it changes."""

    #: Returns the state as it is after the last finished step: what all ranks have alike, or with `divided` this rank's
    #: part, which only together with all other ranks' parts is the run's state.
    state: Callable[[], Any]
    #: Returns what is this rank's alone, or changes in a step before the weights do; the same object as last time where
    #: only the bytes of its tensors have changed.
    own: Callable[[], Any]
    divided: bool = False


class Keeper:
    """Keeps one rank's state for the next attempt."""

    def __init__(
        self, place: Place, directory: Path, device: torch.device, kept: Kept, group: Group, say: Callable[[str], None]
    ) -> None:
        self.place, self.directory, self._device, self._kept, self._say = place, directory, device, kept, say
        self._slots: Slots | None = Slots(directory, place.job, place.attempt, place.rank)
        self._snapshots = Snapshots(place, directory, group, kept.divided, say)
        self._own_state: Any = None
        self._own: Encoded | None = None  # the same, encoded: the newest in the slots
        #: The last finished step; None before the first one begins.
        self._step: int | None = None
        self._still = threading.Lock()  # held while the state changes, or is written
        self._changing = False
        self._finished: torch.Event | None = None  # on the device
        self._size = 0
        self._wakes: tuple[int, int] | None = None
        self._woke_before = -1
        self._thread: threading.Thread | None = None

    def begin(self, step: int, attempt: int | None = None) -> None:
        """The state is that after `step`, from which the first step is made: what `attempt` has left in memory, which
        may be gone on from once more, until there is a newer one; all else is deleted.
        """
        sealed.clean(self.directory)
        here, _ = sealed.sealed_files(self.directory, self.place.job)
        for seal, file in here.items():
            if seal.age != (attempt, step):
                sealed.remove(file)
        slots.clean(self.directory, {self.place.attempt, attempt})
        self._snapshots.begin(step)
        self.finished(step)
        if threading.current_thread() is threading.main_thread():
            self._watch_for_signals()

    def changing(self) -> None:
        """The state begins to change: the optimizer's step comes now, or another state is loaded."""
        if not self._changing and self._step is not None:
            # All ranks may get further than this one, which then has to go on from there too.
            self._keep_own(self._step + 1)
            self._still.acquire()
            self._changing = True

    def finished(self, step: int, *, as_before: bool = False) -> None:
        """The step is over: nothing more of it comes. `as_before` is as in `made`."""
        self.made(step, as_before=as_before)
        if self._snapshots.is_due(step):
            self._snapshot(step)

    def made(self, step: int, *, as_before: bool = False) -> None:
        """The state is that after `step`, whole: the optimizer's step, and what belongs to it, have been made. With
        `as_before` this rank's own state is as it was when that began, and so is there already.
        """
        is_there = as_before and self._changing and self._step is not None and step == self._step + 1
        self._step = step
        if self._device.type != "cpu":
            self._finished = torch.Event(self._device)
            self._finished.record()
        if not is_there:
            self._keep_own(step)
        if self._changing:
            self._changing = False
            self._still.release()

    def save(self) -> None:
        """Write the state of the last finished step, if it is there and isn't written yet; says why where it isn't."""
        if self._step is None:
            return
        own_thread = threading.current_thread() is threading.main_thread()
        if own_thread and self._changing:
            self._say(f"state not kept in memory: step {self._step + 1} was half made when it failed")
            return
        if not self._still.acquire(timeout=PATIENCE):
            self._say(f"state not kept in memory: step {self._step + 1} is half made and doesn't end")
            return
        try:
            with announced(self.place.rank, self._size):
                self._write(self._step)
        finally:
            self._still.release()

    def forget(self) -> None:
        """Delete what is kept of this job in this worker: it is finished, or goes on from an older state."""
        here, _ = sealed.sealed_files(self.directory, self.place.job)
        for file in here.values():
            sealed.remove(file)

    def end(self) -> None:
        """The run is at its end, and leaves nothing."""
        self.forget()
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        self.close()

    def close(self) -> None:
        """End watching for signals; what was written stays."""
        if self._wakes is not None:
            signal.set_wakeup_fd(self._woke_before)
            os.write(self._wakes[1], bytes([_STOP]))
            assert self._thread is not None
            self._thread.join()
            _own_descriptors.discard(self._wakes[1])
            for descriptor in self._wakes:
                os.close(descriptor)
            self._wakes = None

    def _keep_own(self, step: int) -> None:
        if self._slots is None:
            return
        try:
            own = self._kept.own()
            if self._own is None or own is not self._own_state:
                self._own_state, self._own = own, Encoded(own, self._own)
            self._slots.write(step, self._own)
        except (OSError, EncodingError) as error:
            self._slots = None
            self._say(f"this rank's random state isn't kept in memory: {error}")

    def _write(self, step: int) -> None:
        try:
            with self._beside_the_main_thread():
                encoded = self._encoded()
                with nullcontext() if self._kept.divided else self._first_of_worker():
                    here, _ = sealed.sealed_files(self.directory, self.place.job)
                    parts, part = (self.place.ranks, self.place.rank) if self._kept.divided else (1, 0)
                    if any(seal.age == (self.place.attempt, step) and seal.part == part for seal in here):
                        return
                    if lacking := room.lacking(self.directory, encoded.size):
                        self._say(f"state of step {step} not kept in memory: {lacking}")
                        return
                    began = time.monotonic()
                    sealed.write(self.directory, encoded, self.place.job, self.place.attempt, step, parts, part)
                    seconds = time.monotonic() - began
                    for seal, file in here.items():
                        # Other ranks may be short of this step's part, and then the parts before it are what is left.
                        if seal.age < (self.place.attempt, step) and not self._kept.divided:
                            sealed.remove(file)
            self._say(f"state of step {step} kept in memory: {encoded.size:,} bytes in {seconds:.3f} s")
        except (OSError, EncodingError, RuntimeError) as error:
            self._say(f"state of step {step} not kept in memory: {error}")

    def _encoded(self) -> Encoded:
        whole = {"state": self._kept.state()}
        # A part goes with what is its rank's own: whoever has the one is to have the other. It is what was copied after
        # the last finished step, because the next one may have drawn random numbers already.
        if self._kept.divided and self._slots and self._step is not None and (own := self._slots.written(self._step)):
            whole["own"] = decode(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        encoded = Encoded(whole)
        self._size = encoded.size
        return encoded

    def _snapshot(self, step: int) -> None:
        """Write a snapshot, all ranks after the same step, in case that no rank survives the next fault."""
        if self._slots is not None:
            self._slots.keep(step)
        self._snapshots.make(step, self._encoded)

    @contextmanager
    def _beside_the_main_thread(self) -> Iterator[None]:
        """Surrounds what reads the device's memory, whose own queue may wait for a collective that never ends."""
        if self._finished is None:
            yield
            return
        self._finished.synchronize()
        with torch.Stream(self._device):
            yield

    @contextmanager
    def _first_of_worker(self) -> Iterator[None]:
        """Surrounds what one rank of the worker does after the other; one that dies meanwhile leaves it to the next."""
        with os.fdopen(os.open(self.directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.002)
            yield

    def _watch_for_signals(self) -> None:
        self._wakes = os.pipe()
        os.set_blocking(self._wakes[1], False)
        self._woke_before = signal.set_wakeup_fd(self._wakes[1], warn_on_full_buffer=False)
        _own_descriptors.add(self._wakes[1])
        self._thread = threading.Thread(target=self._watch, args=(self._wakes[0],), daemon=True, name="keeper")
        self._thread.start()

    def _watch(self, descriptor: int) -> None:
        while True:
            signals = os.read(descriptor, 64)
            if self._woke_before >= 0 and (received := signals.replace(bytes([_STOP]), b"")):
                os.write(self._woke_before, received)
            if signal.SIGTERM in signals:
                self.save()
            if _STOP in signals:
                return


#: What keepers of this process are woken by.
_own_descriptors = set[int]()


def _leave_signals_alone() -> None:
    """A signal to a child of a rank, which has the rank's handlers and descriptors, is none to the rank."""
    if _own_descriptors and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
        _own_descriptors.clear()


os.register_at_fork(after_in_child=_leave_signals_alone)
