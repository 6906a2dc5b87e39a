"""Several events share these changes of the state, such as ending an attempt or stopping ranks. Pure."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.agent.planner import ranks
from trainmaster_operator.agent.planner.actions import CancelSetup
from trainmaster_operator.agent.planner.classification import failed, is_superseded, stopped
from trainmaster_operator.agent.planner.state import Now, Run, State, Way
from trainmaster_operator.wire.report import Report


def seen(state: State, now: Now, silent: float = 0.0) -> State:
    """Record the first sign that the attempt started last has ended. `silent`: a hung rank's seconds of silence."""
    if not state.started or state.way.attempt == state.started:
        return state
    return state._replace(way=Way(state.started, now.wall - silent, now.wall))


def post(state: State, action: Any) -> State:
    return state._replace(outbox=(*state.outbox, action))


def current_report(state: State, now: Now) -> Report:
    """Returns the newest attempt's report, on which the attempt's next report is based."""
    settings, described = state.settings, "" if state.environment is None else state.environment.line
    environment = state.printed_environment or described
    report = Report(state.started, settings.worker, settings.pod_uid, "Starting", settings.node, at=now.wall)
    return report._replace(environment=environment)


def failure(state: State, now: Now, reason: str, error: str, rank: int | None = None) -> Report:
    """Returns the report of a failure of the newest attempt that the agent itself found."""
    return failed(current_report(state, now), reason, error, rank)


def end(state: State, report: Report, now: Now) -> State:
    """End this worker's attempt. A new report replaces a known end only if it describes the cause better."""
    known = state.ended
    if known is not None and (not is_superseded(known, report) or known._replace(at=report.at) == report):
        return state
    state = seen(state, now) if report.state == "Failed" else state
    return state._replace(report=report, ended_at=now.steady, acknowledged=0, unflushed=state.run is not None)


def fail(state: State, report: Report, now: Now) -> State:
    """End the attempt with a cause found outside its ranks."""
    if state.run is not None:
        run = ranks.stop(state.run, now.steady, ranks.FAILURE_GRACE)
        return end(state._replace(run=run), report, now)
    return end_preparation(state, report, now)


def stop(state: State, now: Now, grace: float, delay: float = 0.0) -> State:
    """Stop the ranks: SIGTERM after `delay`, and SIGKILL `grace` later (seconds)."""
    if state.run is not None:
        return state._replace(run=ranks.stop(state.run, now.steady, grace, delay))
    return end_preparation(state, stopped(current_report(state, now)), now)


def end_preparation(state: State, report: Report, now: Now) -> State:
    if state.preparation is None:
        return state
    if state.setup_runs:
        state = post(state._replace(setup_runs=False), CancelSetup())
    return end(state._replace(preparation=None), report, now)


def finish(state: State, run: Run, now: Now) -> State:
    """Record that no process of the attempt runs any more."""
    if state.ended is None:
        report = current_report(state, now)
        finished = report._replace(state="Finished", exit_code=0, alone=state.ranks_are_alone)
        state = end(state, stopped(report, ranks.first_bad_ending(run)) if run.terminated else finished, now)
    elif state.ended.able:
        state = state._replace(report=state.ended._replace(able=False))
    return state._replace(run=None, way=state.way.stopped(state.started, now.wall), unflushed=True)
