"""This module lets ranks continue in another attempt without the lost ranks (docs/protocol.md, "Continuing"). Pure.

After a rank fails, the others stay alive for a moment. If an operator continues the attempt in that time, this worker
adopts the next attempt: it saves and publishes its report, then wakes the living ranks and restarts its absent ranks,
which join later. If no operator continues the attempt in that time, the worker stops all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional, TypeVar

from trainmaster_operator.agent.planner import changes, ranks
from trainmaster_operator.agent.planner.actions import KillRemains, Regroup
from trainmaster_operator.agent.planner.classification import Ending, classify
from trainmaster_operator.agent.planner.state import Now, Preparation, Run, SavedReport, State
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.limits import ALONE_SECONDS, MAX_FINISHED_RANKS
from trainmaster_operator.wire.report import Report

V = TypeVar("V")

NOT_JOINED = "it ended before it had joined the others"


def others_are_able(run: Run, but: Optional[int] = None) -> bool:
    """Returns whether all living ranks in the group, except the failing one, can continue."""
    gone = {*run.endings, *run.raised, but}
    return _are_able(run, [rank for rank in run.present if rank not in gone])


def _are_able(run: Run, local_ranks: Sequence[int]) -> bool:
    able = all(run.words.get(rank) in ("able", "idle") and rank not in run.endings for rank in local_ranks)
    return able and bool(local_ranks) and run.continuable and not run.terminated


def _is_ready(run: Run) -> bool:
    ready = all(run.words.get(rank) == "ready" and rank not in run.endings for rank in run.absent)
    return ready and bool(run.absent) and not run.terminated


def patience(state: State, but: Optional[int] = None) -> float:
    """Returns for how many seconds the other ranks live after a rank's failure; 0 if they can't be continued."""
    waits = state.run is not None and others_are_able(state.run, but)
    return ranks.CONTINUE_SECONDS if waits and state.contact.watched and not state.terminating else 0.0


def is_absent(state: State) -> bool:
    """Returns whether all ranks of this worker are absent from the group, and run or are prepared only to join it.

    Only an assignment stops such ranks.
    """
    if state.preparation is not None:
        return state.preparation.assignment.continues is not None
    return state.run is not None and not state.run.present


def joins(state: State, rank: Optional[int]) -> bool:
    """Returns whether a rank of this worker, given by its global number, is absent from the group."""
    return state.run is not None and rank is not None and rank - state.run.first_rank in state.run.absent


def alone_until(state: State) -> Optional[float]:
    """Returns when to end ranks that train alone, without any other worker and without an operator; None: never.

    Such ranks need no other worker, so they would continue training if the network broke. Their pod would count as
    lost, and other ranks would train in their place.
    """
    run, assignment, unwatched_at = state.run, state.assignment, state.unwatched_at
    if run is None or run.stopping or unwatched_at is None or not assignment.absent:
        return None
    present = assignment.world_size(state.settings.processes) - len(assignment.absent)
    return unwatched_at + ALONE_SECONDS if run.present and present == len(run.present) else None


def leaving_until(state: State) -> Optional[float]:
    """Returns when the others continue without a rank that has raised an exception and still exits; None: at once."""
    run = state.run
    return max((run.raised[rank] + ranks.LEAVING_SECONDS for rank in run.leaving), default=None) if run else None


def hung_rank(state: State, rank: Optional[int]) -> int:
    """Returns the pid of a hung rank if the others can continue without it, else 0. A signal may have stopped it."""
    run, report = state.run, state.report
    able = report is not None and report.able and state.contact.watched
    if run is None or rank is None or rank - run.first_rank in run.endings or not (able or joins(state, rank)):
        return 0
    return run.ranks.get(rank - run.first_rank, 0)


def continues_here(state: State) -> bool:
    """Returns whether the running or prepared ranks continue in the last assigned attempt."""
    assignment, node_rank = state.assignment, state.node_rank
    if node_rank is None or assignment.continues is None:
        return False
    if not assignment.continues <= state.started < assignment.attempt:
        return False
    if state.preparation is not None:
        return is_absent(state) and not state.present
    run = state.run
    if run is None or not run.continuable or run.terminated or run.sweeping:
        return False
    moved = run.first_rank != assignment.first_rank(node_rank, state.settings.processes)
    return not moved and bool(_kept(run, state.present))


def adopt(state: State, assignment: Assignment, node_rank: int, report: Report, now: Now) -> State:
    """Move the running or prepared ranks to a continued attempt, whose report is being saved."""
    ended, before, failed = state.ended, state.started, _failed_joiner(state)
    state = state._replace(
        started=assignment.attempt,
        saved=SavedReport(report, False),
        previous=state.report,
        report=report,
    )
    if state.preparation is not None:
        preparation = Preparation(assignment, node_rank, state.preparation.begun_at, state.preparation.resolved_at)
        return state._replace(preparation=preparation)
    assert state.run is not None
    present = assignment.present(node_rank, state.settings.processes)
    kept = [rank for rank in _kept(state.run, present) if rank != failed]
    lost = [rank for rank in range(state.settings.processes) if rank not in kept and rank not in present]
    restarted = () if state.terminating else tuple(lost)
    run = regrouped(state, state.run, present, restarted)
    killed = tuple(pid for rank, pid in state.run.ranks.items() if rank in lost and rank not in state.run.endings)
    way = state.way.stopped(before, now.wall).launched(assignment.attempt, now.wall)
    state = state._replace(run=run, way=way, regrouping=Regroup(assignment, node_rank, killed, restarted))
    gone = next((rank for rank in present if rank in run.endings or rank in run.raised), None)
    if gone is None:
        return refreshed(state, now)
    # A rank has ended, or has raised an exception, since the operator decided. Its report was about the previous
    # attempt.
    rank, report = run.first_rank + gone, changes.current_report(state, now)
    if ended is not None and ended.rank == rank:
        failure = ended._replace(attempt=report.attempt, at=report.at)
    else:
        failure = classify(report, run.endings.get(gone) or Ending(1), rank, "it ended before this attempt began", 0)
    return rank_failed(state, failure, now)


def regrouped(state: State, run: Run, present: tuple[int, ...], restarted: tuple[int, ...]) -> Run:
    """Returns a run at the start of a continued attempt, without a pending stop and without its restarted ranks."""

    def without(known: Mapping[int, V]) -> dict[int, V]:
        return {rank: value for rank, value in known.items() if rank not in restarted}

    return run._replace(
        continued=True,
        present=present,
        absent=tuple(rank for rank in range(state.settings.processes) if rank not in present),
        ranks=without(run.ranks),
        endings=without(run.endings),
        words=without(run.words),
        raised=without(run.raised),
        groups=without(run.groups),
        terminate_at=run.terminate_at if state.terminating else None,
        provoked=False,
        conclude_at=None,
    )


def rank_failed(state: State, report: Report, now: Now) -> State:
    """Handle a rank's failure. Stop the other ranks, either at once or when no operator has continued them in time."""
    run = state.run
    assert run is not None
    local_rank = None if report.rank is None else report.rank - run.first_rank
    if joins(state, report.rank):
        return _failed_to_join(state, run, report, now)
    left = [rank for rank, ending in run.endings.items() if ending is not None and ending.exit_code == 0]
    finished = tuple(run.first_rank + rank for rank in sorted(left) if rank != local_rank)
    report = report._replace(able=others_are_able(run, local_rank), finished=finished[:MAX_FINISHED_RANKS])
    waits = patience(state, local_rank)
    # Other ranks may reveal a better cause if they get SIGTERM a moment later.
    delay = waits or (ranks.FAILURE_GRACE if run.living and not report.culprit else 0.0)
    state = state._replace(run=ranks.stop(run, now.steady, ranks.FAILURE_GRACE, delay))
    if waits and local_rank is not None and local_rank in run.endings and local_rank in run.ranks:
        state = changes.post(state, KillRemains(run.ranks[local_rank]))
    return refreshed(changes.end(state, report, now), now)


def _failed_to_join(state: State, run: Run, failure: Report, now: Now) -> State:
    """Handle the failure of a rank that hasn't joined the group. It stops no other rank.

    The rank is restarted when the operator requests it. If other ranks of this worker train, the worker's report
    contains their state, and the failure.
    """
    if failure.exit_code == 0:
        failure = failure._replace(error=f"{failure.error}\n{NOT_JOINED}".lstrip())
    if not run.present:
        return changes.end(state, failure, now)
    known = changes.current_report(state, now) if state.report is None else state.report
    if known.ended or known.reason:
        return state
    return state._replace(report=failure._replace(state=known.state, able=known.able, at=now.wall))


def refreshed(state: State, now: Now) -> State:
    """Returns the state with the ranks' readiness to continue in its report."""
    run, report = state.run, state.report
    if run is None or report is None or report.attempt != state.started:
        return state
    if report.ended:
        return state._replace(report=report._replace(able=report.able and others_are_able(run)))
    formed = run.continued and run.present and all(run.groups.get(rank) == report.attempt for rank in run.present)
    able, ready = _are_able(run, run.present), _is_ready(run)
    found = report._replace(state="Running" if formed else report.state, able=able, ready=ready)
    return state if found == report else state._replace(report=found._replace(at=now.wall))


def _failed_joiner(state: State) -> Optional[int]:
    """Returns the local rank whose failure before joining was reported. A rank that hung may not have ended yet."""
    run, report = state.run, state.report
    if run is None or report is None or report.rank is None or not (report.reason and joins(state, report.rank)):
        return None
    return report.rank - run.first_rank


def _kept(run: Run, present: tuple[int, ...]) -> list[int]:
    """Returns the local ranks whose processes continue: the group's members and the ranks that wait to join."""
    return [rank for rank in (*present, *run.absent) if rank not in run.endings]
