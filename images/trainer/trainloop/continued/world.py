"""The world of a continued run stays the same while ranks are lost and other ranks join.

`rank` and `size` never change (see `continuing`). Once the group has broken, the world's collectives raise
GroupLostError, so that nobody uses their results. In a gather, the lowest present rank's values replace those of absent
ranks. In a sum, absent ranks count as zero. Until a joining rank has joined, it sums and gathers only its own values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store, distributed_c10d

from trainloop.continuing import start
from trainloop.continuing.forming import WAITING, Continuing
from trainloop.continuing.orders import Order
from trainloop.distributed.device import choose_backend, choose_device
from trainloop.distributed.diagnostics import serve_flight_recorder
from trainloop.distributed.serialization import decode, encode
from trainloop.distributed.world import DistributedSettings, PreflightCheck, World, environment, hand_over
from trainloop.progress import Progress

T = TypeVar("T")
#: Seconds between two checks whether the run has ended, and seconds that idle ranks get to notice its end.
_PAUSE, _KNOWN_WITHIN = 0.2, 5.0


class Summed:
    """This is a sum over the present ranks that is under way.

    Calling it waits for the sum and returns it. After that, `newer` is the same on all ranks.
    """

    def __init__(self, waited: Callable[[], list[float]]) -> None:
        self._waited = waited
        self._numbers: list[float] | None = None
        #: Whether any rank knows of a newer attempt.
        self.newer = False

    def __call__(self) -> list[float]:
        numbers = self.unchecked()
        start.check()
        return numbers

    def unchecked(self) -> list[float]:
        """Waits for the sum and returns it. It is garbage if the group has broken. Once returned, it never changes."""
        if self._numbers is None:
            *self._numbers, newer = self._waited()
            self.newer = newer > 0
        return list(self._numbers)


@dataclass(frozen=True, kw_only=True)
class ContinuingWorld(World):
    """A continuing world is one in which ranks may be absent."""

    continuing: Continuing

    @property
    def is_alone(self) -> bool:
        """Returns whether this rank hasn't joined yet."""
        return self.continuing.joins

    @property
    def present(self) -> Sequence[int]:
        return self.continuing.present

    @property
    def first(self) -> int:
        return -1 if self.is_alone else self.present[0]

    def summing(self, values: Sequence[float]) -> Summed:
        membership = self.continuing.membership
        newer = float(not self.is_alone and membership.known > self.continuing.attempt)
        return Summed(super().summing([*values, newer]))

    def averaging(self, number: torch.Tensor) -> Callable[[], torch.Tensor]:
        waited = super().averaging(number)

        def checked() -> torch.Tensor:
            mean = waited()
            start.check()
            return mean

        return checked

    def gather(self, value: T) -> list[T]:
        if self.is_alone:
            return [value] * self.size
        message = encode(value)
        lengths = [int(length) for [length] in self.gather_numbers([message.numel()])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: message.numel()] = message
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        start.check()
        present = frozenset(self.present)
        stands_in = [rank if rank in present else self.first for rank in range(self.size)]
        return [decode(gathered[rank][: lengths[rank]]) for rank in stands_in]

    def from_rank(self, source: int, value: T) -> T:
        if self.is_alone:
            return value
        found = super().from_rank(source if source in self.present else self.first, value)
        start.check()
        return found


@contextmanager
def joined(settings: DistributedSettings, check: PreflightCheck | None = None) -> Iterator[ContinuingWorld]:
    """Join like `world.joined`, but in a group that can be formed again.

    A rank that joins a running attempt starts alone.

    The group isn't left when the `with` body ends, because the first rank to leave would break collectives for which
    other ranks wait, and the process is about to end.
    """
    start.install()
    rank, size, local_rank, local_size = environment()
    device = choose_device(settings.device, local_rank)
    backend = choose_backend(settings.backend, device)
    hand_over(settings)
    both = backend if backend == "gloo" or device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}"
    dist.init_process_group(both, timeout=timedelta(seconds=settings.timeout_seconds))
    continuing = start.continuing()
    assert continuing is not None
    if check is not None and not continuing.joins:
        check(distributed_c10d._get_default_store(), rank, size)
    serve_flight_recorder(rank, both)
    yield ContinuingWorld(rank, size, local_rank, local_size, device, backend, continuing=continuing)


class Idle:
    """This class lets a rank wait while its unit is incomplete."""

    def __init__(self, continuing: Continuing, progress: Progress) -> None:
        self._continuing, self._progress = continuing, progress
        self._attempt = 0  # the attempt in which the rank is idle
        self._ended: Store | None = None

    def __call__(self, order: Order) -> None:
        """Continue to wait in an attempt; called repeatedly. Raises SystemExit when the run has ended."""
        if order.attempt != self._attempt:
            self._attempt = order.attempt
            threading.Thread(target=self._attend, args=(order,), daemon=True, name="attending").start()
            self._progress.enter("setup", message="waits for the other ranks of its replica")
            self._progress.able(order.attempt, idle=True)
        if self._ended is not None:
            if self._continuing.rank == order.server:
                _wait_until_known(self._ended, order)
            raise SystemExit(0)

    def _attend(self, order: Order) -> None:
        with suppress(RuntimeError, OSError):  # if the serving rank is lost, another attempt follows
            store = self._continuing.serve_or_find(order, time.monotonic() + WAITING)
            while not store.check(["ended"]):
                if self._continuing.superseded(order):
                    return
                time.sleep(_PAUSE)
            store.add("known", 1)
            self._ended = store


def end_idle(continuing: Continuing) -> None:
    """Report to idle ranks that the run has ended; the lowest training rank calls this after all ranks' last step."""
    group, store = continuing.membership.group, continuing.store
    if group is not None and store is not None and group.idle:
        with suppress(RuntimeError, OSError):
            store.set("ended", "yes")
            _wait_until_known(store, group)


def _wait_until_known(store: Store, order: Order) -> None:
    until = time.monotonic() + _KNOWN_WITHIN
    while store.add("known", 0) < len(order.idle) and time.monotonic() < until:
        time.sleep(_PAUSE)
