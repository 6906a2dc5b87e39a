"""Two jobs in trouble are invented: one hangs, and one has failed 41 times, nearly always in the same way."""

from __future__ import annotations

import time
from typing import Any

from tests.dashboard_pages import survivor
from tests.dashboard_pages.fleet import stamp
from tests.dashboard_pages.server import FakeDashboard

HANGS = "bert-mrpc-finetune-lr3e-5-warmup-500-seed-7f3a"
LOOPS = "nanogpt-crash-loop"
STALL = "rank 3 (worker 1) reads data: data/shards.py:88 in read_shard; the 7 others wait for it in all_reduce"
TIMES = 41


def add(dashboard: FakeDashboard) -> None:
    """Adds both jobs to a dashboard."""
    now = time.time()
    hangs = survivor.row(dashboard.born, now) | {"uid": "uid-hangs", "name": HANGS, "etaSeconds": None}
    stall = {"since": stamp(now - 80), "section": "train", "usualSeconds": 0.05, "rank": 3, "message": STALL}
    dashboard.add(hangs | {"samplesPerSecond": None, "failure": None, "stall": stall | {"restartAt": stamp(now + 400)}})
    dashboard.pages["uid-hangs"] = {"job": {"mayChange": False}}
    loops = survivor.row(dashboard.born, now) | {"uid": "uid-loops", "name": LOOPS, "attempt": TIMES + 1}
    last = "ValueError: sample 4711 has no label, at train.py:41 in step"
    trouble = f"failed {TIMES} times, the last time 30 s ago: {last}"
    dashboard.add(loops | {"restarts": TIMES, "failure": last, "trouble": trouble})
    dashboard.pages["uid-loops"] = {"attempts": attempts(dashboard.born, now)}


def attempts(born: float, now: float) -> list[dict[str, Any]]:
    """Returns the attempts of the job that fails again and again."""
    every = (now - born) / (TIMES + 1)
    found = []
    for attempt in range(1, TIMES + 2):
        began, ended = born + every * (attempt - 1), born + every * attempt
        failure = None if attempt > TIMES else failed(attempt, ended)
        found.append({
            "attempt": attempt, "startedAt": stamp(began), "runningAt": stamp(began + 5), "failure": failure,
            "endedAt": stamp(ended) if failure else None, "outcome": "Failed" if failure else "Running",
            "firstStep": 380 * (attempt - 1), "lastStep": 380 * attempt, "workers": [],
        })  # fmt: skip
    return found


def failed(attempt: int, at: float) -> dict[str, Any]:
    """Returns the failure of an attempt; one of them differs."""
    node = attempt == 20
    exception = None if node else f"ValueError: sample {4_000 + attempt} has no label"
    message = f"{exception}, at train.py:41 in step; rank 1 (worker 1, pod x-1) ended with exit code 1\n"
    message += 'Traceback (most recent call last):\n  File "/app/train.py", line 41, in step\n    lost(batch)'
    return {
        "attempt": attempt, "failedAt": stamp(at), "reason": "NodeLost" if node else "Error", "worker": 1,
        "rank": None if node else 1, "exitCode": None if node else 1, "counted": not node, "exception": exception,
        "location": None if node else "train.py:41 in step", "recovery": {"seconds": 3.2, "repeatedSteps": 12},
        "message": "node gpu-node-11 was lost with worker 1" if node else message,
    }  # fmt: skip
