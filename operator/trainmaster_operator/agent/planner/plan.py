"""`plan(state, now)` compares the desired state with the present state, and returns the next actions. Pure.

The plan only depends on the state, not on the last event. Once a plan's actions are performed, the next plan is empty
until something changes. `plan` calls the steps in the order of `_STEPS`; the first step that returns actions determines
the whole plan. So effects happen in the order of the steps. Progress is published before the report of the end, a
report is saved before it is published, and an attempt's report is sent before the next attempt starts. Besides its
actions, a step returns the next state, in which these actions are no longer required.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from trainmaster_operator.agent.planner import actions, changes, continuing, ranks
from trainmaster_operator.agent.planner.classification import failed
from trainmaster_operator.agent.planner.state import NO_ASSIGNMENT, CodeState, Now, Preparation, SavedReport, State
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.report import EXIT_TERMINATED, Report

Planned = tuple[State, tuple[actions.Action, ...]]
RESOLVED_SECONDS = 2.0
"""If worker 0's name is resolved but its agent doesn't answer for this long (a network policy may separate agents), the
ranks start anyway. Their own rendezvous waits for the master too, though not as long as the agent."""
MAX_WARM_FAILURES = 12
"""After this many failures in a row, no warm process is started any more."""
PATIENCE_SECONDS = 3.0
"""How long the agent waits for a report's acknowledgement or a newer assignment before it exits to report."""
FORGOTTEN_SECONDS = 30.0
"""If no operator has been watching for this long, the operator that acknowledged a report or sent Hold may be dead."""


def plan(state: State, now: Now) -> Planned:
    """Returns the next actions, in order, and the state after them.

    Without actions, the executor waits for an event, or until `wake_at`.
    """
    if state.exit_code is None:
        for step in _STEPS:
            planned = step(state, now)
            if planned is not None:
                return planned
    return state, ()


def wake_at(state: State, now: Now) -> float | None:
    """Returns when the plan that was made at `now` changes even without an event (monotonic clock); None: never."""
    times = [exit_at(state), continuing.alone_until(state), continuing.leaving_until(state)]
    if state.run is not None:
        times += [state.run.terminate_at, state.run.kill_at, state.run.conclude_at]
    if state.preparation is not None:
        times.append(state.preparation.begun_at + state.settings.startup_timeout)
        if state.preparation.resolved_at is not None:
            times.append(state.preparation.resolved_at + RESOLVED_SECONDS)
    return min((time for time in times if time is not None and now.steady < time < float("inf")), default=None)


# The steps


def _follow_assignment(state: State, _now: Now) -> Optional[Planned]:
    assignment = state.assignment
    if assignment is state.applied:
        return None
    return state._replace(applied=assignment), (actions.ApplyAssignment(assignment),)


def _send(state: State, _now: Now) -> Optional[Planned]:
    return (state._replace(outbox=()), state.outbox) if state.outbox else None


def _examine(state: State, _now: Now) -> Optional[Planned]:
    run = state.run
    if run is None or not run.examinations:
        return None
    return state._replace(run=run._replace(examinations=run.examinations[1:])), run.examinations[:1]


def _conclude(state: State, now: Now) -> Optional[Planned]:
    run = state.run
    if run is None or run.conclude_at is None or not (run.emptied or now.steady >= run.conclude_at):
        return None
    return state._replace(run=run._replace(conclude_at=None)), (actions.Conclude(),)


def _flush_progress(state: State, _now: Now) -> Optional[Planned]:
    return (state._replace(unflushed=False), (actions.FlushProgress(),)) if state.unflushed else None


def _save_report(state: State, _now: Now) -> Optional[Planned]:
    report = state.report
    if report is None or report.state == "Waiting" or (state.saved is not None and state.saved.report == report):
        return None
    return state._replace(saved=SavedReport(report, False)), (actions.SaveReport(report, False),)


def _publish_report(state: State, _now: Now) -> Optional[Planned]:
    return None if state.report is None or state.report == state.published else _publish(state, state.report)


def _publish(state: State, report: Report) -> Planned:
    return _reported(state, report)._replace(published=report), (actions.PublishReport(report),)


def _reported(state: State, report: Report) -> State:
    newer = state.report is not None and report.attempt > state.report.attempt
    return state._replace(previous=state.report if newer else state.previous, report=report)


def _adopt(state: State, now: Now) -> Optional[Planned]:
    assignment, node_rank = state.assignment, state.node_rank
    if node_rank is None or not continuing.continues_here(state):
        return None
    leaving_until = continuing.leaving_until(state)
    if leaving_until is not None and now.steady < leaving_until:
        return None
    report = changes.current_report(state, now)._replace(attempt=assignment.attempt)
    return continuing.adopt(state, assignment, node_rank, report, now), (actions.Adopt(report, assignment),)


def _regroup(state: State, _now: Now) -> Optional[Planned]:
    return None if state.regrouping is None else (state._replace(regrouping=None), (state.regrouping,))


def _end_ranks(state: State, now: Now) -> Optional[Planned]:
    run = state.run
    if run is None:
        return None
    if run.terminate_at is not None and now.steady >= run.terminate_at:
        # torchrun would wait up to 30 s for its ranks. Once torchrun is killed, the ranks are the agent's own children.
        planned = run.grace if run.grace >= ranks.PLANNED_GRACE else 0.0
        needed = run.launcher_knows_more or planned
        kill = run.wraps_ranks and not needed and run.launcher_ending is None
        # Until a rank has announced itself, only the launcher is known.
        launcher = (run.launcher,) if run.launcher else ()
        spared = {run.ranks[local_rank] for local_rank in run.leaving}
        pids = tuple(pid for pid in run.living if pid not in spared) if run.living else launcher
        terminate = actions.Terminate(pids, run.launcher if kill else 0, planned)
    elif run.late:
        terminate = actions.Terminate(run.late)
    elif run.sweeping:
        return None
    elif run.kill_at <= now.steady < run.last_kill_at:
        return state, (actions.FindSavingRanks(),)
    elif now.steady >= run.last_kill_at or (run.done and not (run.living and run.terminated)):
        return state._replace(run=run._replace(sweeping=True)), (actions.Sweep(),)
    else:
        return None
    state = state._replace(run=ranks.terminated(run, now.steady, state.settings.grace_seconds))
    return continuing.refreshed(state, now), (terminate,)


def _warm_up(state: State, _now: Now) -> Optional[Planned]:
    warm, assignment = state.warm, state.applied
    if not state.settings.warm_start or state.terminating or state.environ is None:
        return None
    if assignment.state != "Run" or _lacks_code(state, assignment):
        return None
    if warm.runs or warm.hopeless or warm.failures >= MAX_WARM_FAILURES or warm.lacking >= assignment.attempt:
        return None
    if state.run is not None and (state.report is None or state.report.state != "Running"):
        # Ranks that are still starting cold need the processors for themselves.
        return None
    if state.run is not None and warm.lacking:
        # The previous attempt's ranks may still use the memory that the warm process lacked.
        return None
    return state._replace(warm=warm._replace(runs=True)), (actions.WarmUp(state.environ),)


def may_launch(state: State, now: Now) -> bool:
    """Returns whether the attempt's ranks may start now, apart from the setup line, which may still run."""
    if continuing.is_absent(state):
        # Joining ranks need no peers before they are ready.
        return True
    if state.settings.launcher == "exec":
        # These programs have no rendezvous that waits for all workers. The operator limits the wait (startupSeconds).
        return state.contact.gathered >= state.started
    resolved_at = None if state.preparation is None else state.preparation.resolved_at
    patient = resolved_at is None or now.steady < resolved_at + RESOLVED_SECONDS
    return state.contact.master.reached or not patient


def _prepare(state: State, now: Now) -> Optional[Planned]:
    preparation = state.preparation
    if preparation is None or state.setup_runs:
        return None
    if _lacks_code(state, preparation.assignment):
        # The next attempt requests the archive again.
        report = changes.failure(state, now, "LaunchError", state.code.problem)
        state = state._replace(preparation=None, code=state.code._replace(wanted="", problem=""))
        return plan(changes.end(state, report, now), now)
    if state.environ is None:
        return state._replace(setup_runs=True), (actions.RunSetup(),)
    if state.warm.ending or not may_launch(state, now):
        return None
    launch = actions.Launch(preparation.assignment, preparation.node_rank, state.environ)
    return state._replace(preparation=None), (launch,)


def _start(state: State, now: Now) -> Optional[Planned]:
    assignment, settings = state.assignment, state.settings
    if state.terminating or state.run is not None or state.preparation is not None:
        return None
    if assignment.attempt <= state.started:
        return None
    report = Report(assignment.attempt, settings.worker, settings.pod_uid, "Waiting", settings.node, at=now.wall)
    node_rank = state.node_rank
    if node_rank is None:
        known = state.report is not None and state.report._replace(at=report.at) == report
        return None if known else _publish(state, report)
    if assignment.continues is not None and state.present:
        # This worker can't continue, because its ranks have ended; it only reports this.
        report = _declined(state, report, assignment.continues)
        state = _reported(state, report)._replace(started=report.attempt, ended_at=now.steady, acknowledged=0)
        return plan(state, now)
    if assignment.code is not None and assignment.code != state.code.wanted:
        code = CodeState(before=state.code.has or state.code.before, wanted=assignment.code)
        return state._replace(code=code), (actions.FetchCode(assignment.code),)
    if _lacks_code(state, assignment) and not state.code.problem:
        # A worker without the code hasn't joined the attempt, so there is nothing to report yet.
        return None
    report = report._replace(state="Starting")
    resolved_at = now.steady if state.contact.master.resolved else None
    begun = _reported(state, report)._replace(
        started=report.attempt,
        preparation=Preparation(assignment, node_rank, now.steady, resolved_at),
        saved=SavedReport(report, False),
        environment=None,
        printed_environment="",
    )
    return begun, (actions.Begin(report, assignment),)


def _declined(state: State, report: Report, continues: int) -> Report:
    """Returns the report for ranks that ended before the attempt began, with the cause if the cause was reported."""
    ended = state.ended
    if ended is not None and ended.state in ("Failed", "Finished") and ended.attempt >= continues:
        return ended._replace(attempt=report.attempt, at=report.at, able=False)
    return failed(report, "AgentLost", "this worker has no rank left that could continue")


def _lacks_code(state: State, assignment: Assignment) -> bool:
    return assignment.code is not None and assignment.code != state.code.has


def _leave(state: State, now: Now) -> Optional[Planned]:
    if state.run is not None:
        return None
    report = state.report
    if state.terminating and (report is None or not report.ended):
        return state._replace(exit_code=EXIT_TERMINATED), (actions.HandOver(), actions.Exit())
    if report is None:
        return None
    state = state._replace(exit_code=report.process_exit_code())
    last = actions.WriteTerminationMessage(report), actions.Exit()
    if state.terminating:
        return state, (actions.HandOver(), *last)
    time = exit_at(state)
    if time is None or now.steady < time:
        return None
    return state._replace(saved=SavedReport(report, True)), (actions.SaveReport(report, True), *last)


def exit_at(state: State) -> float | None:
    """Returns when the agent must exit to send its last report, on the monotonic clock; None: never.

    After the exit, the kubelet writes the agent's exit code and the report's termination message to the API server
    (docs/protocol.md, "The sure way"). An exit costs a restart of the container, and repeated exits also cost a
    back-off, so the agent waits as long as an operator may still record the report.
    """
    report, assignment = state.report, state.assignment
    if report is None or report.state not in ("Failed", "Finished"):
        return None
    if state.saved is not None and state.saved.exited:
        return None
    if assignment is NO_ASSIGNMENT or assignment.attempt > report.attempt:
        return None
    held = assignment.state == "Hold"
    if state.acknowledged >= report.attempt:
        # If an operator has sent Hold, it has recorded the report.
        if held or state.unwatched_at is None:
            return None
        return max(state.unwatched_at, state.ended_at) + FORGOTTEN_SECONDS
    if report.state == "Failed" and (not report.culprit or report.reason == "AgentLost"):
        # If this agent was lost, the kubelet has already reported the container's end, and the operator will connect.
        # An operator that has sent Hold knows that the attempt is over, and may be waiting for another pod.
        return state.ended_at + (FORGOTTEN_SECONDS if held else PATIENCE_SECONDS)
    patient = state.ended_at + PATIENCE_SECONDS
    return patient if state.contact.watched else min(patient, max(state.ended_at, state.new_leader_until))


_STEPS: tuple[Callable[[State, Now], Optional[Planned]], ...] = (
    _follow_assignment,
    _send,
    _examine,
    _conclude,
    _flush_progress,
    _save_report,
    _publish_report,
    _adopt,
    _regroup,
    _end_ranks,
    _warm_up,
    _prepare,
    _start,
    _leave,
)
