"""Half-started jobs give back what they hold, so that two of them never wait for each other.

Without a gang scheduler each pod is scheduled by itself: two jobs can each hold half of the accelerators for ever. So a
job that holds nodes, but has had pods without one for a fifth of `startupSeconds` (three minutes by default: a cluster
autoscaler needs two to four for a node), is scaled to zero, waits, and tries again. The waits grow, and both they and
the patience are jittered by the job's uid, so that the same two jobs don't collide again. `startupSeconds` goes on all
the while.
"""

from __future__ import annotations

import zlib

from trainmaster.reconciling.attempts import held_since, restart_at
from trainmaster.reconciling.elastic import able_workers
from trainmaster.reconciling.situation import Situation, is_alive
from trainmaster.reconciling.times import since, to_seconds, to_text
from trainmaster.reconciling.transition import Transition

# Share of startupSeconds that pods may be without a node while others hold theirs.
PATIENCE = 0.2
# Seconds, and shares of startupSeconds: a job that has less time to start also waits less.
FIRST_WAIT, LONGEST_WAIT = 15.0, 240.0
FIRST_SHARE, LONGEST_SHARE = 1 / 60, 4 / 15


def give_back(situation: Situation) -> Transition | None:
    """Let go of nodes that can't be used, and wait."""
    due = give_back_at(situation)
    if due is None or situation.now < due:
        return None
    times = situation.status.give_backs + 1
    startup = situation.spec.failure_policy.startup_seconds
    first, longest = min(FIRST_WAIT, FIRST_SHARE * startup), min(LONGEST_WAIT, LONGEST_SHARE * startup)
    wait = min(first * 2.0 ** min(times - 1, 10), longest) * (1 + _jitter(situation, "wait", times))
    shown = f"{wait:.0f}" if wait >= 10 else f"{wait:.1f}"
    missing = len(situation.everybody) - len(able_workers(situation))
    message = (
        f"{missing} of {len(situation.everybody)} workers found no node; the others give theirs back for {shown} s"
    )
    until = to_text(situation.now + wait)
    return Transition(
        "Restarting", "GaveBack", message, {"given_back": True, "give_backs": times, "restart_time": until}
    )


def try_again(situation: Situation) -> Transition | None:
    """The wait is over: ask for all pods once more."""
    if not situation.status.given_back:
        return None
    if situation.now < (restart_at(situation) or 0.0):
        message = "waiting for its turn after giving its nodes back"
        return Transition("Restarting", "GaveBack", message)
    return Transition("Restarting", "TryingAgain", "asking for all workers once more", {"given_back": None})


def give_back_at(situation: Situation) -> float | None:
    """When the job gives up what it holds, while it holds a part of what it needs."""
    status = situation.status
    if status.phase not in ("Pending", "Starting", "Restarting") or status.given_back or status.resizing:
        return None
    homeless = [pod for pod in situation.pods.values() if is_alive(pod) and pod.node is None and pod.unschedulable]
    if not homeless or not able_workers(situation):
        return None
    began = situation.now - since(situation.now, held_since(situation))
    again = to_seconds(status.restart_time)
    if again is not None and again <= situation.now:
        began = max(began, again)
    patience = PATIENCE * situation.spec.failure_policy.startup_seconds
    return began + patience * (1 + _jitter(situation, "patience", status.give_backs) / 2)


def _jitter(situation: Situation, what: str, times: int) -> float:
    """From 0 to 1; the same whenever it is asked for."""
    return zlib.crc32(f"{situation.job.uid}/{what}/{times}".encode()) / 0xFFFFFFFF
