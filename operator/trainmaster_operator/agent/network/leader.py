"""The leader keeps the table of the job's workers, serves watching operators, and sends its followers orders. Pure.

Every agent has a leader object. It is used on the agent that the other agents and the operator contact: the first of
`hosts`, or the next host if that is lost. Its data needn't outlive the process, because followers send their reports
again when they join. A new stream begins with all kept lines.

Each method takes an event and the time, and acts through `Connections`; `tick` is due at `deadline`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from trainmaster_operator.agent.connection import json_line
from trainmaster_operator.agent.hang.diagnosis import MAX_KEPT_EVIDENCE_BYTES, Diagnosis, Notices, SilentWorkers
from trainmaster_operator.agent.network.connections import Connections
from trainmaster_operator.agent.network.workers import KeptLines, KeptReports, Worker, Workers
from trainmaster_operator.agent.planner.ranks import CONTINUE_SECONDS, FAILURE_GRACE
from trainmaster_operator.agent.planner.state import NO_ASSIGNMENT, Now
from trainmaster_operator.agent.process.preflight import mismatches
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire import joining, stream
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES, MAX_KEPT_OUTPUT_BYTES, MAX_OUTPUT_BYTES
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.values import ProtocolError

PING_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""A follower that sends nothing for this long counts as lost, even if its connection is still open."""
FIRST_STREAM_SECONDS = 3.0
"""A new agent counts as watched for this long. The operator only learns from the kubelet that the container runs, which
may take over a second; a script that fails at its first import ends sooner."""
RECONNECT_SECONDS = 1.0
"""An operator whose stream broke still counts as watching for this long, so that workers don't exit to report."""
COLLECT_SECONDS = 1.0
"""The minimum time between two requests for stacks, because a rank pauses while it prints them."""
REQUESTED_BYTES = 524_288
"""The limit of all workers' answers to a request for stacks, because the operator keeps the answers in one ConfigMap.
"""
MAX_STREAMS = 8
MAX_PROGRESS_BYTES = 8_388_608
"""The limit of all workers' kept progress."""
WORKERS_IN_HELLO = 256
"""The most workers in a hello, so that the line stays below its reader's limit of 64 KiB. The other workers follow in
separate lines."""


class Leader:
    """Leader contains the table and the rules for it. `now` is the agent's start, on the monotonic clock."""

    def __init__(self, settings: AgentSettings, now: float, connections: Connections) -> None:
        self._connections, self._settings = connections, settings
        self._own = Worker(settings.worker, settings.pod_uid, None, now)
        self._reports = KeptReports()
        self._workers = Workers(
            self._own,
            close=connections.close,
            forget=lambda gone: self._reports.forget(lambda worker, _: worker != gone),
        )
        self._assignment = NO_ASSIGNMENT
        self._named: frozenset[int] = frozenset()
        """The assignment's workers."""
        self._present: frozenset[int] = frozenset()
        """The workers that have ranks in the attempt's group."""
        self._assignment_line = b""
        self.gathered = 0
        """The newest attempt whose workers have all joined this leader."""
        self._progress = KeptLines(MAX_PROGRESS_BYTES)
        self._evidence = KeptLines(2 * MAX_KEPT_EVIDENCE_BYTES)
        self._outputs: dict[int, bytes] = {}
        """The last output of each ended worker, the newest last."""
        self._diagnosis, self._notices = Diagnosis(), Notices()
        self._collect_at = now
        """The earliest time for the next request for stacks, on the monotonic clock."""
        self._mismatched_attempt = 0
        self._modules: Optional[joining.Modules] = None
        """The modules to import, from the first worker that sent them, so that a new pod needn't learn them."""
        self._streams: list[int] = []
        self._watched_until = now + FIRST_STREAM_SECONDS
        self._announced = True
        """Whether an operator watches, as sent to the followers last."""
        self._ping_at = now + PING_SECONDS

    # Knowledge

    @property
    def deadline(self) -> float:
        unwatched_at = self._watched_until if self._announced and not self._streams else math.inf
        return min(self._ping_at, self._diagnosis.deadline, self._notices.diagnosis.deadline, unwatched_at)

    def is_watched(self, now: float) -> bool:
        """Returns whether an operator has, or recently had, a stream open here."""
        return bool(self._streams) or now < self._watched_until

    def workers(self) -> list[stream.WorkerLine]:
        return [self._workers.line(row) for row in self._workers.by_worker.values()]

    # Events

    def assign(self, assignment: Assignment) -> None:
        """Send an accepted higher assignment to all followers."""
        self._assignment = assignment
        self._named = frozenset(assignment.workers)
        self._present = frozenset(
            worker
            for place, worker in enumerate(assignment.workers)
            if assignment.present(place, self._settings.processes)
        )
        self._own.seen = assignment.attempt
        self._reports.forget(lambda _, attempt: attempt >= assignment.attempt - 1)
        self._progress.forget(lambda worker, _: worker in self._named)
        # Keep the previous attempt's evidence for an operator that connects a little later.
        self._evidence.forget(lambda _, attempt: attempt >= assignment.attempt - 1)
        self._diagnosis.close()
        self._notices.close()
        self._assignment_line = json_line(joining.Assigned(assignment.signed or {}).to_wire())
        self._send(tuple(self._workers.by_peer), self._assignment_line)
        self._publish(self._workers.line(self._own))
        self._gather()

    def arrive(self, peer: int, now: Now) -> None:
        """Add a follower's connection; its first line will name the follower."""
        self._workers.arrive(peer, now.steady)

    def receive_line(self, peer: int, data: Mapping[str, Any], now: Now) -> None:
        """Handle a follower's line. Anything but the protocol's messages is ignored."""
        row = self._workers.by_peer.get(peer)
        try:
            message = joining.parse_from_follower(data)
        except ProtocolError:
            message = None
        if row is not None:
            row.received_at = now.steady
            self._apply(row, message, now)
        elif peer in self._workers.arriving and not (
            isinstance(message, joining.Joined) and self._join(peer, message, now)
        ):
            self._workers.refuse(peer)

    def receive(self, message: joining.FollowerMessage, now: Now, *, leads: bool = True) -> None:
        """Handle a message of this agent's own worker.

        `leads`: whether this agent leads. If it doesn't, it only keeps a report, of any worker, for an operator that
        watches this agent, and doesn't stop the attempt after a failure.
        """
        if isinstance(message, joining.Reported) and not leads:
            self._record(message.report)
        else:
            self._apply(self._own, message, now)

    def hand_over(self) -> None:
        """Send the workers' last output to the next leader, because this agent ends."""
        rows = (self._workers.by_worker.get(worker) for worker in self._assignment.workers)
        heir = next((row.peer for row in rows if row is not None and row.peer is not None), None)
        if heir is not None:
            self._send((heir,), b"".join(self._outputs.values()))

    def watch(self, peer: int, now: Now) -> None:
        """Add a watching operator, which gets all kept lines, and then each change. The ninth replaces the oldest."""
        while len(self._streams) >= MAX_STREAMS:
            self._connections.close(self._streams.pop(0))
        workers = self.workers()
        attempt = max(0, self._assignment.attempt)
        lines: list[stream.StreamLine] = [
            stream.Hello(self._own.worker, self._own.uid, attempt, tuple(workers[:WORKERS_IN_HELLO])),
            *workers[WORKERS_IN_HELLO:],
            *self._reports.in_order(),
        ]
        self._streams.append(peer)
        stall = () if self._notices.line is None else (json_line(self._notices.line.to_wire()),)
        kept = (*self._progress.all(), *self._evidence.all(), *stall, *self._outputs.values())
        self._connections.stream((peer,), b"".join([*(json_line(line.to_wire()) for line in lines), *kept]))
        self._announce(now.steady)

    def unwatch(self, peer: int, now: Now) -> None:
        if peer in self._streams:
            self._streams.remove(peer)
            if not self._streams:
                self._watched_until = now.steady + RECONNECT_SECONDS

    def acknowledge(self, seq: int) -> None:
        """Record that the operator has all reports up to `seq`."""
        for report in self._reports.acknowledge(seq):
            self._send_ack(report)

    def collect(self, request: str, now: Now) -> None:
        """Collect the stacks of all ranks for an operator; the answers only go to the streams."""
        if self._assignment is not NO_ASSIGNMENT and now.steady >= self._collect_at:
            self._collect_at = now.steady + COLLECT_SECONDS
            size = min(MAX_EVIDENCE_BYTES, REQUESTED_BYTES // max(len(self._named), 1))
            self._send_all(joining.Collect(self._assignment.attempt, size, request))

    def tick(self, now: Now) -> None:
        if now.steady >= self._diagnosis.deadline:
            self._conclude(now)
        if now.steady >= self._notices.diagnosis.deadline:
            self._inform(now)
        if not self.is_watched(now.steady):
            self._announce(now.steady)
        if now.steady >= self._ping_at:
            self._ping_at = now.steady + PING_SECONDS
            self._ping(now.steady)
            self._end_notice(None, now)

    # Followers

    def _join(self, peer: int, hello: joining.Joined, now: Now) -> bool:
        """Handle the line that names a connection's worker; returns whether the connection may stay."""
        if hello.job != self._settings.job_uid:
            return False
        row = Worker(hello.worker, hello.uid, peer, now.steady, hello.seen)
        if not self._workers.join(row, peer, self._assignment):
            return False
        self._publish(self._workers.line(row))
        first: list[joining.LeaderMessage] = [joining.Watched(self.is_watched(now.steady), self._own.uid)]
        asked = (self._diagnosis.question, self._notices.diagnosis.question)
        first += [question for question in asked if question is not None]
        failed = [line.report for line in self._reports.in_order() if self._stops_others(line.report)]
        if failed:
            first.append(self._stop(max(failed, key=lambda report: report.culprit), now.steady))
        if self._modules is not None:
            first.append(self._modules)
        if self.gathered:
            first.append(joining.Gathered(self.gathered))
        self._send((peer,), self._assignment_line + b"".join(json_line(message.to_wire()) for message in first))
        self._gather()
        return True

    def _gather(self) -> None:
        """Inform all followers once every worker of the attempt's group has joined. Only the exec launcher waits."""
        if self._settings.launcher != "exec":
            return
        attempt, rows = self._assignment.attempt, self._workers.by_worker
        joined = {worker for worker, row in rows.items() if row is self._own or row.peer is not None}
        if attempt > self.gathered and self._present <= joined:
            self.gathered = attempt
            self._broadcast(joining.Gathered(attempt))

    def _apply(self, row: Worker, message: Optional[joining.FollowerMessage], now: Now) -> None:
        """Handle a worker's message, which can only concern that worker."""
        if isinstance(message, joining.Reported):
            if message.report.worker == row.worker:
                self._add_report(
                    message.report if row is self._own else message.report._replace(uid=row.uid), now.steady
                )
        elif isinstance(message, stream.ProgressLine):
            row.add_steps(message)
            self._publish_data(self._progress.keep(message._replace(worker=row.worker)))
        elif isinstance(message, stream.SystemLine):
            self._publish(message._replace(worker=row.worker))
        elif isinstance(message, joining.Stalled):
            self._ask(row.worker, message, now)
        elif isinstance(message, joining.Resumed):
            self._end_notice(row.worker, now)
        elif isinstance(message, stream.EvidenceLine):
            self._add_evidence(message._replace(worker=row.worker), now)
        elif isinstance(message, stream.OutputLine):
            self.keep_output(message._replace(worker=row.worker, uid=row.uid))
        elif isinstance(message, joining.Environment):
            row.environment, row.environment_attempt = dict(message.environment), message.attempt
            self._compare_environments()
        elif isinstance(message, joining.Modules):
            if self._modules is None and message.names:
                self._modules = message
                self._send_all(message)
        elif isinstance(message, joining.Seen) and message.attempt > row.seen:
            row.seen = message.attempt
            self._publish(self._workers.line(row))

    def leave(self, peer: int) -> None:
        row = self._workers.leave(peer)
        if row is not None:
            self._publish(self._workers.line(row))

    def _drop(self, row: Worker) -> None:
        if row.peer is not None:
            self._connections.close(row.peer)
            self.leave(row.peer)

    def _ping(self, now: float) -> None:
        self._publish(stream.Ping())
        self._workers.refuse_late(now)
        for row in list(self._workers.by_peer.values()):
            if now - row.received_at > SILENCE_SECONDS:
                self._drop(row)
        self._broadcast(stream.Ping())

    # Reports

    def _add_report(self, report: Report, now: float) -> None:
        """Keep a report and publish it; a failure stops the other ranks."""
        if self._record(report) and self._stops_others(report):
            self._send_all(self._stop(report, now))

    def _record(self, report: Report) -> bool:
        """Keep a report and publish it; returns whether it is new. A known report is only acknowledged again."""
        line = self._reports.add(report)
        if line is not None:
            self._publish(line)
        elif self._reports.is_recorded(report):
            self._send_ack(report)
        return line is not None

    def _stops_others(self, report: Report) -> bool:
        """Returns whether a worker in the current attempt's group has failed. A rank that only joins stops no other."""
        current = report.attempt == self._assignment.attempt
        return current and report.state == "Failed" and report.worker in self._present

    def _stop(self, report: Report, now: float) -> joining.Stop:
        """Returns the order to stop an attempt after this worker's failure."""
        # If this worker's rank only lost a connection, the rank at fault may be about to exit: SIGTERM would hide its
        # exit code.
        delay = 0.0 if report.culprit else FAILURE_GRACE
        continued = self._assignment.continues is not None
        others = self._present - {report.worker}
        if self.is_watched(now) and self._reports.can_continue(report, others, continued=continued):
            delay = CONTINUE_SECONDS
        return joining.Stop(report.attempt, FAILURE_GRACE, delay, report)

    def _send_ack(self, report: Report) -> None:
        # Only reports of an end are acknowledged: an answer to `Starting` could be mistaken for an answer to `Failed`.
        if not report.ended:
            return
        row = self._workers.by_worker.get(report.worker)
        if row is self._own:
            self._connections.deliver(joining.Ack(report.attempt))
        elif row is not None and row.peer is not None and row.uid == report.uid:
            self._send((row.peer,), json_line(joining.Ack(report.attempt).to_wire()))

    # Progress, stalls, environments

    def keep_output(self, line: stream.OutputLine) -> None:
        data = json_line(line.to_wire())
        # The workers may compute their share from another assignment, so twice the share is accepted.
        if len(data) <= min(2 * stream.output_share(len(self._named)), MAX_OUTPUT_BYTES):
            self._outputs.pop(line.worker, None)
            self._outputs[line.worker] = data
            while sum(map(len, self._outputs.values())) > MAX_KEPT_OUTPUT_BYTES:
                del self._outputs[next(iter(self._outputs))]
            self._publish_data(data)

    def _ask(self, worker: int, message: joining.Stalled, now: Now) -> None:
        """Ask all workers for evidence, because a rank is over its limit."""
        if message.attempt != self._assignment.attempt:
            return
        workers = len(self._present)
        if message.notice:
            question = self._notices.stalled(worker, message.attempt, workers, now.steady)
        else:
            question = self._diagnosis.begin(message.attempt, workers, now.steady)
        if question is not None:
            self._send_all(question)

    def _inform(self, now: Now) -> None:
        """Inform the operators about a silence, as far as the workers have answered."""
        diagnosis = self._notices.diagnosis
        missing, asked_at = diagnosis.unanswered(self._present), diagnosis.asked_at
        silent = [worker for worker in missing if self._steps_of(worker, asked_at) is not None]
        line = self._notices.conclude(silent, now)
        if line is not None:
            self._publish(line)

    def _end_notice(self, worker: Optional[int], now: Now) -> None:
        ended = self._notices.resumed(worker, now)
        if ended is not None:
            self._publish(ended)

    def _add_evidence(self, line: stream.EvidenceLine, now: Now) -> None:
        """Keep and publish a worker's evidence of a stall; once all have answered, conclude."""
        if line.request:
            self._publish(line)
            return
        if line.notice:
            self._notices.diagnosis.add(line.worker, line)
            if self._notices.diagnosis.question is not None and not self._notices.diagnosis.unanswered(self._present):
                self._inform(now)
            return
        if line.ranks:
            self._publish_data(self._evidence.keep(line))
        self._diagnosis.add(line.worker, line)
        if self._diagnosis.question is not None and not self._diagnosis.unanswered(self._present):
            self._conclude(now)

    def _conclude(self, now: Now) -> None:
        asked_at = self._diagnosis.asked_at
        silent = {worker: self._steps_of(worker, asked_at) for worker in self._diagnosis.unanswered(self._present)}
        conclusion = self._diagnosis.conclude(silent)
        if isinstance(conclusion, SilentWorkers):
            self._report_lost(conclusion, now)
        elif conclusion is not None:
            self._send_all(conclusion)

    def _steps_of(self, worker: int, since: float) -> Optional[int]:
        """Returns the step of a worker's slowest rank, by the worker's last progress; -1 if it never reported a step.

        Returns None if the worker has sent anything since the time `since`.
        """
        row = self._workers.by_worker.get(worker)
        if row is None:
            return -1
        if row.peer is not None and row.received_at >= since:
            return None
        return min(row.steps.values(), default=-1) if row.steps_attempt == self._assignment.attempt else -1

    def _report_lost(self, silent: SilentWorkers, now: Now) -> None:
        """Report workers whose agents don't answer. If such an agent returns, it joins again and learns the outcome."""
        for worker in silent.workers:
            row = self._workers.by_worker.get(worker)
            if row is not None:
                self._drop(row)
            uid = self._assignment.uid_of(worker) if row is None else row.uid
            error, at = silent.message, now.wall
            report = Report(silent.attempt, worker, uid, "Failed", reason="AgentLost", error=error, at=at)
            self._add_report(report, now.steady)

    def _compare_environments(self) -> None:
        """Once all workers have started, fail the attempt if their environments differ in parts that must be equal."""
        assignment = self._assignment
        if assignment.attempt <= self._mismatched_attempt:
            return
        rows = [self._workers.by_worker.get(worker) for worker in assignment.workers]
        started = [row for row in rows if row is not None and row.environment_attempt == assignment.attempt]
        if len(started) < len(rows):
            return
        lines = mismatches({row.worker: row.environment for row in started})
        if lines:
            self._mismatched_attempt = assignment.attempt
            message = joining.Mismatch(assignment.attempt, tuple(lines))
            peers = tuple(row.peer for row in started if row.peer is not None)
            self._send(peers, json_line(message.to_wire()))
            self._connections.deliver(message)

    # Sending

    def _announce(self, now: float) -> None:
        """Inform all followers when an operator begins or stops watching."""
        watched = self.is_watched(now)
        if watched != self._announced:
            self._announced = watched
            self._broadcast(joining.Watched(watched))

    def _send_all(self, message: joining.LeaderMessage) -> None:
        """Send to all workers, including this agent's own."""
        self._broadcast(message)
        self._connections.deliver(message)

    def _broadcast(self, message: joining.LeaderMessage) -> None:
        self._send(tuple(self._workers.by_peer), json_line(message.to_wire()))

    def _send(self, peers: tuple[int, ...], data: bytes) -> None:
        if peers and data:
            self._connections.send(peers, data)

    def _publish(self, line: stream.StreamLine) -> None:
        if self._streams:
            self._publish_data(json_line(line.to_wire()))

    def _publish_data(self, data: bytes) -> None:
        if self._streams:
            self._connections.stream(tuple(self._streams), data)
