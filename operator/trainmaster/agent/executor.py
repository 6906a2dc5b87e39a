"""The worker: brings its ranks to what the highest assignment asks for, and sees to it that how they ended is known.

`_reconcile` is level-triggered: called after every change, it compares the assignment, the mark and what runs. When the
process itself ends is decided in `leaving`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.agent.assignment import AssignmentFile
from trainmaster.agent.authority import Authority
from trainmaster.agent.hang.diagnosis import evidence_line
from trainmaster.agent.loop import Loop
from trainmaster.agent.network.follower import Link
from trainmaster.agent.network.leader import Lead
from trainmaster.agent.network.metrics import render_metrics
from trainmaster.agent.network.server import Handlers, Server
from trainmaster.agent.planner.leaving import Leaving, Standing
from trainmaster.agent.process import children, environment, saved_report
from trainmaster.agent.process.classification import Outcome
from trainmaster.agent.process.output import Printer
from trainmaster.agent.process.part import Listeners, Part, launch_error
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment, newer
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.reasons import EXIT_BY_REASON
from trainmaster.wire.report import Report
from trainmaster.wire.signing import job_token
from trainmaster.wire.states import WorkerState
from trainmaster.wire.values import text, whole

FILE_SECONDS = 0.05
KEPT_ATTEMPTS = 5


class Worker:
    """The agent's state machine. Everything happens in the loop's thread; `run` returns the exit code."""

    def __init__(self, settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._command = command
        self._loop = Loop()
        self._printers = (Printer(self._loop, 1), Printer(self._loop, 2))
        self._file = AssignmentFile(settings.assignment_file)
        self._authority = Authority(settings)
        self._leaving = Leaving(
            self._loop,
            settings.termination_log,
            self._standing,
            lambda report: self._save_mark(report, exited=True),
            self._complain,
        )
        self._lead = Lead(
            self._loop,
            settings,
            self._stop_attempt,
            self._leaving.acknowledged,
            self._leaving.followers_changed,
            self._mismatched,
            self._from_lead,
        )
        self._link = Link(self._loop, settings, self._hello, self._from_lead, self._leaving.followers_changed)
        self._part = Part(
            self._loop,
            settings,
            command,
            environ,
            self._printers,
            lambda: self._link.contact,
            Listeners(
                self._take_outcome,
                self._part_gone,
                self._describe_environment,
                self._ranks_are_up,
                self._send_progress,
                self._tell_lead,
                self._link.leave_lead,
            ),
        )
        self._server = Server(
            self._loop,
            settings,
            Handlers(
                token=lambda: job_token(settings.agents_secret, settings.job_uid),
                read=self._authority.read,
                offer=self.offer,
                acknowledge=self._lead.acknowledge,
                stream=self._lead.open_stream,
                join=self._lead.join,
                state=self._state,
                metrics=lambda: render_metrics(settings.job, settings.worker, self._report, self._part.ranks),
            ),
        )
        self._assignment: Assignment | None = None
        self._environment: dict[str, str] = {}
        self._report: Report | None = None
        """The last report of the newest attempt that was started here, or `Waiting`."""
        self._previous: Report | None = None
        """The last report of the attempt before that one: a lead that is joined later hasn't heard it."""
        self._started_attempt = 0
        self._complaint = ""

    def run(self, terminated_already: bool) -> int:
        """Run until it is told to stop or reports by exiting; returns the process's exit code.

        `terminated_already`: SIGTERM came before there was a loop. Raises LaunchError where the port is taken.
        """
        children.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._terminate)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        os.makedirs(self._settings.state_dir, exist_ok=True)
        self._read_mark()
        if self._settings.port:
            self._server.open()
        self._poll_file()
        if terminated_already:
            self._terminate()
        self._loop.call_every(FILE_SECONDS, self._poll_file)
        self._loop.run()
        for printer in self._printers:
            printer.drain(1.0)
        return self._leaving.code if self._leaving.code is not None else 1

    def offer(self, assignment: Assignment) -> Assignment:
        """An assignment from any of the three ways: taken if it is higher. Returns the one that then holds."""
        if self._assignment is not None and (self._leaving.code is not None or not newer(self._assignment, assignment)):
            # On its way out it starts nothing more: the next agent finds the assignment in the file.
            return self._assignment
        self._assignment = assignment
        self._lead.assignment_changed(assignment)
        self._link.assignment_changed(assignment)
        self._reconcile()
        return assignment

    # What has to be done now

    def _reconcile(self) -> None:
        assignment = self._assignment
        if assignment is None or self._leaving.terminating or self._leaving.code is not None:
            return
        node_rank = assignment.node_rank(self._settings.worker, self._settings.pod_uid)
        wanted = assignment.attempt if assignment.state == "Run" and node_rank is not None else None
        running = self._part.running
        if self._started_attempt != wanted:
            self._part.stop(assignment.grace_seconds)
        if not running and not self._part.preparing:
            if node_rank is not None and wanted is not None:
                if wanted > self._started_attempt:
                    self._start(assignment, node_rank)
            elif self._started_attempt < assignment.attempt:
                self._publish(self._new_report(assignment.attempt, "Waiting"))
        self._leaving.reconsider()

    def _start(self, assignment: Assignment, node_rank: int) -> None:
        self._started_attempt = assignment.attempt
        starting = self._new_report(assignment.attempt, "Starting")
        try:
            saved_report.write_mark(self._settings.state_dir, starting)
            saved_report.prune_attempts(self._settings.state_dir, KEPT_ATTEMPTS)
        except OSError as error:
            # Without a mark this attempt could be trained twice.
            self._take_outcome(launch_error(f"cannot write {error.filename}: {error.strerror}"))
            return
        self._publish(starting)
        self._link.hurry()
        self._part.begin(assignment, node_rank)

    def _part_gone(self) -> None:
        if self._leaving.terminating:
            self._leaving.leave_terminated()
        else:
            self._reconcile()

    def _stop_attempt(self, attempt: int, grace: float, delay: float) -> None:
        """A rank has failed somewhere: this attempt is over."""
        if attempt == self._started_attempt:
            self._part.stop(grace, delay)

    def _mismatched(self, attempt: int, lines: list[str]) -> None:
        if attempt != self._started_attempt:
            return
        error = "the workers' environments differ:\n" + "\n".join(lines)
        code = EXIT_BY_REASON["PreflightMismatch"]
        self._part.fail(Outcome("Failed", None, code, None, "PreflightMismatch", error[:2_000]))

    # Reports

    def _new_report(self, attempt: int, state: WorkerState) -> Report:
        settings = self._settings
        return Report(attempt, settings.worker, settings.pod_uid, state, settings.node, at=time.time())

    def _take_outcome(self, outcome: Outcome) -> None:
        """This worker's part of the attempt has ended, or a better cause has been found."""
        self._leaving.ended()
        # Before the report: who hears of the end decides on what it knows of the way there.
        self._part.look_once_more()
        report = self._new_report(self._started_attempt, outcome.state)._replace(
            rank=outcome.rank,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            reason=outcome.reason,
            error=outcome.error,
            culprit=outcome.culprit,
        )
        self._save_mark(report, exited=False)
        self._publish(report)
        self._leaving.reconsider()

    def _publish(self, report: Report) -> None:
        if self._report is not None and self._report._replace(at=report.at) == report:
            return
        if self._report is not None and report.attempt > self._report.attempt:
            self._previous = self._report
        self._report = report
        self._lead.take_report(report)
        self._link.send({"type": "report", "report": report.to_wire()})

    def _save_mark(self, report: Report, *, exited: bool) -> None:
        try:
            saved_report.write_mark(self._settings.state_dir, report, exited=exited)
        except OSError as error:
            self._complain(f"cannot write the mark: {error.strerror}")

    def _read_mark(self) -> None:
        mark = saved_report.read_mark(self._settings.state_dir)
        if mark is None:
            return
        self._started_attempt = mark.report.attempt
        children.send(children.leftovers(self._settings.state_dir), signal.SIGKILL)
        if mark.report.ended:
            self._leaving.ended(exited_before=mark.exited)
            self._publish(mark.report._replace(uid=self._settings.pod_uid))
        else:
            error = "the agent of this attempt ended without a word; its container was killed or its node restarted"
            self._take_outcome(Outcome("Failed", None, EXIT_BY_REASON["AgentLost"], None, "AgentLost", error))

    # The sure way

    def _standing(self) -> Standing:
        return Standing(self._report, self._assignment, self._link.lead, self._is_followed(), not self._part.running)

    def _is_followed(self) -> bool:
        if self._link.lead == self._settings.worker:
            return self._lead.followed
        # While it isn't known who leads, somebody may follow.
        return self._link.followed or self._link.lead is None

    def _terminate(self) -> None:
        """SIGTERM: the ranks get the pod's whole grace period, and then the agent leaves."""
        if self._leaving.terminating:
            return
        self._leaving.terminating = True
        running = self._part.running
        self._part.stop(self._settings.grace_seconds)
        if not running:
            self._leaving.leave_terminated()

    # The fast way

    def _hello(self) -> list[dict[str, Any]]:
        """What a member says first to a lead that it has joined."""
        settings = self._settings
        lines: list[dict[str, Any]] = [
            {
                "type": "hello",
                "job": settings.job_uid,
                "worker": settings.worker,
                "uid": settings.pod_uid,
                "seen": self._assignment.attempt if self._assignment else 0,
            }
        ]
        if self._environment:
            lines.append(self._environment_line())
        for report in (self._previous, self._report):
            if report is not None:
                lines.append({"type": "report", "report": report.to_wire()})
        if self._part.observation is not None and self._part.ranks:
            lines.append(self._part.observation.line())
        return lines

    def _from_lead(self, line: dict[str, Any]) -> None:
        kind, attempt = line.get("type"), whole(line.get("attempt"))
        if kind == "assignment":
            try:
                self.offer(self._authority.read(line.get("assignment")))
            except ProtocolError as error:
                self._complain(str(error))
        elif attempt is None:
            return
        elif kind == "ack":
            self._leaving.acknowledged(attempt)
        elif kind == "stop":
            failed = Report.read(line.get("report"))
            if failed is not None and failed.worker != self._settings.worker:
                # An operator may follow this worker, not the lead: it hears who failed before who was stopped for it.
                self._lead.take_report(failed)
            self._stop_attempt(attempt, _seconds(line.get("graceSeconds")), _seconds(line.get("afterSeconds")))
        elif kind in ("collect", "hung", "patience"):
            if kind == "collect":
                # At once: to find out what is asked for may take longer than a lead waits.
                self._link.send({"type": "ping"})
            if not self._part.told(attempt, line) and kind == "collect":
                # No rank of this worker can hang. Without an answer its agent would count as lost.
                self._tell_lead(evidence_line(attempt, self._settings.worker, {}))
        elif kind == "mismatch" and isinstance(line.get("lines"), list):
            self._mismatched(attempt, [text(said, 500) for said in line["lines"][:32]])

    def _tell_lead(self, line: dict[str, Any]) -> bool:
        """What is only for whoever leads now; False where nobody does."""
        if self._link.lead == self._settings.worker:
            if line["type"] == "evidence":
                self._lead.take_evidence(self._settings.worker, line)
            else:
                self._lead.take_stall(line["attempt"])
            return True
        self._link.send(line)
        return self._link.lead is not None

    def _describe_environment(self, environ: Mapping[str, str]) -> None:
        """Tell the lead what this attempt runs in; after its start, which must not wait for it.

        In a thread, because code and packages may lie on a file server that has gone: the agent answers all the same.
        """
        import threading

        attempt, self._environment = self._started_attempt, {}

        def describe() -> None:
            found = environment.describe(self._command, environ, self._settings.config_file)
            self._loop.call_from_thread(lambda: self._tell_environment(attempt, found))

        threading.Thread(target=describe, name="describe", daemon=True).start()

    def _tell_environment(self, attempt: int, found: dict[str, str]) -> None:
        if attempt != self._started_attempt:
            return
        self._environment = found
        self._lead.take_environment(attempt, found)
        self._link.send(self._environment_line())

    def _environment_line(self) -> dict[str, Any]:
        return {"type": "environment", "attempt": self._started_attempt, "environment": self._environment}

    # Observations

    def _poll_file(self) -> None:
        try:
            data = self._file.poll()
            if data is not None:
                self.offer(self._authority.read(data))
        except ProtocolError as error:
            self._complain(f"{self._settings.assignment_file}: {error}")

    def _reap(self) -> None:
        for pid, ending in children.reap().items():
            self._part.child_ended(pid, ending)

    def _ranks_are_up(self) -> None:
        running = self._new_report(self._started_attempt, "Running")
        self._save_mark(running, exited=False)
        self._publish(running)

    def _send_progress(self, line: dict[str, Any]) -> None:
        self._lead.take_progress(self._settings.worker, line)
        self._link.send(line)

    def _state(self) -> dict[str, Any]:
        assignment = self._assignment
        shown = None
        if assignment is not None:
            shown = assignment.to_wire()
        return {
            "worker": self._settings.worker,
            "uid": self._settings.pod_uid,
            "leader": self._link.lead,
            "assignment": shown,
            "report": self._report.to_wire() if self._report else None,
            "progress": self._part.ranks,
            "environment": self._environment,
            "workers": self._lead.state(),
        }

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._printers[1].write(f"[agent]: {sentence}\n".encode())


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3_600:
        return 0.4
    return float(value)
