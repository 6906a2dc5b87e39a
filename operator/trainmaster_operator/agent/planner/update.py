"""`update(state, event, now)` returns the state after an event; nothing else applies events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_operator.agent.planner import actions, changes, continuing, events, ranks
from trainmaster_operator.agent.planner.classification import classify, failed, stopped
from trainmaster_operator.agent.planner.state import Ending, Now, Run, SavedReport, State, measured
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import newer
from trainmaster_operator.wire.joining import Ack, Collect, Environment, Hung, Mismatch, Modules, Patience, Stop
from trainmaster_operator.wire.limits import ALONE_SECONDS, MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.stream import EvidenceLine, Ping
from trainmaster_operator.wire.values import last_lines

NEW_LEADER_SECONDS = 2.0
"""A new leader is assumed to get an operator within this time. Otherwise, when a leader is lost, each worker with a
report would exit before an operator could watch, and wait for the kubelet's back-off (measured: 10, 20, 40 s)."""
RESOLVED_SECONDS = 2.0
"""If worker 0's name is known but its agent doesn't answer for this long (a network policy may separate agents), the
ranks start anyway, because their own rendezvous also waits for the master, though not as long."""


def initial(settings: AgentSettings, environ: Mapping[str, str], saved: SavedReport | None, now: Now) -> State:
    """Returns a starting agent's state. `saved`: the previous agent's report in the state folder."""
    state = State(settings, environ=None if settings.setup else environ)
    if saved is None:
        return state
    report = saved.report._replace(uid=settings.pod_uid, able=False, ready=False)
    state = state._replace(started=report.attempt, leftovers=True)
    if report.ended:
        return state._replace(report=report, saved=saved._replace(report=report), ended_at=now.steady)
    error = "the agent of this attempt ended without a report; its container was killed or its node restarted"
    return changes.end(state, failed(changes.current_report(state, now), "AgentLost", error), now)


def update(state: State, event: events.Event, now: Now) -> State:
    """Returns the state after an event."""
    return _UPDATES[type(event)](state, event, now)


# Requests


def _assignment_received(state: State, event: events.AssignmentReceived, now: Now) -> State:
    assignment = event.assignment
    if state.assignment is not None and (state.exit_code is not None or not newer(state.assignment, assignment)):
        # A terminating agent starts nothing more: the next agent finds the assignment in the file.
        return state
    known, state = state.assignment, state._replace(assignment=assignment)
    if state.wanted_attempt == state.started:
        return state
    continues_here = continuing.continues_here(state)
    if not continues_here or known is None or not set(assignment.absent) <= set(known.absent):
        # No fault precedes ranks that only join.
        state = changes.seen(state, now)
    if state.way is not None and state.wanted_attempt is not None:
        state = state._replace(way=state.way.assigned(assignment.attempt, now.wall))
    if continues_here:
        return state
    if state.run is not None and continuing.leaves_group(state):
        return state._replace(run=ranks.discard(state.run, now.steady))
    return state if state.terminating else changes.stop(state, now, assignment.grace_seconds)


def _termination_requested(state: State, _event: events.TerminationRequested, now: Now) -> State:
    """Handle SIGTERM: the ranks get the pod's whole grace period, and then the agent exits."""
    if state.terminating:
        return state
    grace, waits = state.settings.grace_seconds, continuing.patience(state) > 0
    state = state._replace(terminating=True)
    if waits:
        return state.change_run(lambda run: ranks.leave(run, now.steady, grace))
    return changes.stop(state, now, grace)


def _stop_requested(state: State, event: Stop, now: Now) -> State:
    if event.report is not None and event.report.worker != state.settings.worker:
        # An operator that watches this worker, not the leader, must receive the failure before the stops that follow.
        state = changes.post(state, actions.KeepReport(event.report))
    if event.attempt != state.started or continuing.is_absent(state):
        return state
    return changes.stop(changes.seen(state, now), now, event.grace_seconds, event.after_seconds)


def _mismatch_found(state: State, event: Mismatch, now: Now) -> State:
    if event.attempt != state.started:
        return state
    error = "the workers' environments differ:\n" + "\n".join(event.lines)
    return changes.fail(
        state, failed(changes.current_report(state, now), "PreflightMismatch", error[:MAX_ERROR_CHARACTERS]), now
    )


def _stall_message(state: State, event: Collect | Hung | Patience, now: Now) -> State:
    if isinstance(event, Collect):
        # Answer at once, because collecting may take longer than a leader waits.
        state = changes.post(state, actions.SendToLeader(Ping()))
    if state.can_hang and event.attempt == state.started:
        return changes.post(state, actions.Diagnose(event))
    if not isinstance(event, Collect):
        return state
    # No rank of this worker can hang. Without an answer its agent would count as lost.
    line = EvidenceLine(event.attempt, state.settings.worker, {}, now.wall, request=event.request)
    return changes.post(state, actions.SendToLeader(line))


# The leader


def _contact_changed(state: State, event: events.LeaderContactChanged, now: Now) -> State:
    contact = event.contact
    if contact.leader is not None and contact.leader != state.known_leader:
        state = state._replace(known_leader=contact.leader, new_leader_until=now.steady + NEW_LEADER_SECONDS)
    if contact.watched:
        state = state._replace(unwatched_at=None)
    elif state.unwatched_at is None:
        state = state._replace(unwatched_at=now.steady)
    return _name_resolved(state._replace(contact=contact), now)


# Before the ranks


def _name_resolved(state: State, now: Now) -> State:
    preparation = state.preparation
    if preparation is None or preparation.resolved_at is not None or not state.contact.master.resolved:
        return state
    return state._replace(preparation=preparation._replace(resolved_at=now.steady))


def _deadline_passed(state: State, _event: events.DeadlinePassed, now: Now) -> State:
    alone_until = continuing.alone_until(state)
    if alone_until is not None and now.steady >= alone_until:
        error = f"no operator has watched its ranks for {ALONE_SECONDS} s, and they trained without all other workers"
        state = changes.end(state, stopped(changes.current_report(state, now))._replace(error=error), now)
        return changes.stop(state, now, ranks.FAILURE_GRACE)
    preparation, limit = state.preparation, state.settings.startup_timeout
    if preparation is None or now.steady < preparation.begun_at + limit or may_launch(state, now):
        return state
    error = f"worker 0 is not within reach after {limit:g} s: {state.contact.master.problem}"
    return changes.fail(state, failed(changes.current_report(state, now), "MasterUnreachable", error), now)


def may_launch(state: State, now: Now) -> bool:
    """Returns whether at most the setup line still delays the attempt's ranks."""
    if continuing.is_absent(state):
        # Joining ranks need no peers before they are ready.
        return True
    resolved_at = None if state.preparation is None else state.preparation.resolved_at
    patient = resolved_at is None or now.steady < resolved_at + RESOLVED_SECONDS
    return state.contact.master.reached or not patient


def _code_fetched(state: State, event: events.CodeFetched, _now: Now) -> State:
    code = state.code
    if event.digest != code.wanted:
        return state
    state = state._replace(code=code._replace(has=event.digest, problem=""))
    if code.before in ("", event.digest):
        return state
    # The old code caused the warm process's failures.
    state = state._replace(warm=state.warm._replace(failures=0, lacking=0, hopeless=False))
    settings = state.settings
    if settings.setup:
        # The setup line may install the new code's dependencies.
        state = state._replace(environ=None)
    if state.warm.runs and (settings.setup or settings.preload):
        return changes.post(state._replace(warm=state.warm._replace(ending=True)), actions.EndWarm())
    return state


def _code_refused(state: State, event: events.CodeRefused, _now: Now) -> State:
    if event.digest != state.code.wanted:
        return state
    return state._replace(code=state.code._replace(problem=event.error))


def _setup_ended(state: State, event: events.SetupEnded, now: Now) -> State:
    state = state._replace(setup_runs=False)
    if event.environ is not None:
        return state._replace(environ=event.environ)
    report = failed(changes.current_report(state, now), "LaunchError", event.error)
    if event.exit_code:
        report = report._replace(exit_code=event.exit_code, signal=event.signal)
    return changes.fail(state, report, now)


def _save_failed(state: State, event: events.SaveFailed, now: Now) -> State:
    # Without a saved report the attempt could be trained twice.
    begins = state.report is not None and state.report.state == "Starting"
    if not begins:
        return state
    state = state._replace(regrouping=None)
    return changes.fail(state, failed(changes.current_report(state, now), "LaunchError", event.error), now)


# The ranks


def _launched(state: State, event: events.Launched, now: Now) -> State:
    known = {} if event.wraps_ranks else {0: event.pid}
    way = None if state.way is None else state.way.launched(state.started, now.wall)
    awaited = 0 if event.pid else state.settings.processes
    run = Run(event.pid, event.wraps_ranks, event.first_rank, known, awaited, continuable=event.continuable)
    run = continuing.assigned(run, state)
    state = state._replace(way=way, run=run)
    # This happens after the start, so that the start doesn't wait for the description.
    return changes.post(state, actions.DescribeEnvironment(state.started, state.environ or {}))


def _launch_failed(state: State, event: events.LaunchFailed, now: Now) -> State:
    state = changes.end(state, failed(changes.current_report(state, now), "LaunchError", event.error), now)
    return state.change_run(lambda run: run._replace(awaited=0))


def _warm_process_ended(state: State, event: events.WarmProcessEnded, _now: Now) -> State:
    warm = state.warm._replace(runs=False, ending=False)
    if event.verdict == events.FAILED:
        warm = warm._replace(failures=warm.failures + 1)
    elif event.verdict == events.LACKING:
        warm = warm._replace(lacking=0 if state.applied is None else state.applied.attempt)
    elif event.verdict == events.HOPELESS:
        warm = warm._replace(hopeless=True)
    return state._replace(warm=warm)


def _modules_learned(state: State, event: events.ModulesLearned, _now: Now) -> State:
    state = state._replace(warm=state.warm._replace(modules=event.modules))
    return changes.post(state, actions.Publish(event.modules))


def _modules_received(state: State, event: Modules, _now: Now) -> State:
    if state.warm.modules is not None:
        return state
    return changes.post(state._replace(warm=state.warm._replace(modules=event)), actions.Preload(event))


def _process_ended(state: State, event: events.ProcessEnded, now: Now) -> State:
    state = state.change_run(lambda run: ranks.process_ended(run, state.ended, event))
    # Any other end is examined first, with the report unchanged.
    left_well = event.ending is not None and event.ending.exit_code == 0
    return continuing.refreshed(state, now) if left_well else state


def _rank_examined(state: State, event: events.RankExamined, now: Now) -> State:
    run = state.run
    report = None if run is None else ranks.rank_examined(run, changes.current_report(state, now), event)
    if run is None or report is None:
        return state
    return continuing.rank_failed(state, report, now)


def _rank_not_started(state: State, event: events.RankNotStarted, now: Now) -> State:
    run = state.run
    if run is None:
        return state
    state = state._replace(run=run._replace(endings={**run.endings, event.local_rank: Ending(1)}))
    rank, report = run.first_rank + event.local_rank, changes.current_report(state, now)
    return continuing.rank_failed(state, failed(report, "LaunchError", event.error, rank), now)


def _continuing_changed(state: State, event: events.ContinuingChanged, now: Now) -> State:
    if event.attempt != state.started:
        return state
    state = state.change_run(lambda run: run._replace(words=event.words, groups=event.groups))
    return continuing.refreshed(state, now)


def _launcher_examined(state: State, event: events.LauncherExamined, now: Now) -> State:
    if state.run is None:
        return state
    found = ranks.launcher_examined(state.run, state.ended, changes.current_report(state, now), event)
    return state._replace(run=found) if isinstance(found, Run) else changes.end(state, found, now)


def _store_ended(state: State, event: events.StoreEnded, now: Now) -> State:
    """End the attempt, because without a store the ranks would search for each other until their own timeouts."""
    run = state.run
    if run is None or event.attempt != state.started or run.continued or run.stopping or run.sweeping:
        return state
    error = last_lines(f"the process that serves torch's store has ended\n{event.evidence}", MAX_ERROR_CHARACTERS)
    return changes.fail(
        state, classify(changes.current_report(state, now), event.ending, None, error.rstrip(), event.oom_kills), now
    )


def _saving_ranks_found(state: State, event: events.SavingRanksFound, now: Now) -> State:
    state = state.change_run(lambda run: ranks.saving_ranks_found(run, event.seconds, now.steady))
    pids = () if state.run is None else ranks.unspared(state.run)
    return changes.post(state, actions.KillProcesses(pids)) if pids else state


def _run_emptied(state: State, _event: events.RunEmptied, now: Now) -> State:
    run = state.run
    if run is None:
        return state
    if run.conclude_at is not None:
        return state._replace(run=run._replace(emptied=True))
    return changes.finish(state, run, now)


def _ranks_up(state: State, event: events.RanksUp, now: Now) -> State:
    if event.attempt != state.started or state.run is None or state.run.continued or state.ended is not None:
        return state
    state = state._replace(report=changes.current_report(state, now)._replace(state="Running"))
    return continuing.refreshed(state, now)


def _progressed(state: State, event: events.Progressed, _now: Now) -> State:
    if event.line.attempt != state.started:
        return state
    line = event.line._replace(recovery=measured(state.way, event.line, event.first_step_at))
    return changes.post(state._replace(progress=line), actions.Publish(line))


def _rank_provoked(state: State, event: events.RankProvoked, now: Now) -> State:
    if event.attempt != state.started:
        return state
    return state.change_run(lambda run: run._replace(provoked=True, conclude_at=now.steady + ranks.PROVOKED_SECONDS))


def _attempt_failed(state: State, event: events.AttemptFailed, now: Now) -> State:
    if state.run is None or event.attempt != state.started:
        return state
    if not continuing.joins(state, event.rank):
        state = changes.seen(state, now, event.silent)
    report = failed(changes.current_report(state, now), event.reason, event.error, event.rank)
    hung = continuing.hung_rank(state, event.rank)
    state = continuing.rank_failed(state, report, now)
    state = changes.post(state, actions.KillProcesses((hung,))) if hung else state
    run = state.run
    return changes.finish(state, run, now) if run is not None and run.emptied else state


def _environment_described(state: State, event: Environment, _now: Now) -> State:
    if event.attempt != state.started:
        return state
    return changes.post(state._replace(environment=event), actions.Publish(event))


def _environment_printed(state: State, event: events.EnvironmentPrinted, _now: Now) -> State:
    return state._replace(printed_environment=event.line) if event.attempt == state.started else state


_UPDATES: dict[type, Callable[[State, Any, Now], State]] = {
    events.AssignmentReceived: _assignment_received,
    events.TerminationRequested: _termination_requested,
    events.DeadlinePassed: _deadline_passed,
    events.LeaderContactChanged: _contact_changed,
    events.LeaderJoined: lambda state, _, __: state._replace(introducing=True),
    Ack: lambda state, event, _: state._replace(acknowledged=max(state.acknowledged, event.attempt)),
    Stop: _stop_requested,
    Mismatch: _mismatch_found,
    Collect: _stall_message,
    Hung: _stall_message,
    Patience: _stall_message,
    events.CodeFetched: _code_fetched,
    events.CodeRefused: _code_refused,
    events.SetupEnded: _setup_ended,
    events.SaveFailed: _save_failed,
    events.Launched: _launched,
    events.LaunchFailed: _launch_failed,
    events.LauncherStarted: lambda state, event, _: state.change_run(
        lambda run: run._replace(launcher=event.pid, awaited=0, continuable=False)
    ),
    events.NothingForked: lambda state, _, __: state.change_run(lambda run: run._replace(awaited=0)),
    events.WarmProcessKilled: lambda state, _, __: state._replace(warm=state.warm._replace(ending=True)),
    events.WarmProcessEnded: _warm_process_ended,
    events.RanksForked: lambda state, _, __: state._replace(warm=state.warm._replace(failures=0, lacking=0)),
    events.ModulesLearned: _modules_learned,
    Modules: _modules_received,
    events.RankStarted: lambda state, event, _: state.change_run(lambda run: ranks.rank_started(run, event)),
    events.ProcessEnded: _process_ended,
    events.RankExamined: _rank_examined,
    events.RankNotStarted: _rank_not_started,
    events.ContinuingChanged: _continuing_changed,
    events.LauncherExamined: _launcher_examined,
    events.StoreEnded: _store_ended,
    events.SavingRanksFound: _saving_ranks_found,
    events.RunEmptied: _run_emptied,
    events.RanksUp: _ranks_up,
    events.Progressed: _progressed,
    events.RankProvoked: _rank_provoked,
    events.AttemptFailed: _attempt_failed,
    Environment: _environment_described,
    events.EnvironmentPrinted: _environment_printed,
}
