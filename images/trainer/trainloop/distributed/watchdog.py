"""The watchdog names the rank that all others wait for, where no agent does.

When a step takes too long every rank publishes what it is doing in the rendezvous' store, and rank 0 (the next one, if
rank 0 doesn't) prints which ranks wait and for which: a rank that is stuck in its own code names the place, one that
doesn't answer at all is stopped or gone. On NCCL torch's flight recorder, which `joined` turns on, writes its own dump
when a collective times out.

Under Trainmaster's agent the watchdog stays off: the agents diagnose stalls from the ranks' progress, stacks and
flight recorders (`diagnostics`), and one hang has one message.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pydantic import Field

from trainloop.distributed.world import World, has_agent
from trainloop.settings import Settings


class WatchdogSettings(Settings):
    """These settings say when a step has stalled."""

    stall_seconds: float | None = Field(
        300.0, gt=0, description="Seconds until a step has stalled; null never. An agent has failurePolicy.hang."
    )


@dataclass(frozen=True)
class Activity:
    """An activity is what a rank is doing, and since when; `waits` is true where it may be waiting for other ranks."""

    what: str
    step: int
    since: float
    limit: float
    waits: bool


class Watchdog:
    """Observes in a thread what this rank is doing; it costs nothing while the steps go on."""

    def __init__(self, settings: WatchdogSettings, world: World) -> None:
        alone = world.size == 1 or has_agent()
        self._limit, self._world = (None if alone else settings.stall_seconds), world
        self._activity: Activity | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def at(self, what: str, step: int, *, limit: float | None = None, waits: bool = False) -> None:
        """The training thread does `what` from now on; `limit` in seconds where more than a step's is in order."""
        if self._limit is not None:
            self._activity = Activity(what, step, time.monotonic(), max(self._limit, limit or 0.0), waits)

    def __enter__(self) -> Watchdog:
        if self._limit is not None:
            self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        if self._limit is not None:
            self._thread.join()

    def _watch(self) -> None:
        reported, period = None, min((self._limit or 0.0) / 4, 5.0)
        while not self._ended.wait(period):
            activity = self._activity
            if activity and activity is not reported and time.monotonic() - activity.since >= activity.limit:
                reported = activity
                from trainloop.distributed.stalls import report  # which few runs need

                report(activity, self._world, self._ended)
