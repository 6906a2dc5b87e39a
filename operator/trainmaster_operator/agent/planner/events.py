"""Events come from sockets, processes, files, timers and signals. An event's `update` returns the next state. Pure.

The executor handles the events one by one. The leader's messages (`wire.joining`) are events too, and so is this
worker's own `Environment`, once it is known. Their changes are at the end of this module. A few events are the
immediate results of the executor's actions (`Launched`, `RankExamined`, `SaveFailed` …).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional, Protocol, Union, cast

from trainmaster_operator.agent.planner import actions, changes, continuing, ranks
from trainmaster_operator.agent.planner.classification import Ending, classify, stopped
from trainmaster_operator.agent.planner.plan import may_launch
from trainmaster_operator.agent.planner.state import LeaderContact, Now, Run, SavedReport, State, measured
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment, newer
from trainmaster_operator.wire.joining import (
    Ack,
    Collect,
    Environment,
    Hung,
    Joined,
    Mismatch,
    Modules,
    Patience,
    Reported,
    Stop,
)
from trainmaster_operator.wire.limits import ALONE_SECONDS, MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.stream import EvidenceLine, Ping, ProgressLine
from trainmaster_operator.wire.values import last_lines

NEW_LEADER_SECONDS = 2.0
"""An operator is assumed to watch a new leader within this time. Without this assumption, each worker with a report
would exit as soon as its leader is lost, before an operator could watch the next leader. Its restart would then wait
for the kubelet's back-off (measured: 10, 20, 40 s)."""


MEET_SECONDS = 120.0
"""Ranks that make steps this long after their start without a process group are reported to train alone."""


class OwnEvent(Protocol):
    """OwnEvent is the interface of this module's events."""

    def update(self, state: State, now: Now) -> State:
        """Returns the state after the event."""


Event = Union[OwnEvent, Ack, Stop, Mismatch, Collect, Hung, Patience, Modules, Environment]


def initial(settings: AgentSettings, environ: Mapping[str, str], saved: SavedReport | None, now: Now) -> State:
    """Returns a starting agent's state. `saved`: the previous agent's report in the state folder."""
    state = State(settings, environ=None if settings.setup else environ)
    if saved is None:
        return state
    report = saved.report._replace(uid=settings.pod_uid, able=False, ready=False)
    # Processes of the earlier agent may still live.
    state = changes.post(state._replace(started=report.attempt), actions.KillLeftovers())
    if report.ended:
        return state._replace(report=report, saved=saved._replace(report=report), ended_at=now.steady)
    error = "the agent of this attempt ended without a report; its container was killed or its node restarted"
    return changes.end(state, changes.failure(state, now, "AgentLost", error), now)


def update(state: State, event: Event, now: Now) -> State:
    """Returns the state after an event."""
    change = _MESSAGES.get(type(event))
    if change is not None:
        return change(state, event, now)
    # An event of an earlier attempt is late, and is ignored.
    late = getattr(event, "attempt", state.started) != state.started
    return state if late else cast(OwnEvent, event).update(state, now)


# Requests and deadlines


class AssignmentReceived(NamedTuple):
    """A verified assignment arrived: from the annotation's file, a push to this agent, or the leader."""

    assignment: Assignment

    def update(self, state: State, now: Now) -> State:
        assignment, known = self.assignment, state.assignment
        if state.exit_code is not None or not newer(known, assignment):
            # A terminating agent starts nothing more: the next agent finds the assignment in the file.
            return state
        state = state._replace(assignment=assignment)
        if state.node_rank is not None and assignment.attempt == state.started:
            return state
        continues_here = continuing.continues_here(state)
        if not continues_here or not set(assignment.absent) <= set(known.absent):
            # If the new attempt only lets absent ranks join, no fault led to it.
            state = changes.seen(state, now)
        if state.node_rank is not None:
            state = state._replace(way=state.way.assigned(assignment.attempt, now.wall))
        if continues_here:
            return state
        leaves_group = assignment.continues is not None and state.node_rank is not None and not state.present
        if state.run is not None and leaves_group:
            # Kill the ranks at once, because others continue without them.
            run = state.run._replace(terminated=True, terminate_at=None, kill_at=now.steady, last_kill_at=now.steady)
            return state._replace(run=run)
        return state if state.terminating else changes.stop(state, now, assignment.grace_seconds)


class TerminationRequested(NamedTuple):
    """SIGTERM has arrived: the ranks get the pod's whole grace period, and then the agent exits."""

    def update(self, state: State, now: Now) -> State:
        if state.terminating:
            return state
        grace, waits = state.settings.grace_seconds, continuing.patience(state) > 0
        state = state._replace(terminating=True)
        if waits:
            return state.change_run(lambda run: ranks.leave(run, now.steady, grace))
        return changes.stop(state, now, grace)


class DeadlinePassed(NamedTuple):
    """A deadline of `plan.wake_at` has passed."""

    def update(self, state: State, now: Now) -> State:
        alone_until = continuing.alone_until(state)
        if alone_until is not None and now.steady >= alone_until:
            unwatched = f"no operator has watched its ranks for {ALONE_SECONDS} s"
            error = f"{unwatched}, and they trained without all other workers"
            state = changes.end(state, stopped(changes.current_report(state, now))._replace(error=error), now)
            return changes.stop(state, now, ranks.FAILURE_GRACE)
        preparation, limit = state.preparation, state.settings.startup_timeout
        # If worker 0 is within reach, exec programs wait for the others. The operator limits this wait.
        waits_for_all = state.settings.launcher == "exec" and state.contact.master.reached
        if preparation is None or now.steady < preparation.begun_at + limit or waits_for_all or may_launch(state, now):
            return state
        error = f"worker 0 is not within reach after {limit:g} s: {state.contact.master.problem}"
        return changes.fail(state, changes.failure(state, now, "MasterUnreachable", error), now)


class LeaderContactChanged(NamedTuple):
    """The leader, the presence of an operator, or the contact with worker 0 has changed."""

    contact: LeaderContact

    def update(self, state: State, now: Now) -> State:
        contact, preparation = self.contact, state.preparation
        state = state._replace(contact=contact)
        if contact.leader is not None and contact.leader != state.known_leader:
            state = state._replace(known_leader=contact.leader, new_leader_until=now.steady + NEW_LEADER_SECONDS)
        if contact.watched or state.unwatched_at is None:
            state = state._replace(unwatched_at=None if contact.watched else now.steady)
        if preparation is not None and preparation.resolved_at is None and contact.master.resolved:
            state = state._replace(preparation=preparation._replace(resolved_at=now.steady))
        return state


class LeaderJoined(NamedTuple):
    """A connection to a leader is open, and nothing has been sent on it yet: introduce this worker."""

    def update(self, state: State, _now: Now) -> State:
        settings = state.settings
        seen = max(0, state.assignment.attempt)
        reports = (Reported(report) for report in (state.previous, state.published) if report is not None)
        known = (state.warm.modules, state.environment, *reports, state.progress)
        hello = Joined(settings.job_uid, settings.worker, settings.pod_uid, seen)
        return changes.post(state, actions.Introduce((hello, *(message for message in known if message is not None))))


# Before the ranks


class CodeFetched(NamedTuple):
    """The folder of the user's code contains this archive's files."""

    digest: str

    def update(self, state: State, _now: Now) -> State:
        code, settings = state.code, state.settings
        if self.digest != code.wanted:
            return state
        state = state._replace(code=code._replace(has=self.digest, problem=""))
        if code.before in ("", self.digest):
            return state
        # The warm process's failures may be due to the old code, so they no longer count.
        state = state._replace(warm=state.warm._replace(failures=0, lacking=0, hopeless=False))
        if settings.setup:
            # The setup line may install the new code's dependencies.
            state = state._replace(environ=None)
        if state.warm.runs and (settings.setup or settings.preload):
            return changes.post(state._replace(warm=state.warm._replace(ending=True)), actions.EndWarm())
        return state


class CodeRefused(NamedTuple):
    """The archive didn't appear in time, or can't be unpacked."""

    digest: str
    error: str

    def update(self, state: State, _now: Now) -> State:
        code = state.code
        return state._replace(code=code._replace(problem=self.error)) if self.digest == code.wanted else state


class SetupEnded(NamedTuple):
    """The setup line has ended: its environment is known, or it has failed."""

    environ: Optional[Mapping[str, str]]
    exit_code: int = 0
    signal: Optional[int] = None
    error: str = ""

    def update(self, state: State, now: Now) -> State:
        state = state._replace(setup_runs=False)
        if self.environ is not None:
            return state._replace(environ=self.environ)
        report = changes.failure(state, now, "LaunchError", self.error)
        if self.exit_code:
            report = report._replace(exit_code=self.exit_code, signal=self.signal)
        return changes.fail(state, report, now)


class SaveFailed(NamedTuple):
    """A report could not be written to the state folder. Without it the attempt could be trained twice."""

    error: str

    def update(self, state: State, now: Now) -> State:
        if state.report is None or state.report.state != "Starting":
            return state
        report = changes.failure(state, now, "LaunchError", self.error)
        return changes.fail(state._replace(regrouping=None), report, now)


# The start of the ranks


class Launched(NamedTuple):
    """The launcher runs, or the warm process has been ordered to fork ranks."""

    pid: int
    """The launcher's pid; 0: there is none."""
    wraps_ranks: bool
    """Whether the ranks announce themselves. If they don't, the launcher counts as the only rank."""
    first_rank: int
    continuable: bool = False
    """Whether the agent has started the ranks itself, so that they can continue in another attempt."""

    def update(self, state: State, now: Now) -> State:
        everyone = tuple(range(state.settings.processes))
        present = everyone if state.node_rank is None else state.present
        run = Run(
            self.pid,
            self.wraps_ranks,
            self.first_rank,
            ranks={} if self.wraps_ranks else {0: self.pid},
            awaited=0 if self.pid else state.settings.processes,
            continuable=self.continuable,
            continued=state.assignment.continues is not None,
            present=present,
            absent=tuple(rank for rank in everyone if rank not in present),
            launched_at=now.steady,
        )
        state = state._replace(way=state.way.launched(state.started, now.wall), run=run)
        # The environment is described after the start, so that the start doesn't wait for it.
        return changes.post(state, actions.DescribeEnvironment(state.started, state.environ or {}))


class LaunchFailed(NamedTuple):
    """The launcher couldn't be started."""

    error: str

    def update(self, state: State, now: Now) -> State:
        state = changes.end(state, changes.failure(state, now, "LaunchError", self.error), now)
        return state.change_run(lambda run: run._replace(awaited=0))


class RankStarted(NamedTuple):
    """A rank has announced itself."""

    local_rank: int
    pid: int

    def update(self, state: State, _now: Now) -> State:
        run = state.run
        if run is None:
            return state
        # If the other ranks were sent SIGTERM, this rank gets it too.
        late = (*run.late, self.pid) if run.terminated else run.late
        return state._replace(run=run._replace(ranks={**run.ranks, self.local_rank: self.pid}, late=late))


class RankNotStarted(NamedTuple):
    """A joining rank couldn't be started."""

    local_rank: int
    error: str

    def update(self, state: State, now: Now) -> State:
        run = state.run
        if run is None:
            return state
        state = state._replace(run=run._replace(endings={**run.endings, self.local_rank: Ending(1)}))
        report = changes.failure(state, now, "LaunchError", self.error, run.first_rank + self.local_rank)
        return continuing.rank_failed(state, report, now)


class RanksUp(NamedTuple):
    """All ranks of this worker have been started and have shown a sign of life."""

    attempt: int

    def update(self, state: State, now: Now) -> State:
        if state.run is None or state.run.continued or state.ended is not None:
            return state
        state = state._replace(report=changes.current_report(state, now)._replace(state="Running"))
        return continuing.refreshed(state, now)


class EnvironmentPrinted(NamedTuple):
    """A rank has printed its environment."""

    attempt: int
    line: str

    def update(self, state: State, _now: Now) -> State:
        return state._replace(printed_environment=self.line)


# The warm process


class NothingForked(NamedTuple):
    """The warm process has forked no ranks, and they are no longer needed."""

    def update(self, state: State, _now: Now) -> State:
        return state.change_run(lambda run: run._replace(awaited=0))


class RanksForked(NamedTuple):
    """The warm process has forked all ranks."""

    def update(self, state: State, _now: Now) -> State:
        return state._replace(warm=state.warm._replace(failures=0, lacking=0))


KILLED = "killed"
"""The agent itself has killed the warm process, so the next warm process may work."""
FAILED = "failed"
"""The warm process ended by itself, was killed from outside, or didn't answer in time. The next one may work."""
LACKING = "lacking"
"""The warm process lacked memory, disk space, processes or torch. A warm process may work in the next attempt."""
HOPELESS = "hopeless"
"""Another warm process would fail too, because of the command, the Python, torch, or the memory that ranks need."""


class WarmProcessKilled(NamedTuple):
    """The warm process was sent SIGKILL. `WarmProcessEnded` will follow."""

    def update(self, state: State, _now: Now) -> State:
        return state._replace(warm=state.warm._replace(ending=True))


class WarmProcessEnded(NamedTuple):
    """The warm process has ended, or couldn't be started."""

    verdict: str
    """The prospects of the next process: one of the four constants above."""

    def update(self, state: State, _now: Now) -> State:
        warm = state.warm._replace(runs=False, ending=False)
        if self.verdict == FAILED:
            warm = warm._replace(failures=warm.failures + 1)
        elif self.verdict == LACKING:
            warm = warm._replace(lacking=max(0, state.applied.attempt))
        elif self.verdict == HOPELESS:
            warm = warm._replace(hopeless=True)
        return state._replace(warm=warm)


class ModulesLearned(NamedTuple):
    """The warm process has imported the modules that one of this worker's ranks had imported by its first step."""

    modules: Modules

    def update(self, state: State, _now: Now) -> State:
        state = state._replace(warm=state.warm._replace(modules=self.modules))
        return changes.post(state, actions.Publish(self.modules))


# The ranks


class Progressed(NamedTuple):
    """There is a line of progress to publish."""

    line: ProgressLine
    first_step_at: Optional[float] = None
    """When the last rank of this worker finished the attempt's first step (seconds since the epoch)."""

    def update(self, state: State, now: Now) -> State:
        if self.line.attempt != state.started:
            return state
        report, steps = state.report, [rank.step for rank in self.line.ranks.values() if rank.step]
        if steps and report is not None and report.state == "Running" and state.run is not None:
            alone = state.ranks_are_alone and now.steady >= state.run.launched_at + MEET_SECONDS
            if alone != report.alone:
                state = state._replace(report=report._replace(alone=alone, at=now.wall))
        line = self.line._replace(recovery=measured(state.way, self.line, self.first_step_at))
        return changes.post(state._replace(progress=line), actions.Publish(line))


class ContinuingChanged(NamedTuple):
    """Ranks' readiness to continue has changed; both mappings are by local rank."""

    attempt: int
    words: Mapping[int, str]
    """`able` or `ready`."""
    groups: Mapping[int, int]
    """The attempt of the group that each rank is in."""

    def update(self, state: State, now: Now) -> State:
        state = state.change_run(lambda run: run._replace(words=self.words, groups=self.groups))
        return continuing.refreshed(state, now)


class AttemptFailed(NamedTuple):
    """The agent itself has found that the attempt has failed on this worker."""

    attempt: int
    reason: str
    error: str
    rank: Optional[int] = None
    silent: float = 0.0
    """How long the rank had made no progress (seconds)."""

    def update(self, state: State, now: Now) -> State:
        if state.run is None:
            return state
        if not continuing.joins(state, self.rank):
            state = changes.seen(state, now, self.silent)
        report = changes.failure(state, now, self.reason, self.error, self.rank)
        hung = continuing.hung_rank(state, self.rank)
        state = continuing.rank_failed(state, report, now)
        state = changes.post(state, actions.KillProcesses((hung,))) if hung else state
        run = state.run
        return changes.finish(state, run, now) if run is not None and run.emptied else state


class RankRaised(NamedTuple):
    """A rank has reported an exception that ends it. The process still lives: its exit takes a while.

    If the exception only shows that a peer is lost, the rank's end counts as before, so that the rank at fault has time
    to end first.
    """

    local_rank: int
    pid: int
    error: str

    def update(self, state: State, now: Now) -> State:
        run = state.run
        if run is None or run.provoked or run.ranks.get(self.local_rank) != self.pid or self.local_rank in run.endings:
            return state
        # Python exits with 1 after an exception.
        rank = run.first_rank + self.local_rank
        report = classify(changes.current_report(state, now), Ending(1), rank, self.error, 0)
        if not report.culprit or run.planned or (run.terminated and state.ended is not None and state.ended.culprit):
            return state
        state = state._replace(run=run._replace(raised={**run.raised, self.local_rank: now.steady}))
        return continuing.rank_failed(state, report, now)


class GroupWatched(NamedTuple):
    """A process has imported torch, and will report its process group."""

    pid: int

    def update(self, state: State, _now: Now) -> State:
        return state.change_run(lambda run: run._replace(watched=run.watched | {self.pid}))


class GroupFormed(NamedTuple):
    """A process has formed a group with other ranks."""

    def update(self, state: State, _now: Now) -> State:
        return state.change_run(lambda run: run._replace(met=True))


class RankProvoked(NamedTuple):
    """A hung rank was ended in a way that makes it print its stacks."""

    attempt: int

    def update(self, state: State, now: Now) -> State:
        return state.change_run(
            lambda run: run._replace(provoked=True, conclude_at=now.steady + ranks.PROVOKED_SECONDS)
        )


class ProcessEnded(NamedTuple):
    """A child of the agent, or a watched rank, has ended."""

    pid: int
    ending: Optional[Ending]
    """None if another process has reaped this one, and the kernel doesn't show the status to the agent."""
    unseen: frozenset[int] = frozenset()
    """Pids of other ranks that have ended, but whose events haven't been handled yet."""

    def update(self, state: State, now: Now) -> State:
        before = state.run
        state = state.change_run(lambda run: ranks.process_ended(run, state.ended, *self))
        if before is not None and not before.terminated and self.pid in map(before.ranks.get, before.leaving):
            state = changes.post(state, actions.KillRemains(self.pid))
        # After any other end, the rank is examined before the report is changed.
        left_well = self.ending is not None and self.ending.exit_code == 0
        return continuing.refreshed(state, now) if left_well else state


class RankExamined(NamedTuple):
    """An ended rank's output and files were examined."""

    local_rank: int
    ending: Ending
    was_ended: bool
    """Whether the agent or torchrun had ended the rank."""
    raised: bool
    """Whether the rank's error file contains an exception that isn't merely due to a lost peer."""
    evidence: str
    oom_kills: int
    """Out-of-memory kills in this container since the attempt began."""

    def update(self, state: State, now: Now) -> State:
        run, ending = state.run, self.ending
        if run is None or (self.was_ended and not self.raised):
            return state
        if self.was_ended and ending.signal is not None:
            ending = Ending(1)
        rank = run.first_rank + self.local_rank
        report = classify(changes.current_report(state, now), ending, rank, self.evidence, self.oom_kills)
        return continuing.rank_failed(state, report, now)


class LauncherExamined(NamedTuple):
    """The last output of an ended launcher was examined."""

    ending: Ending
    evidence: str
    oom_kills: int

    def update(self, state: State, now: Now) -> State:
        if state.run is None:
            return state
        found = ranks.launcher_examined(state.run, state.ended, changes.current_report(state, now), *self)
        return state._replace(run=found) if isinstance(found, Run) else changes.end(state, found, now)


class StoreEnded(NamedTuple):
    """The process that serves torch's store to the ranks has failed.

    Without a store the ranks would wait for each other until their own timeouts.
    """

    attempt: int
    ending: Ending
    evidence: str
    oom_kills: int

    def update(self, state: State, now: Now) -> State:
        run = state.run
        if run is None or run.continued or run.stopping or run.sweeping:
            return state
        error = last_lines(f"the process that serves torch's store has ended\n{self.evidence}", MAX_ERROR_CHARACTERS)
        report = changes.current_report(state, now)
        return changes.fail(state, classify(report, self.ending, None, error.rstrip(), self.oom_kills), now)


class SavingRanksFound(NamedTuple):
    """The agent has checked which ranks are writing their state."""

    seconds: Mapping[int, float]
    """The seconds that each rank requests, by local rank; 0 if the rank has written its state."""

    def update(self, state: State, now: Now) -> State:
        state = state.change_run(lambda run: ranks.saving_ranks_found(run, self.seconds, now.steady))
        pids = () if state.run is None else ranks.unspared(state.run)
        return changes.post(state, actions.KillProcesses(pids)) if pids else state


class RunEmptied(NamedTuple):
    """The attempt has no processes left."""

    def update(self, state: State, now: Now) -> State:
        run = state.run
        if run is None:
            return state
        if run.conclude_at is not None:
            return state._replace(run=run._replace(emptied=True))
        return changes.finish(state, run, now)


# The leader's messages, and the description of this worker's own environment


def _stop_requested(state: State, event: Stop, now: Now) -> State:
    if event.report is not None and event.report.worker != state.settings.worker:
        # If an operator watches this worker instead of the leader, it must receive the failure before the reports of
        # the stopped ranks.
        state = changes.post(state, actions.KeepReport(event.report))
    if event.attempt != state.started or continuing.is_absent(state):
        return state
    return changes.stop(changes.seen(state, now), now, event.grace_seconds, event.after_seconds)


def _mismatch_found(state: State, event: Mismatch, now: Now) -> State:
    if event.attempt != state.started:
        return state
    error = ("the workers' environments differ:\n" + "\n".join(event.lines))[:MAX_ERROR_CHARACTERS]
    return changes.fail(state, changes.failure(state, now, "PreflightMismatch", error), now)


def _stall_message(state: State, event: Collect | Hung | Patience, now: Now) -> State:
    if isinstance(event, Collect):
        # Answer at once, because collecting the evidence may take longer than the leader waits for an answer.
        state = changes.post(state, actions.SendToLeader(Ping()))
    run = state.run
    can_hang = run is not None and run.present and not run.stopping and state.ended is None
    if can_hang and event.attempt == state.started:
        return changes.post(state, actions.Diagnose(event))
    if not isinstance(event, Collect):
        return state
    # No rank of this worker can hang. The worker answers anyway, because its agent would count as lost otherwise.
    line = EvidenceLine(event.attempt, state.settings.worker, {}, now.wall, request=event.request, notice=event.notice)
    return changes.post(state, actions.SendToLeader(line))


def _modules_received(state: State, event: Modules, _now: Now) -> State:
    if state.warm.modules is not None:
        return state
    return changes.post(state._replace(warm=state.warm._replace(modules=event)), actions.Preload(event))


def _environment_described(state: State, event: Environment, _now: Now) -> State:
    if event.attempt != state.started:
        return state
    return changes.post(state._replace(environment=event), actions.Publish(event))


_MESSAGES: dict[type, Callable[[State, Any, Now], State]] = {
    Ack: lambda state, event, _: state._replace(acknowledged=max(state.acknowledged, event.attempt)),
    Stop: _stop_requested,
    Mismatch: _mismatch_found,
    Collect: _stall_message,
    Hung: _stall_message,
    Patience: _stall_message,
    Modules: _modules_received,
    Environment: _environment_described,
}
