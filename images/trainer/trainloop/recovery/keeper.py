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
from contextlib import contextmanager
from typing import Any

import torch

from trainloop.recovery import room, sealed, slots
from trainloop.recovery.encoding import Encoded, EncodingError
from trainloop.recovery.place import Place
from trainloop.recovery.saving import announced
from trainloop.recovery.slots import Slots

#: Seconds that a rank waits for the end of an update, or for another rank of its worker that writes the same state.
PATIENCE = 10.0
_STOP = 0


class Keeper:
    """Keeps one rank's state for the next attempt.

    `whole` returns what all ranks have alike, as it is after the last finished step; it is called in any thread, while
    nothing of that changes. `own` returns what is this rank's alone and changes before the weights do.
    """

    def __init__(
        self,
        place: Place,
        device: torch.device,
        whole: Callable[[], Any],
        own: Callable[[], Any],
        say: Callable[[str], None],
    ) -> None:
        self.place, self._device, self._whole, self._own, self._say = place, device, whole, own, say
        self._slots: Slots | None = Slots(place.directory, place.job, place.attempt, place.rank, place.ranks)
        #: The last finished step; None before the first one begins.
        self._step: int | None = None
        self._still = threading.Lock()  # held while the state changes, or is written
        self._changing = False
        self._finished: torch.Event | None = None  # on the device
        self._size = 0
        self._wakes: tuple[int, int] | None = None
        self._woke_before = -1
        self._thread: threading.Thread | None = None

    def begin(self, step: int) -> None:
        """The state is that after `step`, from which the first step of this attempt is made."""
        sealed.clean(self.place.directory)
        slots.clean(self.place.directory, self.place.attempt)
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

    def finished(self, step: int) -> None:
        """The state is that after `step`, whole: the optimizer's step, and what belongs to it, have been made."""
        self._step = step
        if self._device.type != "cpu":
            self._finished = torch.Event(self._device)
            self._finished.record()
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
        with announced(self.place.rank, self._size):
            if not self._still.acquire(timeout=PATIENCE):
                self._say(f"state not kept in memory: step {self._step + 1} is half made and doesn't end")
                return
            try:
                self._write(self._step)
            finally:
                self._still.release()

    def forget(self) -> None:
        """Delete what is kept of this job in this worker: it is finished, or goes on from an older state."""
        here, _ = sealed.sealed_files(self.place.directory, self.place.job)
        for file in here.values():
            sealed.remove(file)

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
            self._slots.write(step, Encoded(self._own()))
        except (OSError, EncodingError) as error:
            self._slots = None
            self._say(f"this rank's random state isn't kept in memory: {error}")

    def _write(self, step: int) -> None:
        place = self.place
        try:
            with self._beside_the_main_thread():
                encoded = Encoded(self._whole())
                self._size = encoded.size
                with self._first_of_worker():
                    here, _ = sealed.sealed_files(place.directory, place.job)
                    if any(seal.age == (place.attempt, step) and seal.parts == 1 for seal in here):
                        return
                    if lacking := room.lacking(place.directory, encoded.size):
                        self._say(f"state of step {step} not kept in memory: {lacking}")
                        return
                    began = time.monotonic()
                    sealed.write(place.directory, encoded, place.job, place.attempt, step)
                    for seal, file in here.items():
                        if seal.age < (place.attempt, step):
                            sealed.remove(file)
            seconds = time.monotonic() - began
            self._say(f"state of step {step} kept in memory: {encoded.size:,} bytes in {seconds:.3f} s")
        except (OSError, EncodingError, RuntimeError) as error:
            self._say(f"state of step {step} not kept in memory: {error}")

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
        with os.fdopen(os.open(self.place.directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
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
