"""A stalled step is explained by what each rank publishes that it is doing; imported when one has stalled."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainloop.distributed.world import World
from trainloop.errors import listed

if TYPE_CHECKING:
    from trainloop.distributed.watchdog import Activity

#: Seconds that the other ranks are given to publish what they are doing.
ANSWER_SECONDS = 3.0


def report(activity: Activity, world: World, ended: threading.Event) -> None:
    """Publish what this rank is doing, and print which ranks hold the others up, where no other rank does. Returns
    sooner where the run has `ended`.
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
    """Returns a sentence that names the ranks that hold the others up: those that don't answer (None), and those that
    are at something of their own. `answers` are by rank; an empty one waits for other ranks.
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
