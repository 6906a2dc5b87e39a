"""`plan(state, now)` compares the desired state with the present state, and returns the next actions. Pure.

It is level-triggered: the last event doesn't matter, and once a plan's actions are performed, the next plan is empty
until something changes. `plan` calls the steps in the order of `_STEPS`; the first step that returns actions determines
the whole plan. So effects happen in the order of the steps: progress before the report of the end, the saved report
before the published one, the report of one attempt before the start of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmaster_operator.agent.planner import actions, changes, continuing, ranks
from trainmaster_operator.agent.planner.classification import failed
from trainmaster_operator.agent.planner.state import CodeState, Now, Preparation, SavedReport, State
from trainmaster_operator.agent.planner.update import RESOLVED_SECONDS, may_launch
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.joining import FollowerMessage, Joined, Reported
from trainmaster_operator.wire.report import EXIT_TERMINATED, Report

Actions = tuple[actions.Action, ...]
MAX_WARM_FAILURES = 12
"""After this many failures in a row no other warm process is started."""
PATIENCE_SECONDS = 3.0
"""How long a report waits for its acknowledgement or a newer assignment before the agent exits to report."""
FORGOTTEN_SECONDS = 30.0
"""If no operator watches for this long, the operator that acknowledged a report, or sent Hold, may have died."""


def plan(state: State, now: Now) -> Actions:
    """Returns the next actions, in order; empty if there is nothing to do until an event or `wake_at`."""
    if state.exit_code is not None:
        return ()
    for step in _STEPS:
        planned = step(state, now)
        if planned:
            return planned
    return ()


def wake_at(state: State, now: Now) -> float | None:
    """Returns when the plan made at `now` next changes without an event (monotonic clock)."""
    times = [exit_at(state), continuing.alone_until(state)]
    if state.run is not None:
        times += [state.run.terminate_at, state.run.kill_at, state.run.conclude_at]
    if state.preparation is not None:
        times.append(state.preparation.begun_at + state.settings.startup_timeout)
        if state.preparation.resolved_at is not None:
            times.append(state.preparation.resolved_at + RESOLVED_SECONDS)
    return min((time for time in times if time is not None and now.steady < time < float("inf")), default=None)


def done(state: State, action: actions.Action, now: Now) -> State:
    """Returns the state after an action was performed."""
    change = _DONE.get(type(action))
    if change is not None:
        state = change(state, action, now)
    return state._replace(outbox=tuple(each for each in state.outbox if each is not action)) if state.outbox else state


# The steps


def _kill_leftovers(state: State, _now: Now) -> Actions:
    return (actions.KillLeftovers(),) if state.leftovers else ()


def _follow_assignment(state: State, _now: Now) -> Actions:
    if state.assignment is None or state.assignment is state.applied:
        return ()
    return (actions.ApplyAssignment(state.assignment),)


def _introduce(state: State, _now: Now) -> Actions:
    return (actions.Introduce(introduction(state)),) if state.introducing else ()


def _send(state: State, _now: Now) -> Actions:
    return state.outbox


def _examine(state: State, _now: Now) -> Actions:
    if state.run is None or not state.run.examinations:
        return ()
    local_rank, ending, was_ended = state.run.examinations[0]
    if local_rank is None:
        return (actions.ExamineLauncher(ending),)
    return (actions.ExamineRank(local_rank, ending, was_ended),)


def _conclude(state: State, now: Now) -> Actions:
    run = state.run
    due = run is not None and run.conclude_at is not None and (run.emptied or now.steady >= run.conclude_at)
    return (actions.Conclude(),) if due else ()


def _flush_progress(state: State, _now: Now) -> Actions:
    return (actions.FlushProgress(),) if state.unflushed else ()


def _save_report(state: State, _now: Now) -> Actions:
    report = state.report
    if report is None or report.state == "Waiting" or (state.saved is not None and state.saved.report == report):
        return ()
    return (actions.SaveReport(report, False),)


def _publish_report(state: State, _now: Now) -> Actions:
    return () if state.report is None or state.report == state.published else (actions.PublishReport(state.report),)


def _adopt(state: State, now: Now) -> Actions:
    if not continuing.continues_here(state) or state.assignment is None or state.node_rank is None:
        return ()
    report = changes.current_report(state, now)._replace(attempt=state.assignment.attempt)
    return (actions.Adopt(report, state.assignment, state.node_rank),)


def _regroup(state: State, _now: Now) -> Actions:
    return () if state.regrouping is None else (actions.Regroup(*state.regrouping),)


def _end_ranks(state: State, now: Now) -> Actions:
    run = state.run
    if run is None:
        return ()
    if run.terminate_at is not None and now.steady >= run.terminate_at:
        # torchrun would wait up to 30 s for its ranks. Once it is killed, they become the agent's own children.
        planned = run.grace if run.grace >= ranks.PLANNED_GRACE else 0.0
        needed = run.launcher_knows_more or planned
        kill = run.wraps_ranks and not needed and run.launcher_ending is None
        # Until a rank has announced itself, only the launcher is known.
        launcher = (run.launcher,) if run.launcher else ()
        return (actions.Terminate(tuple(run.living) or launcher, run.launcher if kill else 0, planned),)
    if run.late:
        return (actions.Terminate(run.late),)
    if ranks.kill_due(run, now.steady):
        return (actions.FindSavingRanks(),)
    return (actions.Sweep(),) if ranks.sweep_due(run, now.steady) else ()


def _warm_up(state: State, _now: Now) -> Actions:
    warm, assignment = state.warm, state.applied
    if not state.settings.warm_start or state.terminating or state.environ is None:
        return ()
    if assignment is None or assignment.state != "Run" or _lacks_code(state, assignment):
        return ()
    if warm.runs or warm.hopeless or warm.failures >= MAX_WARM_FAILURES or warm.lacking >= assignment.attempt:
        return ()
    if state.run is not None and (state.report is None or state.report.state != "Running"):
        # Cold-starting ranks need the processors for themselves.
        return ()
    if state.run is not None and warm.lacking:
        # The previous attempt's ranks may still use the memory that the warm process lacked.
        return ()
    return (actions.WarmUp(state.environ),)


def _prepare(state: State, now: Now) -> Actions:
    preparation = state.preparation
    if preparation is None or state.setup_runs:
        return ()
    if _lacks_code(state, preparation.assignment):
        return (actions.RefuseLaunch(state.code.problem),)
    if state.environ is None:
        return (actions.RunSetup(),)
    if state.warm.ending or not may_launch(state, now):
        return ()
    return (actions.Launch(preparation.assignment, preparation.node_rank, state.environ),)


def _start(state: State, now: Now) -> Actions:
    assignment, settings = state.assignment, state.settings
    if assignment is None or state.terminating or state.run is not None or state.preparation is not None:
        return ()
    if assignment.attempt <= state.started:
        return ()
    report = Report(assignment.attempt, settings.worker, settings.pod_uid, "Waiting", settings.node, at=now.wall)
    node_rank = assignment.node_rank(settings.worker, settings.pod_uid)
    if node_rank is not None and state.wanted_attempt is not None:
        if assignment.continues is not None and assignment.present(node_rank, settings.processes):
            return (actions.Decline(_declined(state, report, assignment.continues)),)
        if assignment.code is not None and assignment.code != state.code.wanted:
            return (actions.FetchCode(assignment.code),)
        if _lacks_code(state, assignment) and not state.code.problem:
            # A worker without the code hasn't joined the attempt, so there is nothing to report yet.
            return ()
        return (actions.Begin(report._replace(state="Starting"), assignment, node_rank),)
    if state.report is not None and state.report._replace(at=report.at) == report:
        return ()
    return (actions.PublishReport(report),)


def _declined(state: State, report: Report, continues: int) -> Report:
    """Returns the report for ranks that ended before the attempt began, with the cause if it was reported."""
    ended = state.ended
    if ended is not None and ended.state in ("Failed", "Finished") and ended.attempt >= continues:
        return ended._replace(attempt=report.attempt, at=report.at, able=False)
    return failed(report, "AgentLost", "this worker has no rank left that could go on")


def _lacks_code(state: State, assignment: Assignment) -> bool:
    return assignment.code is not None and assignment.code != state.code.has


def _leave(state: State, now: Now) -> Actions:
    if state.run is not None:
        return ()
    report = state.report
    if state.terminating:
        if report is None or not report.ended:
            return (actions.HandOver(), actions.Exit(EXIT_TERMINATED))
        return (
            actions.HandOver(),
            actions.WriteTerminationMessage(report),
            actions.Exit(report.process_exit_code()),
        )
    time = exit_at(state)
    if report is None or time is None or now.steady < time:
        return ()
    return (
        actions.SaveReport(report, True),
        actions.WriteTerminationMessage(report),
        actions.Exit(report.process_exit_code()),
    )


def exit_at(state: State) -> float | None:
    """Returns when the agent must exit to send its last report, on the monotonic clock; None: never.

    The kubelet then writes the code and the termination message of an unacknowledged report to the API server
    (docs/protocol.md, "The sure way"). An exit costs a restart of the container, and repeated exits a back-off, so the
    agent waits as long as an operator may still record the report.
    """
    report, assignment = state.report, state.assignment
    if report is None or report.state not in ("Failed", "Finished"):
        return None
    if state.saved is not None and state.saved.exited:
        return None
    if assignment is None or assignment.attempt > report.attempt:
        return None
    held = assignment.state == "Hold"
    if state.acknowledged >= report.attempt:
        # An operator that sends Hold has recorded the report.
        if held or state.unwatched_at is None:
            return None
        return max(state.unwatched_at, state.ended_at) + FORGOTTEN_SECONDS
    if report.state == "Failed" and (not report.culprit or report.reason == "AgentLost"):
        # The kubelet has already reported the end of a lost agent's container, and the operator will contact this one.
        # An operator that sends Hold knows that the attempt is over, and may be waiting for another pod.
        return state.ended_at + (FORGOTTEN_SECONDS if held else PATIENCE_SECONDS)
    patient = state.ended_at + PATIENCE_SECONDS
    return patient if state.contact.watched else min(patient, max(state.ended_at, state.new_leader_until))


_STEPS: tuple[Callable[[State, Now], Actions], ...] = (
    _kill_leftovers,
    _follow_assignment,
    _introduce,
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


def introduction(state: State) -> tuple[FollowerMessage, ...]:
    """Returns the first messages to a newly joined leader."""
    settings = state.settings
    seen = 0 if state.assignment is None else state.assignment.attempt
    reports = (Reported(report) for report in (state.previous, state.published) if report is not None)
    rest = (
        message for message in (state.warm.modules, state.environment, *reports, state.progress) if message is not None
    )
    return (Joined(settings.job_uid, settings.worker, settings.pod_uid, seen), *rest)


# Changes by actions


def _begun(state: State, action: actions.Begin, now: Now) -> State:
    resolved_at = now.steady if state.contact.master.resolved else None
    return _reported(state, action.report)._replace(
        started=action.report.attempt,
        preparation=Preparation(action.assignment, action.node_rank, now.steady, resolved_at),
        saved=SavedReport(action.report, False),
        environment=None,
        printed_environment="",
        outbox=(*state.outbox, actions.Hurry()),
    )


def _reported(state: State, report: Report) -> State:
    if state.report is not None and report.attempt > state.report.attempt:
        state = state._replace(previous=state.report)
    return state._replace(report=report)


def _declining(state: State, action: actions.Decline, now: Now) -> State:
    state = _reported(state, action.report)
    return state._replace(started=action.report.attempt, ended_at=now.steady, acknowledged=0)


def _examined(state: State, _action: actions.Action, _now: Now) -> State:
    return state.change_run(lambda run: run._replace(examinations=run.examinations[1:]))


def _terminated(state: State, _action: actions.Action, now: Now) -> State:
    state = state.change_run(lambda run: ranks.terminated(run, now.steady, state.settings.grace_seconds))
    return continuing.refreshed(state, now)


_DONE: dict[type, Callable[[State, Any, Now], State]] = {
    actions.KillLeftovers: lambda state, _, __: state._replace(leftovers=False),
    actions.ApplyAssignment: lambda state, action, _: state._replace(applied=action.assignment),
    actions.Introduce: lambda state, _, __: state._replace(introducing=False),
    actions.Begin: _begun,
    actions.Adopt: continuing.adopt,
    actions.Decline: _declining,
    actions.Regroup: lambda state, _, __: state._replace(regrouping=None),
    actions.FetchCode: lambda state, action, _: state._replace(
        code=CodeState(before=state.code.has or state.code.before, wanted=action.digest)
    ),
    # The next attempt checks again.
    actions.RefuseLaunch: lambda state, _, __: state._replace(
        preparation=None, code=state.code._replace(wanted="", problem="")
    ),
    actions.RunSetup: lambda state, _, __: state._replace(setup_runs=True),
    actions.WarmUp: lambda state, _, __: state._replace(warm=state.warm._replace(runs=True)),
    actions.Launch: lambda state, _, __: state._replace(preparation=None),
    actions.ExamineRank: _examined,
    actions.ExamineLauncher: _examined,
    actions.Terminate: _terminated,
    actions.Sweep: lambda state, _, __: state.change_run(lambda run: run._replace(sweeping=True)),
    actions.Conclude: lambda state, _, __: state.change_run(lambda run: run._replace(conclude_at=None)),
    actions.FlushProgress: lambda state, _, __: state._replace(unflushed=False),
    actions.SaveReport: lambda state, action, _: state._replace(saved=SavedReport(action.report, action.exited)),
    actions.PublishReport: lambda state, action, _: _reported(state, action.report)._replace(published=action.report),
    actions.Exit: lambda state, action, _: state._replace(exit_code=action.code),
}
