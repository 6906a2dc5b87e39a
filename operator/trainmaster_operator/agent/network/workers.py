"""The leader's table of workers keeps each worker's last lines, for operators that begin to watch.

Both the memory per follower and the number of followers (the job's workers, and a few more) are bounded. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Optional

from trainmaster_operator.agent.connection import json_line
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.limits import MAX_PROCESSES
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, ProgressLine, ReportLine, WorkerLine

MAX_OTHERS = 256
"""The most followers that the assignment doesn't name, such as pods that wait for an elastic job to grow."""
MAX_ARRIVING = 256
HELLO_SECONDS = 10.0
"""A follower must name itself within this time after it has connected."""
MAX_REPLACED = 4
"""The number of replaced pods to remember for each worker."""


class Worker:
    """Worker is a row of the leader's table."""

    def __init__(self, worker: int, uid: str, peer: Optional[int], now: float, seen: int = 0) -> None:
        self.worker = worker
        self.uid = uid
        self.peer = peer
        """The worker's connection; None if it isn't connected."""
        self.seen = seen
        self.received_at = now
        self.environment: dict[str, str] = {}
        self.environment_attempt = 0
        """The attempt that `environment` is from; files such as the configuration may change between attempts."""
        self.steps: dict[int, int] = {}
        self.steps_attempt = 0
        """The attempt of the worker's last progress. `steps` contains the ranks' steps in this attempt: -1 for a rank
        that hasn't reported any."""
        self.replaced: tuple[str, ...] = ()
        """Pods of this worker that a newer pod replaced while they were connected."""

    def add_steps(self, line: ProgressLine) -> None:
        if line.attempt != self.steps_attempt or len(self.steps) > MAX_PROCESSES:
            self.steps, self.steps_attempt = {}, line.attempt
        steps = {rank: progress.step for rank, progress in line.ranks.items()}
        self.steps.update((rank, -1 if step is None else step) for rank, step in steps.items())


class Workers:
    """Workers is the table, by worker index and by connection; `own` is the leader's own worker.

    `close` closes a connection. `forget` is called with a worker whose row is given to another worker.
    """

    def __init__(self, own: Worker, close: Callable[[int], None], forget: Callable[[int], None]) -> None:
        self.own = own
        self._close = close
        self._forget = forget
        self.by_worker = {own.worker: own}
        """The row of each worker that has joined."""
        self.by_peer: dict[int, Worker] = {}
        """The row of each open connection that has named its worker."""
        self.arriving: dict[int, float] = {}
        """The connections that haven't named themselves, and when they were opened."""

    def line(self, row: Worker) -> WorkerLine:
        return WorkerLine(row.worker, row.uid, row.seen, row is self.own or row.peer is not None)

    def arrive(self, peer: int, now: float) -> None:
        """Add a connection that hasn't named itself, in place of the oldest one if there are too many."""
        if len(self.arriving) >= MAX_ARRIVING:
            self.refuse(next(iter(self.arriving)))
        self.arriving[peer] = now

    def refuse(self, peer: int) -> None:
        del self.arriving[peer]
        self._close(peer)

    def refuse_late(self, now: float) -> None:
        """Close the connections that haven't named themselves in time."""
        for peer in [peer for peer, since in self.arriving.items() if now - since > HELLO_SECONDS]:
            self.refuse(peer)

    def join(self, row: Worker, peer: int, assignment: Assignment) -> bool:
        """Record that a connection has named its worker; returns False if the connection may not stay.

        If there are too many workers that the assignment doesn't name, a new one replaces one that isn't connected.
        """
        worker, named = row.worker, assignment.workers
        before = self.by_worker.get(worker)
        if worker == self.own.worker or not self._is_newest(before, row.uid, assignment.uid_of(worker)):
            return False
        if before is None and worker not in named:
            others = [other for other in self.by_worker.values() if other.worker not in named and other is not self.own]
            if len(others) >= MAX_OTHERS:
                gone = next((other.worker for other in others if other.peer is None), None)
                if gone is None:
                    return False
                del self.by_worker[gone]
                self._forget(gone)
        if before is not None:
            row.replaced, row.steps, row.steps_attempt = before.replaced, before.steps, before.steps_attempt
        if before is not None and before.peer is not None:
            if before.uid != row.uid:
                known = (uid for uid in before.replaced if uid not in (before.uid, row.uid))
                row.replaced = (*known, before.uid)[-MAX_REPLACED:]
            del self.by_peer[before.peer]
            self._close(before.peer)
        del self.arriving[peer]
        self.by_worker[worker] = self.by_peer[peer] = row
        return True

    @staticmethod
    def _is_newest(before: Optional[Worker], uid: str, expected_uid: str) -> bool:
        """Returns whether a pod replaces its worker's connected pod.

        A pod that was itself replaced doesn't. A deleted pod may live for its grace period, or forever if its node's
        kubelet is lost, so the old and the new pod could replace each other again and again.
        """
        if before is None or before.peer is None or before.uid == uid:
            return True
        if expected_uid in (uid, before.uid):
            return uid == expected_uid
        return uid not in before.replaced

    def leave(self, peer: int) -> Optional[Worker]:
        """Record a connection's end. Returns its worker; None if it hadn't named itself."""
        self.arriving.pop(peer, None)
        row = self.by_peer.pop(peer, None)
        if row is not None:
            row.peer = None
        return row


KEPT_ATTEMPTS = 3
"""The number of attempts whose reports are kept: the current, the previous, and one ahead of the leader."""


class KeptReports:
    """KeptReports contains one report for each attempt and worker, with its number in the stream."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], ReportLine] = {}
        self._seq = 0
        self._acked = 0

    def in_order(self) -> list[ReportLine]:
        return list(self._lines.values())

    def of(self, attempt: int, workers: Iterable[int]) -> list[Report]:
        """Returns these workers' reports of an attempt, without the missing ones."""
        lines = (self._lines.get((attempt, worker)) for worker in workers)
        return [line.report for line in lines if line is not None]

    def add(self, report: Report) -> Optional[ReportLine]:
        """Keep a report; returns its line, or None if the report is known or its attempt is too old."""
        key = (report.attempt, report.worker)
        kept = self._lines.get(key)
        if kept is not None and kept.report == report:
            return None
        older = sorted(attempt for attempt, worker in self._lines if worker == report.worker)
        if kept is None and len(older) >= KEPT_ATTEMPTS:
            if report.attempt < older[0]:
                return None
            del self._lines[older[0], report.worker]
        self._seq += 1
        self._lines.pop(key, None)
        self._lines[key] = ReportLine(self._seq, report)
        return self._lines[key]

    def is_recorded(self, report: Report) -> bool:
        """Returns whether an operator has recorded this very report."""
        kept = self._lines.get((report.attempt, report.worker))
        return kept is not None and kept.report == report and kept.seq <= self._acked

    def acknowledge(self, seq: int) -> list[Report]:
        """Record that an operator has received all reports up to `seq`; returns those that are still kept."""
        self._acked = max(self._acked, min(seq, self._seq))
        return [line.report for line in self._lines.values() if line.seq <= seq]

    def forget(self, but: Callable[[int, int], bool]) -> None:
        """Forget all reports except those that `but` accepts, by worker and attempt."""
        self._lines = {key: line for key, line in self._lines.items() if but(key[1], key[0])}

    def can_continue(self, failed: Report, others: Collection[int], *, continued: bool) -> bool:
        """Returns whether the living ranks of these workers, and of the failed worker, report that they can continue.

        `continued`: whether the failing attempt is a continued one. In a continued attempt, a worker that hasn't
        reported counts as able to continue.
        """
        reports = self.of(failed.attempt, others)
        some = failed.able or any(report.able for report in reports) or (continued and len(reports) < len(others))
        # Ranks that join have no group yet, and so no state. Their worker reports `Starting`, and not that they can
        # continue.
        passed_over = ("Failed", "Starting") if continued else ("Failed",)
        return some and all(report.able or report.state in passed_over for report in reports)


MAX_PARTS = MAX_PROCESSES // 16
"""The most kept lines of one worker. A line has room for 16 ranks even if each reports all the metrics that it may."""


class KeptLines:
    """KeptLines keeps the workers' lines about their ranks in the newest attempt, in at most `most` bytes.

    A line that doesn't fit is dropped, and so is the line that it would have replaced.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._attempts: dict[int, int] = {}
        self._lines: dict[int, dict[int, bytes]] = {}

    def keep(self, line: ProgressLine | EvidenceLine) -> bytes:
        """Keep a worker's line, replacing an older line with the same first rank; returns it as it is sent."""
        data, part = json_line(line.to_wire()), min(line.ranks, default=0)
        if self._attempts.get(line.worker) != line.attempt:
            self._drop(line.worker)
        self._attempts[line.worker] = line.attempt
        lines = self._lines.setdefault(line.worker, {})
        self._size -= len(lines.pop(part, b""))
        while len(lines) >= MAX_PARTS:
            self._size -= len(lines.pop(next(iter(lines))))
        if self._size + len(data) <= self._most:
            lines[part] = data
            self._size += len(data)
        return data

    def forget(self, but: Callable[[int, int], bool]) -> None:
        """Forget all lines except those that `but` accepts, by worker and attempt."""
        for worker, attempt in list(self._attempts.items()):
            if not but(worker, attempt):
                self._drop(worker)

    def all(self) -> list[bytes]:
        return [line for lines in self._lines.values() for line in lines.values()]

    def _drop(self, worker: int) -> None:
        self._attempts.pop(worker, None)
        self._size -= sum(map(len, self._lines.pop(worker, {}).values()))
