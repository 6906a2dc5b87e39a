"""The leader keeps the last reports of all workers, for operators that begin to watch, and numbers them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Optional

from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ReportLine

KEPT_ATTEMPTS = 3
"""Attempts of which a worker's last report is kept: the current one, the one before, one ahead of the leader."""


class KeptReports:
    """KeptReports has one report of each attempt and worker, with its place in the stream."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], ReportLine] = {}
        self._seq = 0
        self._acked = 0

    def in_order(self) -> list[ReportLine]:
        """Returns all in the order in which they came."""
        return sorted(self._lines.values(), key=lambda line: line.seq)

    def of(self, attempt: int, workers: Iterable[int]) -> list[Report]:
        """Returns what these workers have reported of an attempt, as far as they have."""
        lines = (self._lines.get((attempt, worker)) for worker in workers)
        return [line.report for line in lines if line is not None]

    def add(self, report: Report) -> Optional[ReportLine]:
        """Keep a report; returns its line, None where it is kept already or belongs to an attempt that is too old."""
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
        self._lines[key] = ReportLine(self._seq, report)
        return self._lines[key]

    def is_recorded(self, report: Report) -> bool:
        """Returns whether an operator has recorded this very report."""
        kept = self._lines.get((report.attempt, report.worker))
        return kept is not None and kept.report == report and kept.seq <= self._acked

    def acknowledge(self, seq: int) -> list[Report]:
        """An operator has recorded all reports up to `seq`; returns those that are kept."""
        self._acked = max(self._acked, min(seq, self._seq))
        return [line.report for line in self._lines.values() if line.seq <= seq]

    def forget(self, worker: int) -> None:
        """Forget what a worker has reported: another pod has its place."""
        self._lines = {key: line for key, line in self._lines.items() if key[1] != worker}

    def forget_before(self, attempt: int) -> None:
        """Forget the reports of earlier attempts."""
        self._lines = {key: line for key, line in self._lines.items() if key[0] >= attempt}

    def can_continue(self, failed: Report, others: Collection[int], *, continued: bool) -> bool:
        """Returns whether the ranks that live of these workers, and of the one that has failed, say that they can go on
        in a continued attempt. `continued`: whether the attempt that fails is one, which has only workers that can,
        until they report something else.
        """
        reports = self.of(failed.attempt, others)
        some = failed.able or any(report.able for report in reports) or (continued and len(reports) < len(others))
        # A worker whose ranks join has no state before its group has formed, and doesn't say that it is able.
        passed_over = ("Failed", "Starting") if continued else ("Failed",)
        return some and all(report.able or report.state in passed_over for report in reports)
