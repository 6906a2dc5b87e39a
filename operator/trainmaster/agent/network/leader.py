"""The lead: the table of all workers of the job, what an operator streams from it, and what it tells the members.

Every agent holds one; it matters on the agent that the others and the operator reach first (the first of `hosts`, or
the next one while that is lost). Nothing in it has to outlive its process: members send their reports again when they
join, and a new stream begins with everything that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Optional

from trainmaster.agent.hang.diagnosis import MAX_EVIDENCE_BYTES, Inquest, evidence_line
from trainmaster.agent.loop import Loop
from trainmaster.agent.network.connection import BrokenLines, Connection, Lines, Pace, json_line
from trainmaster.agent.network.http import chunk
from trainmaster.agent.network.kept_lines import KeptLines
from trainmaster.agent.network.workers import Member, Members
from trainmaster.agent.planner.ranks import FAILURE_GRACE
from trainmaster.agent.process.environment import mismatches
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.progress import parse_ranks
from trainmaster.wire.report import Report
from trainmaster.wire.values import text, whole

PING_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""A member that sends nothing for so long is counted as lost, though its connection looks alive."""
FIRST_STREAM_SECONDS = 3.0
"""A new agent counts as followed for so long: the operator hears from the kubelet that the container runs, which takes
up to a second and more, and a script that fails at its first import is faster."""
RECONNECT_SECONDS = 1.0
"""An operator whose stream broke counts as following for so long: a blip must not make workers report by exiting."""
MAX_STREAMS = 8
MAX_PROGRESS_BYTES = 8_388_608
"""What is kept of all workers' progress."""
MEMBER_BURST_BYTES, MEMBER_BYTES_PER_SECOND = 524_288, 262_144
"""A member that sends faster is read slower: eight ranks' progress is 4 KiB a second, evidence 64 KiB."""
MAX_MEMBER_PENDING_BYTES = 1_048_576
"""What a member may leave unread; an assignment is at most 256 KiB."""
MEMBERS_IN_HELLO = 256
"""A line must stay below what its reader takes, 64 KiB; the others follow in lines of their own."""
KEPT_ATTEMPTS = 3
"""Attempts of which a worker's last report is kept: the current one, the one before, one that is ahead of the lead."""


class Kept:
    """The last report of a worker in an attempt, with its place in the stream."""

    def __init__(self, seq: int, report: Report) -> None:
        self.seq = seq
        self.report = report


class Lead:
    """See the module. The agent's own worker takes part through `on_stop`, `on_acked`, `on_followed`, `on_mismatch`."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        on_stop: Callable[[int, float, float], None],
        on_acked: Callable[[int], None],
        on_followed: Callable[[], None],
        on_mismatch: Callable[[int, list[str]], None],
        on_inquest: Callable[[dict[str, Any]], None] = lambda _line: None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._on_stop = on_stop
        self._on_acked = on_acked
        self._on_followed = on_followed
        self._on_mismatch = on_mismatch
        self._on_inquest = on_inquest
        self._kept: dict[tuple[int, int], Kept] = {}
        self._progress = KeptLines(MAX_PROGRESS_BYTES)
        self._reached: dict[int, tuple[int, int]] = {}
        """The attempt and the slowest rank's step in each worker's last progress."""
        self._evidence = KeptLines(2 * MAX_EVIDENCE_BYTES)
        self._part: frozenset[int] = frozenset()
        """The assignment's workers."""
        self._assignment_line = b""
        self._inquest = Inquest(loop, self._tell_inquest, self._taking_part, self._steps, self._lose)
        self._streams: list[Connection] = []
        self._assignment: Assignment | None = None
        self._followed_until = time.monotonic() + FIRST_STREAM_SECONDS
        loop.call_later(FIRST_STREAM_SECONDS, self._tell_followed)
        self._seq = 0
        self._acked = 0
        self._mismatched_attempt = 0
        self._own = Member(settings.worker, settings.pod_uid, None)
        self._table = Members(self._own, self._forget)
        self._members = self._table.by_worker
        loop.call_every(PING_SECONDS, self._ping)

    @property
    def followed(self) -> bool:
        """Whether an operator has a stream open here, or had one a moment ago."""
        return bool(self._streams) or time.monotonic() < self._followed_until

    def take_environment(self, attempt: int, environment: dict[str, str]) -> None:
        """This worker's own environment, when it starts an attempt."""
        self._own.environment, self._own.environment_attempt = environment, attempt
        self._compare_environments()

    def assignment_changed(self, assignment: Assignment) -> None:
        """The agent has taken a higher assignment: tell everybody."""
        self._assignment = assignment
        self._part = frozenset(assignment.workers)
        self._own.seen = assignment.attempt
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= assignment.attempt - 1}
        self._progress.forget(lambda worker, _: worker in self._part)
        self._reached = {worker: reached for worker, reached in self._reached.items() if worker in self._part}
        # An attempt's evidence is kept for an operator that comes a little later.
        self._evidence.forget(lambda _, attempt: attempt >= assignment.attempt - 1)
        self._inquest.close()
        self._assignment_line = json_line({"type": "assignment", "assignment": assignment.signed})
        self._table.tell(self._assignment_line)
        self._emit({"type": "worker", **self._own.to_wire(True)})

    def take_report(self, report: Report) -> None:
        """Keep a report and pass it on; the same one again is only acknowledged again."""
        key = (report.attempt, report.worker)
        kept = self._kept.get(key)
        if kept is not None and kept.report == report:
            if kept.seq <= self._acked:
                self._tell_acked(kept.report)
            return
        older = sorted(attempt for attempt, worker in self._kept if worker == report.worker)
        if kept is None and len(older) >= KEPT_ATTEMPTS:
            if report.attempt < older[0]:
                return
            del self._kept[older[0], report.worker]
        self._seq += 1
        self._kept[key] = Kept(self._seq, report)
        self._emit({"type": "report", "seq": self._seq, "report": report.to_wire()})
        if report.state == "Failed" and self._assignment is not None and report.attempt == self._assignment.attempt:
            self._stop_all(report)

    def take_progress(self, worker: int, line: dict[str, Any]) -> None:
        """Keep a worker's progress line and pass it on."""
        data = json_line(line)
        self._progress.keep(worker, line["attempt"], data)
        slowest = min((rank.get("step", -1) for rank in line["ranks"].values()), default=-1)
        self._reached[worker] = line["attempt"], slowest
        self._emit_line(data)

    def take_stall(self, attempt: int) -> None:
        """A rank somewhere is over its limit: ask all workers how theirs stand."""
        if self._assignment is not None and attempt == self._assignment.attempt:
            self._inquest.stalled(attempt, len(self._assignment.workers))

    def take_evidence(self, worker: int, line: dict[str, Any]) -> None:
        """Keep a worker's evidence of a stall, pass it on, and judge when all have answered."""
        if line["ranks"]:
            data = json_line(line)
            self._evidence.keep(worker, line["attempt"], data)
            self._emit_line(data)
        self._inquest.take(worker, line)

    def acknowledge(self, seq: int) -> None:
        """The operator has taken in all reports up to `seq`."""
        self._acked = max(self._acked, min(seq, self._seq))
        for kept in self._kept.values():
            if kept.seq <= seq:
                self._tell_acked(kept.report)

    def open_stream(self, connection: Connection) -> None:
        """Begin a stream: all that is known, then each change. The oldest one gives way where there are too many."""
        while len(self._streams) >= MAX_STREAMS:
            self._streams.pop(0).close()
        members = self.state()
        hello = {
            "type": "hello",
            "leader": self._settings.worker,
            "uid": self._settings.pod_uid,
            "attempt": 0 if self._assignment is None else self._assignment.attempt,
            "workers": members[:MEMBERS_IN_HELLO],
        }
        connection.on_data = lambda _data: None
        connection.on_close = lambda: self._stream_closed(connection)
        lines = [hello, *({"type": "worker", **member} for member in members[MEMBERS_IN_HELLO:])]
        for kept in sorted(self._kept.values(), key=lambda kept: kept.seq):
            lines.append({"type": "report", "seq": kept.seq, "report": kept.report.to_wire()})
        self._streams.append(connection)
        kept_lines = [*self._progress.all(), *self._evidence.all()]
        connection.send(chunk(b"".join([*map(json_line, lines), *kept_lines])))
        self._tell_followed()

    def join(self, connection: Connection, rest: bytes) -> None:
        """Take a member's connection over; it says who it is in its first line."""
        lines = Lines()
        pace = Pace(MEMBER_BURST_BYTES, MEMBER_BYTES_PER_SECOND)
        member: list[Member] = []
        connection.most_pending = MAX_MEMBER_PENDING_BYTES
        self._table.arrive(connection)

        def receive(data: bytes) -> None:
            before = lines.count
            try:
                for line in lines.feed(data):
                    if connection.closed:
                        # The line before made it give way, or it is one too many unread.
                        return
                    if not member:
                        joined = self._hello(connection, line)
                        if joined is None:
                            self._table.turn_away(connection)
                            return
                        self._table.arrived(connection)
                        member.append(joined)
                    else:
                        self._from_member(member[0], line)
            except BrokenLines:
                connection.close()
                closed()
                return
            wait = pace.spend(len(data), lines.count - before)
            if wait and not connection.closed:
                connection.pause(wait)

        def closed() -> None:
            self._table.arrived(connection)
            if member and member[0].connection is connection:
                member[0].connection = None
                self._emit({"type": "worker", **member[0].to_wire(False)})

        connection.on_data = receive
        connection.on_close = closed
        if rest:
            receive(rest)

    def state(self) -> list[dict[str, Any]]:
        """All members as they stand in the stream."""
        return [member.to_wire(member is self._own) for member in self._members.values()]

    def _hello(self, connection: Connection, line: dict[str, Any]) -> Member | None:
        worker, uid = whole(line.get("worker")), line.get("uid")
        if line.get("type") != "hello" or worker is None or not isinstance(uid, str) or len(uid) > 64:
            return None
        if line.get("job") != self._settings.job_uid:
            return None
        if not self._table.make_room(worker, self._part):
            return None
        before = self._members.get(worker)
        if before is not None and before.connection is not None:
            before.connection.close()
        member = Member(worker, uid, connection)
        member.seen = whole(line.get("seen")) or 0
        self._members[worker] = member
        self._emit({"type": "worker", **member.to_wire(False)})
        connection.send(self._assignment_line)
        connection.send_line({"type": "watched", "value": self.followed, "uid": self._settings.pod_uid})
        if self._inquest.question is not None:
            connection.send_line(self._inquest.question)
        failed = self._failed_report()
        if failed is not None:
            connection.send_line(_stop_line(failed))
        return member

    def _forget(self, worker: int) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if key[1] != worker}

    def _from_member(self, member: Member, line: dict[str, Any]) -> None:
        member.heard_at = time.monotonic()
        kind = line.get("type")
        if kind == "report":
            report = Report.read(line.get("report"))
            # A member speaks for itself only.
            if report is not None and report.worker == member.worker:
                self.take_report(report._replace(uid=member.uid))
        elif kind == "progress":
            attempt, at = whole(line.get("attempt")), line.get("at")
            if attempt is not None and not isinstance(at, bool) and isinstance(at, (int, float)) and 0 <= at < 1e12:
                try:
                    ranks = {str(rank): said.to_wire() for rank, said in parse_ranks(line.get("ranks")).items()}
                except ProtocolError:
                    return
                self.take_progress(
                    member.worker,
                    {"type": "progress", "attempt": attempt, "worker": member.worker, "ranks": ranks, "at": at},
                )
        elif kind == "stalled":
            self.take_stall(whole(line.get("attempt")) or 0)
        elif kind == "evidence":
            attempt = whole(line.get("attempt"))
            if attempt is not None:
                self.take_evidence(member.worker, evidence_line(attempt, member.worker, line.get("ranks")))
        elif kind == "environment":
            member.environment = clean_environment(line.get("environment"))
            member.environment_attempt = whole(line.get("attempt")) or 0
            self._compare_environments()
        elif kind == "seen":
            seen = whole(line.get("attempt"))
            if seen is not None and seen > member.seen:
                member.seen = seen
                self._emit({"type": "worker", **member.to_wire(False)})

    def _taking_part(self) -> frozenset[int]:
        return self._part

    def _steps(self, worker: int, since: float) -> Optional[int]:
        """How far a worker was by its last progress, its slowest rank; -1 where it never said, None where it was heard
        since that moment."""
        member = self._members.get(worker)
        if member is not None and member.connected and member.heard_at >= since:
            return None
        attempt, step = self._reached.get(worker, (-1, -1))
        return step if self._assignment is not None and attempt == self._assignment.attempt else -1

    def _lose(self, attempt: int, workers: list[int], sentence: str) -> None:
        """Report workers whose agents don't answer. One that comes back joins again and is told what became of it."""
        for worker in workers:
            member = self._members.get(worker)
            if member is not None and member.connection is not None and not member.connection.closed:
                member.connection.close()
                member.connection.on_close()
            uid = member.uid if member is not None else self._expected_uid(worker)
            lost = Report(attempt, worker, uid, "Failed", reason="AgentLost", error=sentence, at=time.time())
            self.take_report(lost)

    def _expected_uid(self, worker: int) -> str:
        """The pod that the assignment names for a worker; empty in the first attempt, which names none."""
        assignment = self._assignment
        if assignment is None or assignment.uids is None or worker not in assignment.workers:
            return ""
        return assignment.uids[assignment.workers.index(worker)]

    def _tell_inquest(self, line: dict[str, Any]) -> None:
        self._table.tell(json_line(line))
        self._on_inquest(line)

    def _stop_all(self, report: Report) -> None:
        stop = _stop_line(report)
        self._table.tell(json_line(stop))
        self._on_stop(report.attempt, stop["graceSeconds"], stop["afterSeconds"])

    def _failed_report(self) -> Report | None:
        if self._assignment is None:
            return None
        failed = [
            kept.report
            for (attempt, _), kept in self._kept.items()
            if attempt == self._assignment.attempt and kept.report.state == "Failed"
        ]
        return max(failed, key=lambda report: report.culprit, default=None)

    def _tell_acked(self, report: Report) -> None:
        # Only what has ended is acknowledged: an answer to `Starting` could else be taken for one to `Failed`.
        if not report.ended:
            return
        if report.worker == self._settings.worker:
            self._on_acked(report.attempt)
            return
        member = self._members.get(report.worker)
        if member is not None and member.connected and member.connection is not None and member.uid == report.uid:
            member.connection.send_line({"type": "ack", "attempt": report.attempt})

    def _tell_followed(self) -> None:
        self._table.tell(json_line({"type": "watched", "value": self.followed}))
        self._on_followed()

    def _compare_environments(self) -> None:
        """Once all workers have started an attempt: fail it where they differ in what must be equal."""
        assignment = self._assignment
        if assignment is None or assignment.attempt <= self._mismatched_attempt:
            return
        members = [self._members.get(worker) for worker in assignment.workers]
        environments: dict[int, dict[str, str]] = {}
        for worker, member in zip(assignment.workers, members):
            if member is None or member.environment_attempt != assignment.attempt:
                return
            environments[worker] = member.environment
        lines = mismatches(environments)
        if not lines:
            return
        self._mismatched_attempt = assignment.attempt
        message = json_line({"type": "mismatch", "attempt": assignment.attempt, "lines": lines})
        for member in members:
            if member is not None and member.connected and member.connection is not None:
                member.connection.send(message)
        self._on_mismatch(assignment.attempt, lines)

    def _emit(self, line: dict[str, Any]) -> None:
        self._emit_line(json_line(line))

    def _emit_line(self, line: bytes) -> None:
        data = chunk(line)
        for stream in list(self._streams):
            stream.send(data)

    def _stream_closed(self, connection: Connection) -> None:
        if connection in self._streams:
            self._streams.remove(connection)
            if not self._streams:
                self._followed_until = time.monotonic() + RECONNECT_SECONDS
                self._loop.call_later(RECONNECT_SECONDS, self._tell_followed)

    def _ping(self) -> None:
        self._emit({"type": "ping"})
        line = json_line({"type": "ping"})
        self._table.turn_away_late()
        silent_since = time.monotonic() - SILENCE_SECONDS
        for member in self._members.values():
            connection = member.connection
            if connection is None or connection.closed:
                continue
            if member.heard_at < silent_since:
                connection.close()
                connection.on_close()
            else:
                connection.send(line)


def clean_environment(value: Any) -> dict[str, str]:
    """Bound what a member says of its environment."""
    if not isinstance(value, dict):
        return {}
    return {text(name, 64): text(said, 256) for name, said in list(value.items())[:64]}


def _stop_line(report: Report) -> dict[str, Any]:
    # After a mere broken connection the rank at fault may still be on its way out: SIGTERM would hide its exit code.
    after = 0.0 if report.culprit else FAILURE_GRACE
    return {
        "type": "stop",
        "attempt": report.attempt,
        "graceSeconds": FAILURE_GRACE,
        "afterSeconds": after,
        "report": report.to_wire(),
    }
