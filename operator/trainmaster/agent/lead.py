"""The lead: the table of all workers of the job, what an operator streams from it, and what it tells the members.

Every agent holds one; it matters on the agent that the others and the operator reach first (the first of `hosts`, or
the next one while that is lost). Nothing in it has to outlive its process: members send their reports again when they
join, and a new stream begins with everything that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Optional

from trainmaster.agent.assignment import Assignment
from trainmaster.agent.connection import BrokenLines, Connection, Lines, json_line
from trainmaster.agent.environment import mismatches
from trainmaster.agent.http import chunk
from trainmaster.agent.inquest import Inquest, evidence_line
from trainmaster.agent.loop import Loop
from trainmaster.agent.progress import clean_ranks
from trainmaster.agent.report import Report, from_wire, whole
from trainmaster.agent.run import FAILURE_GRACE
from trainmaster.agent.settings import Settings

PING_SECONDS = 5.0
SILENCE_SECONDS = 15.0
"""A member that sends nothing for so long is counted as lost, though its connection looks alive."""
FIRST_STREAM_SECONDS = 3.0
"""A new agent counts as followed for so long: the operator hears from the kubelet that the container runs, which takes
up to a second and more, and a script that fails at its first import is faster."""
RECONNECT_SECONDS = 1.0
"""An operator whose stream broke counts as following for so long: a blip must not make workers report by exiting."""
MAX_STREAMS = 8
MAX_MEMBERS = 8_192
MEMBERS_IN_HELLO = 256
"""A line must stay below what its reader takes, 64 KiB; the others follow in lines of their own."""
KEPT_ATTEMPTS = 3
"""Attempts of which a worker's last report is kept: the current one, the one before, one that is ahead of the lead."""


class Member:
    """One worker as the lead knows it."""

    def __init__(self, worker: int, uid: str, connection: Optional[Connection]) -> None:
        self.worker = worker
        self.uid = uid
        self.connection = connection
        self.seen = 0
        self.heard_at = time.monotonic()
        self.environment: dict[str, str] = {}
        self.environment_attempt = 0
        """The attempt that started in this environment: files such as the configuration may change between two."""

    @property
    def connected(self) -> bool:
        """Whether the lead can tell it something."""
        return self.connection is not None and not self.connection.closed

    def to_wire(self, own: bool) -> dict[str, Any]:
        """Its entry in the stream."""
        return {"worker": self.worker, "uid": self.uid, "seen": self.seen, "connected": own or self.connected}


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
        self._members: dict[int, Member] = {}
        self._kept: dict[tuple[int, int], Kept] = {}
        self._progress: dict[int, dict[str, Any]] = {}
        self._evidence: dict[int, dict[str, Any]] = {}
        self._inquest = Inquest(loop, self._tell_inquest, self._taking_part, self._steps, self._lose)
        self._streams: list[Connection] = []
        self._assignment: Assignment | None = None
        self._followed_until = time.monotonic() + FIRST_STREAM_SECONDS
        loop.call_later(FIRST_STREAM_SECONDS, self._tell_followed)
        self._seq = 0
        self._acked = 0
        self._mismatched_attempt = 0
        self._own = Member(settings.worker, settings.pod_uid, None)
        self._members[settings.worker] = self._own
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
        self._own.seen = assignment.attempt
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= assignment.attempt - 1}
        self._progress = {worker: line for worker, line in self._progress.items() if worker in assignment.workers}
        # An attempt's evidence is kept for an operator that comes a little later.
        self._evidence = {
            worker: line for worker, line in self._evidence.items() if line["attempt"] >= assignment.attempt - 1
        }
        self._inquest.close()
        line = json_line({"type": "assignment", **assignment.to_wire()})
        for member in self._members.values():
            if member.connected and member.connection is not None:
                member.connection.send(line)
        self._emit({"type": "member", **self._own.to_wire(True)})

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
        self._progress[worker] = line
        self._emit(line)

    def take_stall(self, attempt: int) -> None:
        """A rank somewhere is over its limit: ask all workers how theirs stand."""
        if self._assignment is not None and attempt == self._assignment.attempt:
            self._inquest.stalled(attempt, len(self._assignment.workers))

    def take_evidence(self, worker: int, line: dict[str, Any]) -> None:
        """Keep a worker's evidence of a stall, pass it on, and judge when all have answered."""
        if line["ranks"]:
            self._evidence[worker] = line
            self._emit(line)
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
            "lead": self._settings.worker,
            "uid": self._settings.pod_uid,
            "attempt": 0 if self._assignment is None else self._assignment.attempt,
            "members": members[:MEMBERS_IN_HELLO],
        }
        connection.on_data = lambda _data: None
        connection.on_close = lambda: self._stream_closed(connection)
        lines = [hello, *({"type": "member", **member} for member in members[MEMBERS_IN_HELLO:])]
        for kept in sorted(self._kept.values(), key=lambda kept: kept.seq):
            lines.append({"type": "report", "seq": kept.seq, "report": kept.report.to_wire()})
        lines.extend([*self._progress.values(), *self._evidence.values()])
        self._streams.append(connection)
        connection.send(chunk(b"".join(json_line(line) for line in lines)))
        self._tell_followed()

    def join(self, connection: Connection, rest: bytes) -> None:
        """Take a member's connection over; it says who it is in its first line."""
        lines = Lines()
        member: list[Member] = []

        def receive(data: bytes) -> None:
            try:
                for line in lines.feed(data):
                    if not member:
                        joined = self._hello(connection, line)
                        if joined is None:
                            connection.close()
                            return
                        member.append(joined)
                    else:
                        self._from_member(member[0], line)
            except BrokenLines:
                connection.close()
                closed()

        def closed() -> None:
            if member and member[0].connection is connection:
                member[0].connection = None
                self._emit({"type": "member", **member[0].to_wire(False)})

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
        if worker == self._settings.worker or (worker not in self._members and len(self._members) >= MAX_MEMBERS):
            return None
        before = self._members.get(worker)
        if before is not None and before.connection is not None:
            before.connection.close()
        member = Member(worker, uid, connection)
        member.seen = whole(line.get("seen")) or 0
        self._members[worker] = member
        self._emit({"type": "member", **member.to_wire(False)})
        if self._assignment is not None:
            connection.send_line({"type": "assignment", **self._assignment.to_wire()})
        connection.send_line({"type": "followed", "value": self.followed, "uid": self._settings.pod_uid})
        if self._inquest.question is not None:
            connection.send_line(self._inquest.question)
        failed = self._failed_report()
        if failed is not None:
            connection.send_line(_stop_line(failed))
        return member

    def _from_member(self, member: Member, line: dict[str, Any]) -> None:
        member.heard_at = time.monotonic()
        kind = line.get("type")
        if kind == "report":
            report = from_wire(line.get("report"))
            # A member speaks for itself only.
            if report is not None and report.worker == member.worker:
                self.take_report(report._replace(uid=member.uid))
        elif kind == "progress":
            attempt, at = whole(line.get("attempt")), line.get("at")
            if attempt is not None and isinstance(at, (int, float)):
                ranks = clean_ranks(line.get("ranks"))
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
                self._emit({"type": "member", **member.to_wire(False)})

    def _taking_part(self) -> frozenset[int]:
        return frozenset(self._assignment.workers if self._assignment is not None else ())

    def _steps(self, worker: int, since: float) -> Optional[int]:
        """How far a worker was by its last progress, its slowest rank; -1 where it never said, None where it was heard
        since that moment."""
        member = self._members.get(worker)
        if member is not None and member.connected and member.heard_at >= since:
            return None
        line = self._progress.get(worker)
        if line is None or self._assignment is None or line["attempt"] != self._assignment.attempt:
            return -1
        return min((rank.get("step", -1) for rank in line["ranks"].values()), default=-1)

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
        data = json_line(line)
        for member in self._members.values():
            if member.connected and member.connection is not None:
                member.connection.send(data)
        self._on_inquest(line)

    def _stop_all(self, report: Report) -> None:
        line = json_line(_stop_line(report))
        for member in self._members.values():
            if member.connected and member.connection is not None:
                member.connection.send(line)
        stop = _stop_line(report)
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
        line = json_line({"type": "followed", "value": self.followed})
        for member in self._members.values():
            if member.connected and member.connection is not None:
                member.connection.send(line)
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
        data = chunk(json_line(line))
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
    return {str(name)[:64]: str(text)[:256] for name, text in list(value.items())[:64]}


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
