"""The host is a few steps ahead of the device; this module tracks the steps that the device has made.

Each step records one event before the optimizer's step, and one after the last change. From the second event to the
next step's first event, the weights on the device don't change, even while the device waits for a collective that never
ends. The host's part of a state (a learning rate, a scheduler, the numbers of a data order) is remembered for each
step, because the host has already changed it when the device makes the step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainloop.recovery.device import Device, Event

#: Steps that the host may be ahead of the device. Two steps keep the device busy. Each further step would have to be
#: remembered, and repeated after a fault if the device hasn't made it.
AHEAD = 2
#: The number of steps that are remembered: the queued ones, the newest that the device has made, and the one before it.
KEPT = AHEAD + 2
#: The shortest and the longest time [s] after which a device without progress counts as stuck.
_BRIEFLY, _LONGEST = 0.1, 2.0


@dataclass
class Made:
    """This is a step that the host has queued."""

    step: int
    begins: Event  # before the step's first change
    whole: Event | None = None  # after the step's last change; None until the host has queued that change
    host: Any = None


class Steps:
    """This class remembers the last few steps."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made = deque[Made](maxlen=KEPT)
        self._seconds, self._ended = 0.0, time.monotonic()  # the last step's duration and end

    def wait_for_room(self, step: int) -> None:
        """Wait until the device is close enough to `step` for the host to queue it."""
        if not self._device.queues:
            return
        for made in list(self._made):
            if made.step <= step - AHEAD and made.whole is not None:
                made.whole.synchronize()

    def begin(self, step: int) -> None:
        """Record that the change to the state after `step` is being queued."""
        self._made.append(Made(step, self._device.event()))

    def drop(self) -> None:
        """Drop the step that has begun, because it changes nothing."""
        self._made.pop()

    def end(self, step: int, host: Any) -> None:
        """Record that the last change of `step` is queued. May be called again for the same step if it changes more."""
        while self._made and self._made[-1].step > step:
            self._made.pop()  # `step` changed again after it had ended, or an older state was loaded
        if not self._made or self._made[-1].step != step:
            self.begin(step)
        self._made[-1].host, self._made[-1].whole = host, self._device.event()
        now = time.monotonic()
        self._seconds, self._ended = now - self._ended, now

    def newest(self, left_out: Container[int] = ()) -> Made | None:
        """Returns the step whose state is on the device; None while a later step changes the state.

        Steps in `left_out` are ignored, because they change nothing.
        """
        for step in reversed(list(self._made)):
            if step.step not in left_out and step.whole is not None and step.whole.query():
                return step if self.is_there(step, left_out) else None
        return None

    def settled(self, left_out: Container[int]) -> Made | None:
        """Returns the result of `newest`.

        If later steps are queued, the device may be about to begin one. Then this function waits first, for as long as
        two steps take, and returns None if the device begins one.
        """
        step = self.newest(left_out)
        until = time.monotonic() + min(_LONGEST, max(_BRIEFLY, 2 * self._seconds))
        while step is not None and step is not self._made[-1] and time.monotonic() < until:
            time.sleep(0.001)
            if not self.is_there(step, left_out):
                return None
        return step

    def is_there(self, step: Made, left_out: Container[int] = ()) -> bool:
        """Returns whether no later step has begun to change the state that `step` left on the device."""
        later = [each for each in list(self._made) if each.step > step.step and each.step not in left_out]
        return not any(each.begins.query() for each in later)


class Hold:
    """A hold skips an optimizer's queued steps, so that garbage from an ended collective can't change weights.

    torch's fused optimizers (Adam, AdamW, SGD and Adagrad with `fused=True`) leave a step out if `found_inf` is 1 on
    the device when the device reaches the step. This also works in ZeroRedundancyOptimizer and with FSDP2's parameters.
    Each step reads the flag once, before its first change, and records the value, so the step is made or left out as a
    whole. A hold isn't used if a step changes anything else, such as an average of weights, because that change would
    still happen.
    """

    def __init__(
        self, device: Device, optimizers: Iterable[torch.optim.Optimizer], changing: Callable[[], None]
    ) -> None:
        """`changing` is called before each step, and calls `begin` before the first one of several."""
        optimizers, self._device, self._changing = list(optimizers), device, changing
        able = [each for each in optimizers if getattr(each, "_step_supports_amp_scaling", False)]
        #: Whether the hold covers everything that changes weights.
        self.works = bool(optimizers) and able == optimizers and device.queues
        if not self.works:
            return
        pinned = device.device.type == "cuda"
        self._one, self._zero = torch.ones((), pin_memory=pinned), torch.zeros((), pin_memory=pinned)
        self._flag = torch.zeros((), device=device.device)
        self._read = torch.zeros(KEPT, device=device.device)
        self._read_here = torch.zeros(KEPT, pin_memory=pinned)
        self._views = self._read.unbind()
        self._now = self._views[0]
        self._steps = [0] * KEPT
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)

    def begin(self, step: int) -> None:
        """Record that a step is queued."""
        if self.works:
            self._now, self._steps[step % KEPT] = self._views[step % KEPT], step
            self._device.copy([self._now], [self._flag])

    def set(self) -> None:
        """Make all steps that begin later change nothing. The flag is set by the calling thread's queue."""
        if self.works:
            self._device.copy([self._flag], [self._one])

    def clear(self) -> None:
        """Allow steps again. The device must have nothing queued."""
        if self.works:
            self._device.copy([self._flag, *self._views], [self._zero] * (1 + KEPT))

    def read(self) -> None:
        """Copy the flag's values that steps have read to the host, by the calling thread's queue."""
        if self.works:
            self._device.copy([self._read_here], [self._read])

    def left_out(self) -> frozenset[int]:
        """Returns the steps that had found the flag set when the device reached `read`."""
        if not self.works:
            return frozenset()
        return frozenset(step for step, read in zip(self._steps, self._read_here.tolist(), strict=True) if read)

    def _before(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._changing()
        own: Any = optimizer
        if not all(group.get("fused") for group in own.param_groups):
            self.works = False  # its settings came with a loaded state
            return
        found: Any = getattr(own, "found_inf", None)
        # Any other tensor belongs to a scaler, or is the loop's verdict.
        ours = found is None or any(found is view for view in self._views)
        own.found_inf = self._now if ours else torch.maximum(found, self._now)
