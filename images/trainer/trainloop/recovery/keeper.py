"""A rank that survives a fault writes the state of the last finished step to memory as soon as it detects the fault.

Weights and moments change only during the optimizer's step, and stay unchanged until the next one. So they are copied
only after a fault (just-in-time checkpointing, Gupta et al., EuroSys 2024). State that changes earlier in a step, such
as random generators, is small, and `slots` copies it in each step. If there is a device, the last step is the last one
that the device has made, not the last one that the host has queued (`steps`).

A rank detects a fault by an exception or by SIGTERM. The main thread may then hang in a collective. So the signal's C
handler wakes another thread through a pipe, and that thread writes the state. The state is never written while it
changes, so a partly updated state is never sealed. In a planned stop, the main thread writes the state when it has
finished its step.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainloop.recovery import generators, sealed, slots
from trainloop.recovery.agreement import Group
from trainloop.recovery.device import device_of
from trainloop.recovery.encoding import Encoded, EncodingError
from trainloop.recovery.generations import PATIENCE, Generations
from trainloop.recovery.place import Place, announced, is_the_end, planned_seconds
from trainloop.recovery.sealed import Seal
from trainloop.recovery.slots import Buffers, Slots
from trainloop.recovery.snapshots import Snapshots, has_snapshots
from trainloop.recovery.steps import Hold, Made, Steps

#: Exit code of a stopped rank.
EXIT_STOPPED = 143
#: Seconds to wait for the main thread to finish a change of the state, if there is a device.
_BRIEFLY = 0.1
#: The maximum time that the main thread gets to end after a request for a planned stop, in seconds.
_LONGEST = 15.0
_STOP = 0


@dataclass(frozen=True)
class Kept:
    """This describes the state of a run that a keeper keeps."""

    #: Returns the host's part of the state, after the step that the host has just queued.
    host: Callable[[], Any]
    #: Returns the whole state, given the host's part. It is called in any thread, while nothing changes the state. If
    #: `divided` is true, the state is this rank's part of the run's state; otherwise all ranks have the same state.
    state: Callable[[Any], Any]
    #: The model's buffers, which can differ between ranks and can change in a step before the weights do.
    buffers: Buffers
    #: The optimizers that change the weights, and whether they alone change the device's part of the state in a step.
    optimizers: Iterable[torch.optim.Optimizer] = ()
    alone: bool = True
    divided: bool = False


class Keeper:
    """A keeper keeps one rank's state for the next attempt."""

    def __init__(
        self, place: Place, directory: Path, device: torch.device, kept: Kept, group: Group, say: Callable[[str], None]
    ) -> None:
        self.place, self.directory, self._kept, self._say = place, directory, kept, say
        self._device = device_of(device)
        self._steps = Steps(self._device)
        self._hold = Hold(self._device, kept.optimizers if kept.alone else (), self.changing)
        neighbours = None
        # If several workers hold the state in parts without replicas, each rank sends its snapshots to a neighbour.
        if kept.divided and place.part(True)[0] == place.ranks > place.local_ranks:
            neighbours = Group(place, dist.new_group(backend="gloo"))  # separate, because a thread uses it
        name = f"part-{place.rank}" if kept.divided else "whole"
        count = 2 if has_snapshots(place, kept.divided) else 1
        self._generations = Generations(directory, place.job, name, self._device, count)
        self._snapshots = Snapshots(
            place, directory, self._device, group, neighbours, self._generations, kept.divided, say
        )
        self._slots: Slots | None = None
        #: The last finished step; None before the first one begins.
        self._step: int | None = None
        self._first, self._resumed = -1, False
        self._host: Any = None  # the host's part of the state after `_step`
        self._still = threading.Lock()  # held while the state changes or is written
        self._changing = False
        self._saving = threading.Lock()
        self._over = False  # set when this attempt's last state is written
        self._stream, self._holding = self._device.stream(), self._device.stream()
        self._size = 0
        self._wakes: tuple[int, int] | None = None
        self._woke_before = -1
        self._thread: threading.Thread | None = None

    def begin(self, step: int, attempt: int | None = None) -> None:
        """Begin with the state after `step`.

        The state that `attempt` left in memory is kept until there is a newer one, and everything else is deleted.
        """
        sealed.clean(self.directory)
        here, _ = sealed.sealed_files(self.directory, self.place.job)
        for seal, file in here.items():
            if seal.age != (attempt, step):
                sealed.empty(file)
        slots.clean(self.directory, {self.place.attempt, attempt})
        self._snapshots.begin(step, attempt)
        self._first, self._resumed = step, attempt is not None
        self._start(step)

    def continue_as(self, attempt: int, step: int) -> None:
        """Continue after `step` in a new attempt, whose group the ranks have formed."""
        before = self._slots
        self.place = self._snapshots.place = replace(self.place, attempt=attempt)
        self._snapshots.begin_again(step)
        self._first = step
        self._start(step)
        self._hold.clear()  # last, because this forgets which steps were left out
        if before is not None:
            before.close()

    def _start(self, step: int) -> None:
        self._slots = Slots(self.place, self.directory, self._device, self._kept.buffers)
        self.made(step)
        if self._wakes is None and threading.current_thread() is threading.main_thread():
            self._watch_for_signals()

    @property
    def half_made(self) -> bool:
        """Returns whether a step has begun to change the state and hasn't ended."""
        return self._changing

    @property
    def obstacle(self) -> str | None:
        """Returns why an unfinished step can't be reverted; None if it can."""
        if self._slots is None:
            return "there is no room in memory for this rank's own state"
        if self._device.queues and not self._hold.works:
            return "only of an optimizer with fused=True, and nothing beside it, can queued steps be left out"
        return None

    def hold(self) -> None:
        """Keep the device from beginning any further step, because collectives are about to be ended.

        Their results are garbage. May be called from any thread; returns when the hold is in effect.
        """
        self._snapshots.hold()
        if self._device.queues:
            self._device.enter_thread()
            with self._device.on(self._holding):
                self._hold.set()
                is_set = self._device.event()
            is_set.synchronize()

    def newest(self, *, left_out: bool = False) -> Made:
        """Wait until the device has done all queued work; returns the last step that it has made.

        With `left_out`, a step that the host has begun to change is dropped, because it changes nothing.
        """
        if left_out and self._changing:
            self._steps.drop()
            self._changing = False
            self._still.release()
        made = self._steps.newest(self._left_out())
        assert made is not None, "after all that is queued no step is half made"
        return made

    def is_made(self, step: int) -> bool:
        """Wait for the device; returns whether it has made the queued `step` and not left it out."""
        return step not in self._left_out()

    def _left_out(self) -> frozenset[int]:
        self._device.synchronize()
        self._hold.read()
        self._device.synchronize()
        return self._hold.left_out()

    @torch.no_grad()
    def put_back_own(self, step: int) -> None:
        """Restore this rank's own generators and buffers to their state after `step`, one of the last few steps."""
        if (own := self.own(step)) is not None:
            buffers = self._kept.buffers.named()
            for name, value in own["buffers"].items():
                buffers[name].copy_(value)
            generators.restore(own["random"], self._device.device)

    def own(self, step: int) -> dict[str, Any] | None:
        """Returns this rank's own state after `step`, one of the last few steps; None if it isn't kept."""
        return None if self._slots is None else self._slots.own(step)

    def changing(self) -> None:
        """Record that the state is about to change, by the optimizer's step or because another state is loaded."""
        if self._changing or self._step is None:
            return
        self._steps.wait_for_room(self._step + 1)
        # If the other ranks finish this step, this rank has to continue after it too.
        self._keep_own(self._step + 1)
        self._still.acquire()
        if self._over:
            self._still.release()
            raise SystemExit(EXIT_STOPPED)
        self._changing = True
        self._snapshots.let_go()
        self._hold.begin(self._step + 1)
        self._steps.begin(self._step + 1)

    def finished(self, step: int, *, as_before: bool = False) -> None:
        """End the step after its last change. For `as_before`, see `made`."""
        self.made(step, as_before=as_before)
        if step == self._first + 1:
            if self._slots is not None:
                self._slots.compare()
            self._prepare(step)
        if self._snapshots.is_due(step):
            if self._slots is not None and self._snapshots.is_begun_by(step):
                self._slots.keep(step, self._snapshots.kept[1])
            self._snapshots.make(step, lambda: self._encoded(step, self._host))

    def made(self, step: int, *, as_before: bool = False) -> None:
        """Record that the state after `step` is complete, because the step has made its last change.

        If `as_before` is true, this rank's own state hasn't changed since the optimizer's step began, when it was kept.
        """
        is_there = as_before and self._changing and self._step is not None and step == self._step + 1
        self._steps.wait_for_room(step)
        self._step = step
        if not is_there:
            self._keep_own(step)
        self._host = self._kept.host()
        self._steps.end(step, self._host)
        if self._changing:
            self._changing = False
            self._still.release()

    def save(self) -> None:
        """Write the last finished step's state unless it is already written. Reports the reason if that fails."""
        with self._saving:
            if self._step is None or self._over:
                return
            on_main = threading.current_thread() is threading.main_thread()
            if on_main and self._changing and not self._device.queues:
                self._say(f"state not kept in memory: step {self._step + 1} was half made when it failed")
                return
            # If there is a device, the host may be stuck in the middle of a step that the device hasn't begun.
            patience = _BRIEFLY if self._device.queues else PATIENCE
            still = not (on_main and self._changing) and self._still.acquire(timeout=patience)
            if not still and not self._device.queues:
                self._say(f"state not kept in memory: step {self._step + 1} is half made and doesn't end")
                return
            try:
                with announced(self.place.rank, self._size):
                    self._save()
            finally:
                if still:
                    self._still.release()

    def forget(self) -> None:
        """Delete the states that this worker keeps for the job, because the job continues from an older one."""
        self._snapshots.forget()
        here, _ = sealed.sealed_files(self.directory, self.place.job)
        for file in here.values():
            sealed.empty(file)

    def end(self) -> None:
        """Delete all kept states, because the run is complete."""
        self._snapshots.wait(PATIENCE)
        for file in (*self.directory.glob(f"*{sealed.MEMORY}"), *self.directory.glob("*.lock")):
            sealed.remove(file)
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        self.close()

    def close(self) -> None:
        """Stop watching for signals; written states stay."""
        if self._wakes is not None:
            signal.set_wakeup_fd(self._woke_before)
            os.write(self._wakes[1], bytes([_STOP]))
            assert self._thread is not None
            self._thread.join()
            _own_descriptors.discard(self._wakes[1])
            for descriptor in self._wakes:
                os.close(descriptor)
            self._wakes = None

    def _prepare(self, step: int) -> None:
        """Make files in memory for the state, whose size is now known, before a device can get stuck."""
        if not self._device.queues:
            return
        try:
            self._size = self._encoded(step, self._host).size
        except (EncodingError, RuntimeError) as error:
            self._say(f"the state isn't kept in memory: {error}")
            return
        arguments = (self._size, self._snapshots.kept, self._say)
        making = threading.Thread(target=self._generations.make_all, args=arguments, daemon=True, name="memory")
        making.start()
        if not self._resumed:
            making.join()  # a resumed run already has files, and its old state is recent enough for a while

    def _keep_own(self, step: int) -> None:
        if self._slots is None:
            return
        try:
            self._slots.write(step)
        except (OSError, EncodingError) as error:
            self._slots = None
            self._say(f"this rank's random state isn't kept in memory: {error}")

    def _save(self) -> None:
        until, ends, left_out = time.monotonic() + PATIENCE, is_the_end(), set[int]()
        try:
            if ends:
                self._snapshots.end()
            else:
                self._snapshots.wait(PATIENCE)
            while (step := self._steps.settled(left_out)) is None or not self._write(step, left_out, ends):
                if time.monotonic() > until:
                    self._say(f"state not kept in memory: step {(self._step or 0) + 1} is half made and doesn't end")
                    return
                time.sleep(0.001)
        except (OSError, EncodingError, RuntimeError) as error:
            self._say(f"state of step {self._step} not kept in memory: {error}")

    def _write(self, made: Made, left_out: set[int], ends: bool) -> bool:
        """Write a step's state; returns whether that succeeded.

        Writing fails if the device changes the state before the copy is finished. If `ends` is true, this is the last
        state that this rank writes, and later steps are held.
        """
        if ends:
            with self._device.on(self._stream):
                self._hold.set()
        step, encoded = made.step, self._encoded(made.step, made.host)
        with nullcontext() if self._kept.divided else self._generations.writing():
            here, _ = sealed.sealed_files(self.directory, self.place.job)
            parts, part = self.place.part(self._kept.divided)
            if not any(seal.age == (self.place.attempt, step) and seal.part == part for seal in here):
                began = time.monotonic()
                # If the state is in parts, the newest snapshot that all ranks have is never overwritten, because the
                # state written here may lack parts.
                file = self._generations.next(self._snapshots.kept, spare=not self._kept.divided)
                self._generations.make(file, encoded.size, stuck=self._device.queues)
                with self._device.on(self._stream):
                    file.fill(encoded)
                    self._hold.read()
                    copied = self._device.event()
                copied.synchronize()
                if self._slots is not None:
                    self._slots.wait(step)
                left_out |= self._hold.left_out()
                if step in left_out or not self._steps.is_there(made, left_out):
                    return False
                file.close(Seal(self.place.attempt, step, parts, part, self.place.job, encoded.size))
                seconds = time.monotonic() - began
                self._say(f"state of step {step} kept in memory: {encoded.size:,} bytes in {seconds:.3f} s")
        # Once a collective has been ended, the device's results belong to no step, so nothing more is written.
        self._over = ends
        return True

    def _encoded(self, step: int, host: Any) -> Encoded:
        """Returns the encoded state after `step`; `host` is the host's part after that step."""
        whole = {"state": self._kept.state(host)}
        if self._slots is not None:
            whole["buffers"] = self._slots.constant(step)
            # A part contains its rank's own state, so that a rank that holds the part always holds the own state too.
            # The copy made after `step` is used, because the next step may already have drawn random numbers.
            if self._kept.divided and (own := self._slots.own(step)):
                whole |= {"own": own, "rank": self.place.rank}
        encoded = Encoded(whole)
        self._size = encoded.size
        return encoded

    def _watch_for_signals(self) -> None:
        self._wakes = os.pipe()
        os.set_blocking(self._wakes[1], False)
        self._woke_before = signal.set_wakeup_fd(self._wakes[1], warn_on_full_buffer=False)
        _own_descriptors.add(self._wakes[1])
        self._thread = threading.Thread(target=self._watch, args=(self._wakes[0],), daemon=True, name="keeper")
        self._thread.start()

    def _watch(self, descriptor: int) -> None:
        self._device.enter_thread()
        until: float | None = None
        while True:
            wait = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([descriptor], [], [], wait)[0]:
                until = None
                self.save()  # the main thread hasn't ended in time
                continue
            signals = os.read(descriptor, 64)
            if self._woke_before >= 0 and (received := signals.replace(bytes([_STOP]), b"")):
                os.write(self._woke_before, received)
            if signal.SIGTERM in signals:
                seconds = planned_seconds()
                if seconds is None:
                    self.save()
                else:
                    until = time.monotonic() + min(seconds / 2, _LONGEST)
            if _STOP in signals:
                return


#: Descriptors that wake this process's keepers.
_own_descriptors = set[int]()


def _leave_signals_alone() -> None:
    """Stop a rank's forked child from waking the rank's keepers, whose handlers and descriptors it inherits."""
    if _own_descriptors and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
        _own_descriptors.clear()


os.register_at_fork(after_in_child=_leave_signals_alone)
