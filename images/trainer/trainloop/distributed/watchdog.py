"""The watchdog names the rank for which all other ranks wait, if no agent does that.

If a step takes too long, every rank publishes its current activity in the rendezvous' store. Rank 0 (or the next rank,
if rank 0 doesn't respond) prints which ranks the others wait for. A rank that is stuck in its own code publishes what
it is doing there. A rank that publishes nothing is stopped or gone. With NCCL, torch's flight recorder, which `joined`
turns on, writes its own dump when a collective times out.

Under Trainmaster's agent the watchdog is off, so that a hang causes only one message. The agents diagnose stalls from
the ranks' progress, stacks and flight recorders (`diagnostics`).
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from trainloop.distributed.world import World, has_agent
from trainloop.errors import listed
from trainloop.settings import Settings


class WatchdogSettings(Settings):
    """These settings decide when a step counts as stalled."""

    stall_seconds: float | None = Field(
        300.0, gt=0, description="Seconds until a step has stalled; null never. An agent has failurePolicy.hang."
    )


@dataclass(frozen=True)
class Activity:
    """An activity describes a rank's current work and when it began; `waits` is true if it may wait for other ranks."""

    what: str
    step: int
    since: float
    limit: float
    waits: bool


class Watchdog:
    """The watchdog observes this rank's activity from a thread, and costs nothing while steps are on time."""

    def __init__(self, settings: WatchdogSettings, world: World) -> None:
        alone = world.size == 1 or has_agent()
        self._limit, self._world = (None if alone else settings.stall_seconds), world
        self._activity: Activity | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def at(self, what: str, step: int, *, limit: float | None = None, waits: bool = False) -> None:
        """Records the training thread's activity `what`.

        If the activity may take longer than a step, `limit` is the number of seconds until it counts as stalled.
        """
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
                from trainloop.distributed.watchdog import report  # few runs need it

                report(activity, self._world, self._ended)


#: How long a rank waits for the other ranks to publish their activity, in seconds.
ANSWER_SECONDS = 3.0


def report(activity: Activity, world: World, ended: threading.Event) -> None:
    """Publishes this rank's activity; prints which ranks delay the others, unless another rank has printed that.

    The wait before printing is shorter if the run has `ended`.
    """
    store, rank = world.store, world.rank
    assert store is not None
    store.set(f"stall/{activity.step}/{rank}", "" if activity.waits else activity.what)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    ended.wait(ANSWER_SECONDS + rank * 0.5)
    if store.add(f"stall/{activity.step}/reported", 1) > 1:
        return
    keys = [f"stall/{activity.step}/{other}" for other in range(world.size)]
    answers = [store.get(key).decode() if store.check([key]) else None for key in keys]
    print(f"stalled at step {activity.step}: {stall_message(answers)}", flush=True)


def stall_message(answers: Sequence[str | None]) -> str:
    """Returns a message that names the ranks that delay the others.

    These are the ranks without an answer (None), and the ranks that are in their own code. `answers` is indexed by
    rank; an empty answer means that the rank is waiting for other ranks.
    """
    parts = [
        f"rank {rank} doesn't answer: its process is stopped, swapped out or gone"
        for rank, answer in enumerate(answers)
        if answer is None
    ]
    parts += [f"rank {rank} is {answer}" for rank, answer in enumerate(answers) if answer]
    if not parts:
        return "all ranks wait in a collective: look at the network, and at whether all run the same step"
    waiting = [rank for rank, answer in enumerate(answers) if answer == ""]
    return "; ".join(parts) + (f"; rank {listed(waiting)} wait for them" if waiting else "")
