"""The lines that a leader sends to this worker, as events. What comes over the wire is user input: bounded here."""

from __future__ import annotations

from typing import Any

from trainmaster.agent.authority import Authority
from trainmaster.agent.planner import events
from trainmaster.agent.planner.ranks import FAILURE_GRACE
from trainmaster.wire.limits import MAX_DIFFERENCE_CHARACTERS, MAX_DIFFERENCES, MAX_RANK_GRACE_SECONDS
from trainmaster.wire.report import Report
from trainmaster.wire.values import text, whole


def read_line(line: dict[str, Any], authority: Authority) -> events.Event | None:
    """The event that a line is; None for one that means nothing. Raises ProtocolError."""
    kind, attempt = line.get("type"), whole(line.get("attempt"))
    if kind == "assignment":
        return events.AssignmentReceived(authority.read(line.get("assignment")))
    if attempt is None:
        return None
    if kind == "ack":
        return events.Acknowledged(attempt)
    if kind == "stop":
        grace, after = _seconds(line.get("graceSeconds")), _seconds(line.get("afterSeconds"))
        return events.StopRequested(attempt, grace, after, Report.read(line.get("report")))
    if kind in ("collect", "hung", "patience"):
        return events.DiagnosisMessage(attempt, line)
    if kind == "mismatch" and isinstance(line.get("lines"), list):
        lines = (text(said, MAX_DIFFERENCE_CHARACTERS) for said in line["lines"][:MAX_DIFFERENCES])
        return events.MismatchFound(attempt, tuple(lines))
    return None


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_RANK_GRACE_SECONDS:
        return FAILURE_GRACE
    return float(value)
