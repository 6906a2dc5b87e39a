"""The executor runs one loop, one queue of events, and the planner's actions.

During a round of the loop, connections, processes, files, timers and signals put events into the queue. After the round
the executor handles the events one by one. For each event (`_take`) it updates the state, makes a plan and performs the
plan's actions, and it repeats the last two until the plan is empty. An action's result is handled at once; any other
event that an action causes waits in the queue. There are two exceptions: a pushed assignment is handled during the
round, and a change of the contact with the leader is handled after the round, before the queued events. All decisions
are in `planner`, so tests of the decisions need no executor.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from trainmaster_operator.agent import library
from trainmaster_operator.agent.authority import AssignmentFile, Authority
from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.http import BadRequest, response
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.network.connections import Delivery
from trainmaster_operator.agent.network.joining import with_master_address
from trainmaster_operator.agent.network.metrics import render_metrics, state_bytes
from trainmaster_operator.agent.network.network import Network, present
from trainmaster_operator.agent.network.server import METRICS_TYPE, json_of
from trainmaster_operator.agent.planner import actions, events
from trainmaster_operator.agent.planner.events import initial, update
from trainmaster_operator.agent.planner.plan import plan, wake_at
from trainmaster_operator.agent.planner.state import NO_ASSIGNMENT, Now
from trainmaster_operator.agent.process import children, preflight, state_folder
from trainmaster_operator.agent.process.launcher import Launch
from trainmaster_operator.agent.process.output import PrintedEnd, Printer, Printers
from trainmaster_operator.agent.process.rank_processes import RankStarts
from trainmaster_operator.agent.process.run import RunProcesses, problem_of
from trainmaster_operator.agent.process.setup_line import SetupLine
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.joining import Assigned, Environment, Gathered, Reported, Watched
from trainmaster_operator.wire.log_rules import NONE
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import OutputLine, Ping, ProgressLine, SystemLine, newest_lines, output_share
from trainmaster_operator.wire.system import SystemSample
from trainmaster_operator.wire.values import ProtocolError

if TYPE_CHECKING:
    from trainmaster_operator.agent.hang.watch import RankWatch
    from trainmaster_operator.agent.process.code import CodeFolder
    from trainmaster_operator.agent.process.system import SystemSampler
    from trainmaster_operator.agent.progress.trainer import TrainerServer
    from trainmaster_operator.agent.warm.learning import Learning
    from trainmaster_operator.agent.warm.warm_process import WarmProcess

FILE_SECONDS, PUSHED_FILE_SECONDS = 0.05, 0.5
"""Time between two checks of the assignment's file; the second value applies while an operator can push."""
CONFIG_FILE = "/etc/trainmaster/training.yaml"
"""The training loop's configuration. Its hash is part of the environment that is compared across workers."""
KEPT_ATTEMPTS = 5
LAST_ROUND_SECONDS = 0.01
"""The time between the decision to exit and the exit, so that the report is sent first."""


class AgentExecutor:
    """AgentExecutor works entirely in the loop's thread; `run` returns the exit code."""

    def __init__(self, settings: AgentSettings, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._settings, self._command = settings, command
        self._loop = Loop()
        self._events: deque[events.Event] = deque()
        self._printed = PrintedEnd()
        self._printers = Printers(Printer(self._loop, 1, self._printed), Printer(self._loop, 2, self._printed))
        self._file = AssignmentFile(settings.assignment_file)
        self._next_poll = self._loop.call_later(FILE_SECONDS, self._poll_file)
        self._authority = Authority(settings)
        os.makedirs(settings.state_dir, exist_ok=True)
        environ = dict(environ)
        self._code: CodeFolder | None = None
        if settings.code_dir:
            from trainmaster_operator.agent.process.code import CodeFolder

            self._code = CodeFolder(self._loop, settings, self._events.append)
            self._code.enter(environ)
        self._complaint = ""
        try:
            library.enter(environ, settings.state_dir)
        except OSError as error:
            self._complain(f"scripts can't import trainloop.recovery: cannot write {error.filename}: {error.strerror}")
        self._setup = SetupLine(self._loop, settings.setup, environ, self._printers, self._events.append)
        self._warm: WarmProcess | None = None
        self._learning: Learning | None = None
        self._processes: RunProcesses | None = None
        self._watch: RankWatch | None = None
        """The watch outlives its run, because the ranks' last progress is shown until the next run."""
        self._trainer: Optional[TrainerServer] = None
        self._system: Optional[SystemSampler] = None
        self._planned_at = present()
        """The time of the last plan that was empty."""
        self._state = initial(settings, environ, state_folder.read_report(settings.state_dir), self._planned_at)
        answers = {
            ("GET", "/v1/state"): self._answer_state,
            ("GET", "/metrics"): self._answer_metrics,
            ("POST", "/v1/assignment"): self._answer_push,
        }
        self._network = Network(self._loop, settings, self._deliver, answers)

    def run(self, terminated_already: bool) -> int:
        """Run until SIGTERM, or until the agent must exit to report; returns the process's exit code.

        `terminated_already`: SIGTERM arrived before the loop existed. Raises LaunchError if the port is taken.
        """
        children.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._terminate)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        if self._settings.port:
            self._network.server.open()
        self._poll_file()
        if terminated_already:
            self._terminate()
        self._carry_out(present())
        self._settle()
        while not self._loop.stopped:
            self._wait()
            self._settle()
        if self._warm is not None:
            self._warm.kill()
        for printer in self._printers:
            printer.drain(1.0)
        return 1 if self._state.exit_code is None else self._state.exit_code

    def _settle(self) -> None:
        """Handle the queued events one by one, and perform the actions that each requires."""
        now = present()
        self._network.tick(now)
        if self._watch is not None and now.steady >= self._watch.deadline:
            self._watch.tick(self._state.contact.leader, now)
        self._see_leader(now)
        while self._events:
            self._take(self._events.popleft(), present())

    def _take(self, event: events.Event, now: Now) -> None:
        self._state = update(self._state, event, now)
        self._carry_out(now)
        self._see_leader(now)

    def _carry_out(self, now: Now) -> None:
        self._state, planned = plan(self._state, now)
        while planned:
            for action in planned:
                result = _PERFORMERS[type(action)](self, action)
                if result is not None:
                    self._state = update(self._state, result, now)
            self._state, planned = plan(self._state, now)
        self._planned_at = now
        run = self._state.run
        if self._processes is not None:
            self._processes.stopping = run is None or run.stopping
            self._processes.ended = run is None or self._state.ended is not None

    def _wait(self) -> None:
        """Run one round of the loop, until the next deadline of the plan, the network or the watch at the latest."""
        # The present time would be wrong, because a deadline may have passed while the plan's actions ran.
        planned = wake_at(self._state, self._planned_at)
        watched = math.inf if self._watch is None else self._watch.deadline
        deadline = min(math.inf if planned is None else planned, self._network.deadline, watched)
        self._loop.run_once(max(0.0, deadline - time.monotonic()))
        if planned is not None and time.monotonic() >= planned:
            self._events.append(events.DeadlinePassed())

    # Actions

    def _apply(self, action: actions.ApplyAssignment) -> events.Event:
        now = present()
        self._network.assign(action.assignment, now)
        return events.LeaderContactChanged(self._network.contact(now))

    def _begin(self, action: actions.Begin) -> Optional[events.Event]:
        folder = self._settings.state_dir
        self._network.follower.hurry(time.monotonic())
        failed = _save(lambda: state_folder.write_report(folder, action.report))
        return failed or _save(lambda: state_folder.prune_attempts(folder, KEPT_ATTEMPTS))

    def _fetch_code(self, action: actions.FetchCode) -> Optional[events.Event]:
        if self._code is None:
            error = "this pod mounts no code (TRAINMASTER_CODE_DIR is not set); delete it, so that it is recreated"
            return events.CodeRefused(action.digest, error)
        self._code.fetch(action.digest)
        return None

    def _warm_up(self, action: actions.WarmUp) -> None:
        # Imported here, because a cold-starting job doesn't need it.
        from trainmaster_operator.agent.process import launcher
        from trainmaster_operator.agent.warm.warm_process import WarmProcess

        settings = self._settings
        if self._warm is None:
            self._warm = WarmProcess(self._loop, settings, self._command, self._printers, self._events.append)
        self._warm.start(*launcher.warm_environment(settings, action.environ))

    def _launch(self, action: actions.Launch) -> events.Event:
        settings, node_rank = self._settings, action.node_rank
        assignment = with_master_address(settings, action.assignment, node_rank)
        launch = Launch(settings, assignment, node_rank, action.environ)
        launch = launch._replace(trainer_port=self._serve_trainer(launch.trainer_token_file))
        starts = RankStarts(launch, self._command, self._warm)
        run = RunProcesses(self._loop, starts, self._printers, self._events.append)
        try:
            launched = run.start()
        except (LaunchError, OSError) as error:
            return events.LaunchFailed(problem_of(error))
        self._processes = run
        self._watch_ranks(run)
        self._learning = None
        warm = self._warm
        if warm is not None and warm.modules is None:
            from trainmaster_operator.agent.warm.learning import Learning
            from trainmaster_operator.agent.warm.warm_process import MODULES_FILE

            answer = os.path.join(run.folder, MODULES_FILE)
            self._learning = Learning(self._loop, run, answer, warm.learn)
        return launched

    def _regroup(self, action: actions.Regroup) -> Optional[events.Event]:
        run, assignment = self._launched, with_master_address(self._settings, action.assignment, action.node_rank)
        failed = _save(lambda: run.regroup(action._replace(assignment=assignment)))
        if failed is None:
            self._watch_ranks(run)
        return failed

    def _watch_ranks(self, run: RunProcesses) -> None:
        # Imported here, so that the ranks' start doesn't wait for the import.
        from trainmaster_operator.agent.hang.watch import RankWatch

        network = self._network
        self._watch = RankWatch(
            self._settings,
            run,
            put=self._events.append,
            send=lambda message: network.send_to_leader(message, present()),
            leave_leader=lambda: network.follower.abandon(time.monotonic()),
            usual=None if self._watch is None else self._watch.usual,
        )
        if self._system is None:
            from trainmaster_operator.agent.process.system import SystemSampler

            workers = len(self._state.assignment.workers)
            self._system = SystemSampler(self._loop, self._settings.cgroup_root, workers, self._publish_system)

    def _publish_system(self, sample: SystemSample) -> None:
        if self._state.run is not None:
            line = SystemLine(self._state.started, self._settings.worker, sample, time.time())
            self._network.send_to_leader(line, present())

    def _serve_trainer(self, token_file: str) -> int:
        """Listen for reports of Hugging Face's Trainer in an attempt; returns the port, or 0 on failure."""
        if self._settings.progress_preset == NONE:
            return 0
        # Imported here, because an agent without an assignment doesn't need it.
        from trainmaster_operator.agent.progress.trainer import TrainerServer

        if self._trainer is None:
            self._trainer = TrainerServer(self._loop, self._report_progress)
        return self._trainer.serve(token_file)

    def _report_progress(self, body: Any) -> None:
        if self._watch is not None:
            self._watch.observation.sources.receive(body, time.monotonic())

    def _describe_environment(self, action: actions.DescribeEnvironment) -> None:
        """Describe the environment in a thread.

        Code and packages may be on a dead file server, and the agent must still answer.
        """
        import threading

        code = self._state.code.has

        def describe() -> None:
            found = preflight.describe(self._command, action.environ, CONFIG_FILE, code)
            described = Environment(action.attempt, found)
            self._loop.call_soon(lambda: self._events.append(described))

        threading.Thread(target=describe, name="describe", daemon=True).start()

    def _save_report(self, action: actions.SaveReport) -> None:
        try:
            state_folder.write_report(self._settings.state_dir, action.report, exited=action.exited)
        except OSError as error:
            self._complain(f"cannot write the report: {error.strerror}")

    def _write_termination_message(self, action: actions.WriteTerminationMessage) -> None:
        try:
            with open(self._settings.termination_log, "w", encoding="utf-8") as file:
                file.write(action.report.termination_message())
        except OSError as error:
            self._complain(f"cannot write the termination message: {error.strerror}")

    def _publish(self, action: actions.Publish) -> None:
        if self._learning is not None and isinstance(action.message, ProgressLine):
            self._learning.observe(action.message.ranks)
        self._network.publish(action.message, present())

    def _hand_over(self, _action: actions.HandOver) -> None:
        state, settings = self._state, self._settings
        workers = max(1, len(state.assignment.workers))
        times_and_lines = newest_lines(self._printed.lines(), output_share(workers))
        if times_and_lines:
            times, lines = zip(*times_and_lines)
            line = OutputLine(state.started, settings.worker, settings.pod_uid, lines, times)
            self._network.send_to_leader(line, present())
            if self._network.leads:
                self._network.leader.hand_over()

    def _exit(self, _action: actions.Exit) -> None:
        self._loop.call_later(LAST_ROUND_SECONDS, self._loop.stop)

    @property
    def _launched(self) -> RunProcesses:
        """Returns the newest attempt's processes. The planner only plans actions on them once they exist."""
        assert self._processes is not None
        return self._processes

    # Events

    def _terminate(self) -> None:
        self._events.append(events.TerminationRequested())

    def _reap(self) -> None:
        for pid, ending in children.reap().items():
            self._setup.process_ended(pid, ending)
            if self._processes is not None:
                self._processes.process_ended(pid, ending)
            if self._warm is not None:
                self._warm.process_ended(pid, ending)

    @property
    def _is_pushed(self) -> bool:
        """Returns whether an operator can push assignments, so that the file may be checked less often."""
        return self._state.contact.leader is not None and self._state.contact.watched

    def _poll_file(self) -> None:
        self._next_poll.cancel()
        seconds = PUSHED_FILE_SECONDS if self._is_pushed else FILE_SECONDS
        self._next_poll = self._loop.call_later(seconds, self._poll_file)
        try:
            data = self._file.poll()
            if data is not None:
                self._events.append(events.AssignmentReceived(self._authority.read(data)))
        except ProtocolError as error:
            self._complain(f"{self._settings.assignment_file}: {error}")

    def _see_leader(self, now: Now) -> None:
        contact = self._network.contact(now)
        if contact != self._state.contact:
            self._take(events.LeaderContactChanged(contact), now)
            if not self._is_pushed:
                self._poll_file()

    def _deliver(self, message: Delivery) -> None:
        if isinstance(message, Assigned):
            try:
                self._events.append(events.AssignmentReceived(self._authority.read(message.assignment)))
            except ProtocolError as error:
                self._complain(str(error))
        elif isinstance(message, OutputLine):
            self._network.leader.keep_output(message)
        elif not isinstance(message, (Watched, Gathered, Ping)):
            self._events.append(message)

    def _answer_push(self, body: bytes) -> bytes:
        """Answer a pushed assignment with the assignment that is valid now."""
        try:
            pushed = self._authority.read(json_of(body))
        except ProtocolError as error:
            raise BadRequest(400, str(error)) from None
        self._take(events.AssignmentReceived(pushed), present())
        holds = self._state.assignment
        if (holds.attempt, holds.state) == (pushed.attempt, pushed.state):
            return response(204)
        if holds.attempt < pushed.attempt:
            return response(503, "this agent is about to exit\n")
        return response(409, json.dumps(holds.signed) + "\n", "application/json")

    # Views

    def _ranks(self) -> dict[int, RankProgress]:
        return {} if self._watch is None else self._watch.observation.ranks

    def _answer_metrics(self, _body: bytes) -> bytes:
        report, settings = self._state.report, self._settings
        warm_bytes = None if self._warm is None else self._warm.private_bytes()
        kept = state_bytes(os.environ.get("TRAINMASTER_MEMORY_DIR"))
        system = None if self._system is None else self._system.last
        page = render_metrics(settings.job, settings.worker, report, self._ranks(), warm_bytes, kept, system)
        return response(200, page, METRICS_TYPE)

    def _answer_state(self, _body: bytes) -> bytes:
        state = self._state
        shown = {
            "worker": self._settings.worker,
            "uid": self._settings.pod_uid,
            "leader": state.contact.leader,
            "assignment": None if state.assignment is NO_ASSIGNMENT else state.assignment.to_wire(),
            "report": state.report.to_wire() if state.report else None,
            "progress": {str(rank): progress.to_wire() for rank, progress in self._ranks().items()},
            "environment": {} if state.environment is None else state.environment.environment,
            "workers": [line._asdict() for line in self._network.leader.workers()],
        }
        return response(200, json.dumps(shown, indent=1) + "\n", "application/json")

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._printers.say(sentence)


def _save(write: Callable[[], None]) -> Optional[events.SaveFailed]:
    """Returns the error if writing fails, else None."""
    try:
        write()
    except OSError as error:
        return events.SaveFailed(problem_of(error))
    return None


_PERFORMERS: dict[type, Callable[[AgentExecutor, Any], Optional[events.Event]]] = {
    actions.KillLeftovers: lambda it, _: children.send(children.leftovers(it._settings.state_dir), signal.SIGKILL),
    actions.ApplyAssignment: AgentExecutor._apply,
    actions.Begin: AgentExecutor._begin,
    actions.Adopt: lambda it, action: _save(lambda: state_folder.write_report(it._settings.state_dir, action.report)),
    actions.Regroup: AgentExecutor._regroup,
    actions.FetchCode: AgentExecutor._fetch_code,
    actions.EndWarm: lambda it, _: None if it._warm is None else it._warm.kill(),
    actions.RunSetup: lambda it, _: it._setup.start(),
    actions.CancelSetup: lambda it, _: it._setup.cancel(),
    actions.WarmUp: AgentExecutor._warm_up,
    actions.Preload: lambda it, action: None if it._warm is None else it._warm.preload(action.modules),
    actions.Launch: AgentExecutor._launch,
    actions.DescribeEnvironment: AgentExecutor._describe_environment,
    actions.ExamineRank: lambda it, action: it._launched.examine_rank(action),
    actions.ExamineLauncher: lambda it, action: it._launched.examine_launcher(action),
    actions.Terminate: lambda it, action: it._launched.terminate(action),
    actions.FindSavingRanks: lambda it, _: it._launched.saving_ranks(),
    actions.KillProcesses: lambda it, action: children.send(action.pids, signal.SIGKILL),
    actions.KillRemains: lambda _, action: children.send(children.session_members([action.pid]), signal.SIGKILL),
    actions.Sweep: lambda it, _: it._launched.sweep(),
    actions.Conclude: lambda it, _: None if it._watch is None else it._watch.conclude(present()),
    actions.FlushProgress: lambda it, _: None if it._watch is None else it._watch.finish(present()),
    actions.SaveReport: AgentExecutor._save_report,
    actions.PublishReport: lambda it, action: it._network.publish(Reported(action.report), present()),
    actions.Publish: AgentExecutor._publish,
    actions.SendToLeader: lambda it, action: it._network.send_to_leader(action.message, present()),
    actions.Introduce: lambda it, action: it._network.introduce(action.messages),
    actions.KeepReport: lambda it, action: it._network.leader.receive(Reported(action.report), present(), leads=False),
    actions.Diagnose: lambda it, action: None if it._watch is None else it._watch.receive(action.message, present()),
    actions.WriteTerminationMessage: AgentExecutor._write_termination_message,
    actions.HandOver: AgentExecutor._hand_over,
    actions.Exit: AgentExecutor._exit,
}
