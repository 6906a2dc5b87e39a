"""Which rank is it that all the others wait for?

When a step takes too long every rank tells the rendezvous' store where it stands, and rank 0 (the next one, if rank 0
doesn't) prints who waits and who is waited for: a rank that is stuck in its own code says where, one that doesn't
answer at all is stopped or gone. On NCCL torch's flight recorder, which `joined` turns on, writes its own dump when a
collective times out. What follows from it is the agent's and the operator's to decide.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from dataclasses import dataclass

from pydantic import Field

from trainloop.distributed.world import World
from trainloop.errors import listed
from trainloop.settings import Settings

#: Seconds that the other ranks are given to say where they stand.
ANSWER_SECONDS = 3.0


class WatchdogSettings(Settings):
    """When a step has stalled."""

    stall_seconds: float | None = Field(300.0, gt=0, description="When a step counts as stalled; null never.")


@dataclass(frozen=True)
class Place:
    """Where a rank stands, since when; `waits` says that it may be waiting for others there."""

    what: str
    step: int
    since: float
    limit: float
    waits: bool


class Watchdog:
    """A thread that looks at where this rank stands; it costs nothing while all is well."""

    def __init__(self, settings: WatchdogSettings, world: World) -> None:
        self._limit, self._world = settings.stall_seconds, world
        self._place: Place | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: Place | None = None

    def at(self, what: str, step: int, *, limit: float | None = None, waits: bool = False) -> None:
        """The training thread is at `what` now; `limit` in seconds where more than a step's is in order."""
        if self._limit is not None:
            self._place = Place(what, step, time.monotonic(), max(self._limit, limit or 0.0), waits)

    def __enter__(self) -> Watchdog:
        if self._limit is not None and self._world.size > 1:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
            self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        assert self._limit is not None
        while not self._ended.wait(min(self._limit / 4, 5.0)):
            place = self._place
            if place is None or place is self._reported or time.monotonic() - place.since < place.limit:
                continue
            self._reported = place
            self._report(place)

    def _report(self, place: Place) -> None:
        store, rank = self._world.store, self._world.rank
        assert store is not None
        standing = {"what": place.what, "waits": place.waits, "seconds": time.monotonic() - place.since}
        store.set(f"stall/{place.step}/{rank}", json.dumps(standing))
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._ended.wait(ANSWER_SECONDS + rank * 0.5)
        if store.add(f"stall/{place.step}/told", 1) > 1:
            return
        answers = {}
        for other in range(self._world.size):
            key = f"stall/{place.step}/{other}"
            answers[other] = json.loads(store.get(key)) if store.check([key]) else None
        print(f"stalled at step {place.step}: {blame(answers)}", flush=True)


def blame(answers: dict[int, dict[str, object] | None]) -> str:
    """Who holds the others up, in a sentence: ranks that don't answer, else those that don't wait for anybody."""
    silent = [rank for rank, answer in answers.items() if answer is None]
    busy = [rank for rank, answer in answers.items() if answer is not None and not answer["waits"]]
    waiting = [rank for rank in answers if rank not in silent and rank not in busy]
    parts = [f"rank {rank} doesn't answer: its process is stopped, swapped out or gone" for rank in silent]
    parts += [f"rank {rank} is {(answers[rank] or {})['what']}" for rank in busy]
    if not parts:
        return "all ranks wait in a collective: look at the network, and at whether all run the same step"
    return "; ".join(parts) + (f"; rank {listed(waiting)} wait for them" if waiting else "")
