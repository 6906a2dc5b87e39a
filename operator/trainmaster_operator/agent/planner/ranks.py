"""This module derives the worker's end from its ranks' ends, and decides when ranks get SIGTERM and SIGKILL.

A failure is reported as soon as it is seen, long before the last process is gone. Another rank of the same worker may
reveal a better cause later: the agent often sees the broken connection of a rank that isn't at fault before it sees
the exit of the rank at fault (in 15 of 24 kills). So after a mere broken connection it delays SIGTERM a moment.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from trainmaster_operator.agent.errors import NO_TORCH
from trainmaster_operator.agent.planner.actions import ExamineLauncher, ExamineRank
from trainmaster_operator.agent.planner.classification import Ending, broken_connection, classify, failed
from trainmaster_operator.agent.planner.state import Run
from trainmaster_operator.wire.report import Report

FAILURE_GRACE = 0.4
"""The seconds that ranks have to exit once another rank has failed. The rank at fault often closes its sockets before
it exits, and the agent needs its exit code."""
CONTINUE_SECONDS = 3.0
"""Ranks that can continue live for this long after another rank has failed, so that an operator can continue the
attempt. Ranks of a deleted pod keep training for this long, but at most for a quarter of their grace period, so that
an operator can continue without them. If they got SIGTERM at once, all of the job's ranks would save a checkpoint and
end."""
PLANNED_GRACE = 2.0
"""A stop that allows at least this many seconds is planned. The launcher isn't killed, and ends with its ranks."""
RAISED_GRACE = 10.0
"""A rank that has reported an exception has this long to exit by itself, because functions that are registered with
`atexit` save what it has done (Weights & Biases sends its last data in one)."""
LEAVING_SECONDS = 1.5
"""The other ranks continue without such a rank after this time, even if it hasn't exited."""
SAVING_POLL_SECONDS = 0.02
"""The time between two checks of which ranks are still writing their state."""
PROVOKED_SECONDS = 0.5
"""A provoked rank has this long to print its stacks."""

# torchrun's summary: "failed (exitcode: -9) local_rank: 0 (pid: 1234)".
_TORCHRUN_FAILURE = r"exitcode: (-?\d+)\) local_rank: (\d+)"
# `python -m torch.distributed.run` ends with this message if torch isn't installed. If only a module inside torch is
# missing, the message names that module.
_NO_TORCH = r"No module named '?torch'?(?![.\w])"


def stop(run: Run, now: float, grace: float, delay: float = 0.0) -> Run:
    """Stop the ranks: SIGTERM after `delay`, SIGKILL `grace` seconds later. An earlier deadline isn't postponed."""
    if delay > 0:
        return run if run.stopping else run._replace(terminate_at=now + delay, grace=grace)
    if not run.terminated:
        run = run._replace(terminate_at=now, grace=grace)
    ends_at = min(run.grace_ends_at, now + grace)
    return run._replace(grace_ends_at=ends_at, kill_at=min(run.kill_at, ends_at) if run.terminated else run.kill_at)


def leave(run: Run, now: float, grace: float) -> Run:
    """Stop the ranks like `stop`, but up to CONTINUE_SECONDS later, and shorten their grace by that delay."""
    if run.terminated:
        return stop(run, now, grace)
    later = min(CONTINUE_SECONDS, grace / 4)
    return run._replace(terminate_at=now + later, grace=grace - later)


def terminated(run: Run, now: float, grace: float) -> Run:
    """Record that the ranks were sent SIGTERM. `grace`: the job's limit for them."""
    if not run.terminated:
        planned = run.grace >= PLANNED_GRACE
        ends_at = min(run.grace_ends_at, now + run.grace)
        # In a planned stop the ranks have the whole grace to save checkpoints. After a failure SIGKILL only waits for
        # ranks that write their state.
        kill_at = ends_at if planned else min(ends_at, now + SAVING_POLL_SECONDS)
        last = max(ends_at, now + grace)
        run = run._replace(terminated=True, planned=planned, kill_at=kill_at, grace_ends_at=ends_at, last_kill_at=last)
    return run._replace(terminate_at=None, late=())


def process_ended(
    run: Run, ended: Report | None, pid: int, ending: Ending | None, unseen: frozenset[int] = frozenset()
) -> Run:
    """Record a process's end; the process may be an unrelated orphan. `ended`: this worker's end, if known."""
    if run.launcher and ending is not None and pid == run.launcher and run.launcher_ending is None:
        run = run._replace(launcher_ending=ending)
        if run.wraps_ranks:
            return run if _is_settled(run, ended, ending) else _examine(run, ExamineLauncher(ending))
    for local_rank, rank_pid in run.ranks.items():
        if rank_pid == pid and local_rank not in run.endings:
            return _rank_ended(run, ended, local_rank, ending, unseen)
    return run


def _is_settled(run: Run, ended: Report | None, launcher: Ending) -> bool:
    """Returns whether the launcher's last lines aren't needed, because the failed rank is known for certain."""
    if run.provoked or run.planned or launcher.exit_code == 0 or (ended is not None and ended.culprit):
        return True
    return run.terminated and not run.launcher_knows_more


def _rank_ended(run: Run, ended: Report | None, local_rank: int, ending: Ending | None, unseen: frozenset[int]) -> Run:
    run = run._replace(endings={**run.endings, local_rank: ending})
    if local_rank in run.raised:
        return run
    joins = local_rank in run.absent
    # A rank that hasn't joined the others never exits normally. Once the others have ended, the agent kills the ranks
    # that still wait to join, and their ends don't count.
    left_well = run.sweeping if joins else ending is not None and ending.exit_code == 0
    if run.provoked or left_well:
        return run
    # A rank whose status isn't known is examined too, because its error file may contain an exception.
    was_ended = ending is None or _was_ended(run, ended, ending, unseen)
    if was_ended:
        # This end isn't a cause, unless the rank had failed by itself before it was ended. Such a rank at fault can end
        # later than a rank that lost the connection to it, on this or another worker.
        known = run.planned if ended is None else ended.culprit
        if known:
            return run
    return _examine(run, ExamineRank(local_rank, ending or Ending(1), was_ended))


def _was_ended(run: Run, ended: Report | None, ending: Ending, unseen: frozenset[int]) -> bool:
    """Returns whether the agent or torchrun ended the rank; torchrun sends SIGTERM to all ranks once one has failed."""
    if run.terminated:
        return True
    if not run.launcher or not run.wraps_ranks or ending.signal != signal.SIGTERM:
        return False
    # On a loaded machine torchrun may have reaped the failed rank before the agent saw its end. torchrun's report then
    # names that rank.
    return ended is not None or run.launcher_knows_more or not unseen.isdisjoint(run.living)


def launcher_examined(
    run: Run, ended: Report | None, report: Report, ending: Ending, evidence: str, oom_kills: int
) -> Run | Report:
    """Use the launcher's last lines. If they name the failed rank, it is examined next; else they are the cause."""
    match = re.search(_TORCHRUN_FAILURE, evidence)
    settled = ended is not None or run.terminated
    if match is not None:
        # The agent didn't see this rank's end itself, because the launcher had reaped the rank.
        code, local_rank = int(match[1]), int(match[2])
        if settled and run.endings.get(local_rank) is not None:
            return run
        ending = Ending.of(code)
        run = run._replace(endings={**run.endings, local_rank: ending})
        was_ended = run.terminated and ending.signal in (None, signal.SIGTERM)
        return _examine(run, ExamineRank(local_rank, ending, was_ended))
    if settled:
        return run
    if not run.ranks and ending.signal is None and not broken_connection(evidence):
        why = NO_TORCH if re.search(_NO_TORCH, evidence) else evidence
        return failed(report, "LaunchError", why)._replace(exit_code=ending.exit_code)
    return classify(report, ending, None, evidence, oom_kills)


def first_bad_ending(run: Run) -> Ending | None:
    """Returns the first end of a rank that wasn't an exit with 0, else the launcher's end."""
    return next((ending for ending in run.endings.values() if ending and ending.exit_code != 0), run.launcher_ending)


def saving_ranks_found(run: Run, seconds: Mapping[int, float], now: float) -> Run:
    """Delay SIGKILL for ranks that are writing their state, as long as they request, within the job's grace.

    Ranks notice a fault when a collective fails, a moment before SIGKILL. They then write their state, from which the
    next attempt continues. SIGKILL doesn't wait for ranks that have written their state (0 seconds). For ranks that
    haven't begun to write, it waits until the grace is over.
    """
    until = {}
    for local_rank in run.ranks:
        asked = seconds.get(local_rank)
        if local_rank in run.endings:
            continue
        if asked is None:
            until[local_rank] = run.grace_ends_at
        elif asked:
            began = run.saving.get(local_rank, now)
            until[local_rank] = min(began + asked, run.last_kill_at)
        if local_rank in run.raised:
            left = min(run.raised[local_rank] + RAISED_GRACE, run.last_kill_at)
            until[local_rank] = max(left, until.get(local_rank, 0.0))
    saving = {local_rank: run.saving.get(local_rank, now) for local_rank, asked in seconds.items() if asked}
    spared = {local_rank: moment for local_rank, moment in until.items() if moment > now}
    if not spared:
        return run._replace(spared={}, last_kill_at=now)
    return run._replace(spared=spared, saving=saving, kill_at=min(now + SAVING_POLL_SECONDS, *spared.values()))


def unspared(run: Run) -> tuple[int, ...]:
    """Returns the pids of the ranks to kill while SIGKILL is delayed for others."""
    if not run.spared:
        return ()
    return tuple(
        pid for local_rank, pid in run.ranks.items() if local_rank not in run.endings and local_rank not in run.spared
    )


def _examine(run: Run, examination: ExamineRank | ExamineLauncher) -> Run:
    return run._replace(examinations=(*run.examinations, examination))
