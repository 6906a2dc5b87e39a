"""The executor: one loop, one queue of events, and the actions that the planner asks for.

Sockets, processes, files, timers and signals put events into the queue while the loop's round lasts; after it the
executor takes them one after the other: the state is updated, the plan made, its actions performed, until the plan is
empty. So nothing re-enters, and what is decided can be read, and tested, in `planner` alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from trainmaster.agent.assignment import AssignmentFile
from trainmaster.agent.authority import Authority
from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang.observation import Observation
from trainmaster.agent.hang.stall import StallWatch
from trainmaster.agent.loop import Loop
from trainmaster.agent.network.follower import Link
from trainmaster.agent.network.leader import Lead
from trainmaster.agent.network.metrics import render_metrics
from trainmaster.agent.network.resolve import lookup_hosts
from trainmaster.agent.network.server import Handlers, Server
from trainmaster.agent.planner import actions, events
from trainmaster.agent.planner.plan import done, plan, wake_at
from trainmaster.agent.planner.state import LeaderContact, Now
from trainmaster.agent.planner.update import initial, update
from trainmaster.agent.process import children, environment, saved_report
from trainmaster.agent.process.output import Printer
from trainmaster.agent.process.run import RunProcesses
from trainmaster.agent.process.setup_line import SetupLine
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.joining import Ack, Assigned, Environment, Mismatch, Reported, Stop, Watched, parse_from_leader
from trainmaster.wire.signing import job_token
from trainmaster.wire.stream import Ping, ProgressLine

FILE_SECONDS = 0.05
KEPT_ATTEMPTS = 5
LAST_ROUND_SECONDS = 0.01
"""Between the decision to leave and the end, so that the report gets onto the wire first."""


class Executor:
    """See the module. Everything happens in the loop's thread; `run` returns the exit code."""

    def __init__(self, settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._command = command
        self._loop = Loop()
        self._events: deque[events.Event] = deque()
        self._printers = (Printer(self._loop, 1), Printer(self._loop, 2))
        self._file = AssignmentFile(settings.assignment_file)
        self._authority = Authority(settings)
        self._setup = SetupLine(self._loop, settings.setup, environ, self._printers, self._events)
        self._processes: RunProcesses | None = None
        self._observation: Observation | None = None
        """It outlives its run, as the stall's diagnosis does."""
        self._stall: StallWatch | None = None
        self._complaint = ""
        os.makedirs(settings.state_dir, exist_ok=True)
        self._state = initial(settings, environ, saved_report.read_report(settings.state_dir), _now())
        self._leader = Lead(
            self._loop,
            settings,
            lambda attempt, grace, delay: self._events.append(Stop(attempt, grace, delay)),
            lambda attempt: self._events.append(Ack(attempt)),
            self._contact_changed,
            lambda attempt, lines: self._events.append(Mismatch(attempt, tuple(lines))),
            self._line_received,
        )
        self._follower = Link(
            self._loop,
            settings,
            lambda: self._events.append(events.LeaderJoined()),
            self._line_received,
            self._contact_changed,
        )
        self._server = Server(
            self._loop,
            settings,
            Handlers(
                token=lambda: job_token(settings.agents_secret, settings.job_uid),
                read=self._authority.read,
                offer=self._offer,
                acknowledge=self._leader.acknowledge,
                stream=self._leader.open_stream,
                join=self._leader.join,
                state=self._show_state,
                metrics=lambda: render_metrics(settings.job, settings.worker, self._state.report, self._ranks()),
            ),
        )

    def run(self, terminated_already: bool) -> int:
        """Run until it is told to stop or reports by exiting; returns the process's exit code.

        `terminated_already`: SIGTERM came before there was a loop. Raises LaunchError where the port is taken.
        """
        children.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._terminate)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        if self._settings.port:
            self._server.open()
        self._poll_file()
        if terminated_already:
            self._terminate()
        self._loop.call_every(FILE_SECONDS, self._poll_file)
        self._settle()
        while not self._loop.stopped:
            self._wait()
            self._settle()
        for printer in self._printers:
            printer.drain(1.0)
        return 1 if self._state.exit_code is None else self._state.exit_code

    def _settle(self) -> None:
        """Take the events in, one after the other, and do what each of them asks for."""
        self._carry_out(_now())
        while self._events:
            now = _now()
            self._state = update(self._state, self._events.popleft(), now)
            self._carry_out(now)

    def _carry_out(self, now: Now) -> None:
        planned = plan(self._state, now)
        while planned:
            for action in planned:
                result = self._perform(action)
                self._state = done(self._state, action, now)
                if result is not None:
                    self._state = update(self._state, result, now)
            planned = plan(self._state, now)
        run = self._state.run
        if self._processes is not None:
            self._processes.stopping = run is None or run.stopping
            self._processes.ended = run is None or self._state.ended is not None

    def _wait(self) -> None:
        """One round of the loop, at most until the plan's next deadline."""
        deadline = wake_at(self._state, _now())
        if deadline is None:
            self._loop.run_once()
            return
        self._loop.run_once(max(0.0, deadline - time.monotonic()))
        if time.monotonic() >= deadline:
            self._events.append(events.DeadlinePassed())

    # Actions

    def _perform(self, action: actions.Action) -> Optional[events.Event]:
        """Do it; returns what came of it, where that is known at once and matters."""
        return _PERFORMERS[type(action)](self, action)

    def _kill_leftovers(self, _action: actions.KillLeftovers) -> None:
        children.send(children.leftovers(self._settings.state_dir), signal.SIGKILL)

    def _follow(self, action: actions.FollowAssignment) -> events.Event:
        self._leader.assignment_changed(action.assignment)
        self._follower.assignment_changed(action.assignment)
        return events.LeaderContactChanged(self._contact())

    def _begin(self, action: actions.Begin) -> Optional[events.Event]:
        try:
            saved_report.write_report(self._settings.state_dir, action.report)
            saved_report.prune_attempts(self._settings.state_dir, KEPT_ATTEMPTS)
        except OSError as error:
            return events.SaveFailed(f"cannot write {error.filename}: {error.strerror}")
        return None

    def _hurry(self, _action: actions.Hurry) -> None:
        self._follower.hurry()

    def _run_setup(self, _action: actions.RunSetup) -> None:
        self._setup.start()

    def _cancel_setup(self, _action: actions.CancelSetup) -> None:
        self._setup.cancel()

    def _launch(self, action: actions.Launch) -> events.Event:
        assignment, settings = action.assignment, self._settings
        address = lookup_hosts(settings.hosts_file, assignment.master)
        if assignment.master == assignment.hosts[action.node_rank]:
            # Rank 0 doesn't wait for its own name: DNS, or the hosts file, may not have it for a while, and its store
            # would look for itself in vain.
            address = settings.pod_ip or address
        if address:
            assignment = assignment._replace(hosts=(address, *assignment.hosts[1:]))
        run = RunProcesses(self._loop, settings, assignment, action.node_rank, self._printers, self._events)
        try:
            launched = run.start(self._command, action.environ)
        except LaunchError as error:
            return events.LaunchFailed(str(error)[-2_000:])
        except OSError as error:
            return events.LaunchFailed(f"cannot write {error.filename}: {error.strerror}")
        self._processes = run
        observation = Observation(
            self._loop,
            settings,
            run,
            lambda: self._events.append(events.RanksUp(run.attempt)),
            lambda line: self._events.append(events.Progressed(ProgressLine.parse(line))),
            lambda: stall.begin(),
        )
        stall = StallWatch(
            self._loop, settings, run, observation, self._send_diagnosis, self._follower.leave_lead, self._events
        )
        self._observation, self._stall = observation, stall
        return launched

    def _describe_environment(self, action: actions.DescribeEnvironment) -> None:
        """In a thread: code and packages may lie on a file server that has gone, and the agent answers all the same."""
        import threading

        def describe() -> None:
            found = environment.describe(self._command, action.environ, self._settings.config_file)
            described = Environment(action.attempt, found)
            self._loop.call_from_thread(lambda: self._events.append(described))

        threading.Thread(target=describe, name="describe", daemon=True).start()

    def _examine_rank(self, action: actions.ExamineRank) -> Optional[events.Event]:
        return None if self._processes is None else self._processes.examine_rank(action)

    def _examine_launcher(self, action: actions.ExamineLauncher) -> Optional[events.Event]:
        return None if self._processes is None else self._processes.examine_launcher(action)

    def _terminate_ranks(self, action: actions.Terminate) -> None:
        if self._processes is not None:
            self._processes.terminate(action)

    def _sweep(self, _action: actions.Sweep) -> None:
        if self._processes is not None:
            self._processes.sweep()

    def _conclude(self, _action: actions.Conclude) -> Optional[events.Event]:
        return None if self._stall is None else self._stall.conclude()

    def _flush_progress(self, _action: actions.FlushProgress) -> Optional[events.Event]:
        line = None if self._observation is None else self._observation.finish()
        return None if line is None else events.Progressed(ProgressLine.parse(line))

    def _save_report(self, action: actions.SaveReport) -> Optional[events.Event]:
        try:
            saved_report.write_report(self._settings.state_dir, action.report, exited=action.exited)
        except OSError as error:
            self._complain(f"cannot write the report: {error.strerror}")
        return None

    def _publish_report(self, action: actions.PublishReport) -> None:
        self._leader.take_report(action.report)
        self._follower.send(Reported(action.report).to_wire())

    def _publish(self, action: actions.Publish) -> None:
        line = action.message.to_wire()
        if isinstance(action.message, Environment):
            self._leader.take_environment(action.message.attempt, line["environment"])
        else:
            self._leader.take_progress(self._settings.worker, line)
        self._follower.send(line)

    def _send_to_leader(self, action: actions.SendToLeader) -> None:
        self._send_diagnosis(action.message.to_wire())

    def _introduce(self, action: actions.Introduce) -> None:
        self._follower.introduce([message.to_wire() for message in action.messages])

    def _keep_report(self, action: actions.KeepReport) -> None:
        self._leader.take_report(action.report)

    def _diagnose(self, action: actions.Diagnose) -> None:
        if self._stall is not None:
            self._stall.told(action.message.to_wire())

    def _write_termination_message(self, action: actions.WriteTerminationMessage) -> None:
        try:
            with open(self._settings.termination_log, "w", encoding="utf-8") as file:
                file.write(action.report.termination_message())
        except OSError as error:
            self._complain(f"cannot write the termination message: {error.strerror}")

    def _exit(self, _action: actions.Exit) -> None:
        self._loop.call_later(LAST_ROUND_SECONDS, self._loop.stop)

    # Events

    def _terminate(self) -> None:
        self._events.append(events.TerminationRequested())

    def _reap(self) -> None:
        for pid, ending in children.reap().items():
            self._setup.process_ended(pid, ending)
            if self._processes is not None:
                self._processes.process_ended(pid, ending)

    def _poll_file(self) -> None:
        try:
            data = self._file.poll()
            if data is not None:
                self._events.append(events.AssignmentReceived(self._authority.read(data)))
        except ProtocolError as error:
            self._complain(f"{self._settings.assignment_file}: {error}")

    def _line_received(self, line: dict[str, Any]) -> None:
        """A line of whoever leads, this worker's own leader included."""
        try:
            message = parse_from_leader(line)
            if isinstance(message, Assigned):
                self._events.append(events.AssignmentReceived(self._authority.read(message.assignment)))
            elif not isinstance(message, (Watched, Ping)):
                self._events.append(message)
        except ProtocolError as error:
            self._complain(str(error))

    def _contact_changed(self) -> None:
        self._events.append(events.LeaderContactChanged(self._contact()))

    # Views

    def _contact(self) -> LeaderContact:
        leader = self._follower.lead
        if leader == self._settings.worker:
            watched = self._leader.followed
        else:
            # While it isn't known who leads, somebody may watch.
            watched = self._follower.followed or leader is None
        return LeaderContact(leader, watched, self._follower.contact)

    def _ranks(self) -> dict[str, dict[str, Any]]:
        """What is known of each rank of the newest attempt that was launched."""
        return {} if self._observation is None else self._observation.ranks

    def _show_state(self) -> dict[str, Any]:
        state = self._state
        return {
            "worker": self._settings.worker,
            "uid": self._settings.pod_uid,
            "leader": self._follower.lead,
            "assignment": None if state.assignment is None else state.assignment.to_wire(),
            "report": state.report.to_wire() if state.report else None,
            "progress": self._ranks(),
            "environment": {} if state.environment is None else state.environment.environment,
            "workers": self._leader.state(),
        }

    def _offer(self, assignment: Assignment) -> Assignment:
        """A pushed assignment; returns the one that then holds."""
        self._events.append(events.AssignmentReceived(assignment))
        self._settle()
        return self._state.assignment or assignment

    def _send_diagnosis(self, line: dict[str, Any]) -> bool:
        """What is only for whoever leads now; False where nobody does."""
        if self._follower.lead == self._settings.worker:
            if line["type"] == "evidence":
                self._leader.take_evidence(self._settings.worker, line)
            elif line["type"] == "stalled":
                self._leader.take_stall(line["attempt"])
            return True
        self._follower.send(line)
        return self._follower.lead is not None

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._printers[1].write(f"[agent]: {sentence}\n".encode())


def _now() -> Now:
    return Now(time.monotonic(), time.time())


_PERFORMERS: dict[type, Callable[[Executor, Any], Optional[events.Event]]] = {
    actions.KillLeftovers: Executor._kill_leftovers,
    actions.FollowAssignment: Executor._follow,
    actions.Begin: Executor._begin,
    actions.Hurry: Executor._hurry,
    actions.RunSetup: Executor._run_setup,
    actions.CancelSetup: Executor._cancel_setup,
    actions.Launch: Executor._launch,
    actions.DescribeEnvironment: Executor._describe_environment,
    actions.ExamineRank: Executor._examine_rank,
    actions.ExamineLauncher: Executor._examine_launcher,
    actions.Terminate: Executor._terminate_ranks,
    actions.Sweep: Executor._sweep,
    actions.Conclude: Executor._conclude,
    actions.FlushProgress: Executor._flush_progress,
    actions.SaveReport: Executor._save_report,
    actions.PublishReport: Executor._publish_report,
    actions.Publish: Executor._publish,
    actions.SendToLeader: Executor._send_to_leader,
    actions.Introduce: Executor._introduce,
    actions.KeepReport: Executor._keep_report,
    actions.Diagnose: Executor._diagnose,
    actions.WriteTerminationMessage: Executor._write_termination_message,
    actions.Exit: Executor._exit,
}
