"""A rank waits for the others of its replica (`continuing.membership`), which an agent and the other ranks may know.

It may have to serve the store of the attempt that others train in, because it is the lowest rank that lives. The store
also says when the run has ended: then ranks that are idle end too.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from torch.distributed import Store

from trainloop.continuing.forming import WAITING, Continuing
from trainloop.continuing.orders import Order
from trainloop.progress import Progress

#: Seconds between two looks at whether the run has ended, and within which all ranks that are idle know.
_PAUSE, _KNOWN_WITHIN = 0.2, 5.0


class Idle:
    """Is what a rank does while it is idle."""

    def __init__(self, continuing: Continuing, progress: Progress) -> None:
        self._continuing, self._progress = continuing, progress
        self._attempt = 0  # that it is idle in
        self._ended: Store | None = None

    def __call__(self, order: Order) -> None:
        """The rank is idle in an attempt; to be called again and again. Raises SystemExit when the run has ended."""
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
        with suppress(RuntimeError, OSError):  # then the rank that serves is lost, and another attempt follows
            store = self._continuing.serve_or_find(order, time.monotonic() + WAITING)
            while not store.check(["ended"]):
                if self._continuing.superseded(order):
                    return
                time.sleep(_PAUSE)
            store.add("known", 1)
            self._ended = store


def end(continuing: Continuing) -> None:
    """The run has ended. To be called by the lowest rank that trains, when all are at the end."""
    group, store = continuing.membership.group, continuing.store
    if group is not None and store is not None and group.idle:
        with suppress(RuntimeError, OSError):
            store.set("ended", "yes")
            _wait_until_known(store, group)


def _wait_until_known(store: Store, order: Order) -> None:
    until = time.monotonic() + _KNOWN_WITHIN
    while store.add("known", 0) < len(order.idle) and time.monotonic() < until:
        time.sleep(_PAUSE)
