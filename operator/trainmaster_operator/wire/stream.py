"""A leader sends the operator what it knows of all workers, in these lines (docs/protocol.md, "The agents' port")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, TypeVar, Union

from trainmaster_operator.wire import evidence, progress
from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.evidence import RankState
from trainmaster_operator.wire.limits import (
    MAX_INDEX,
    MAX_PROCESSES,
    MAX_RANKS_IN_LINE,
    MAX_REQUEST,
    MAX_UID,
    MAX_WORKERS,
)
from trainmaster_operator.wire.output import OutputLine
from trainmaster_operator.wire.progress import RankProgress
from trainmaster_operator.wire.recovery import Recovery
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.values import loads, shown, text, time_in, whole_in


class WorkerLine(NamedTuple):
    """The leader knows an agent by its pod's uid, and the highest attempt that the agent has seen."""

    worker: int
    uid: str
    seen: int
    connected: bool

    @classmethod
    def parse(cls, data: object) -> WorkerLine:
        """Check a line, or an entry of a hello. Raises ProtocolError."""
        if not isinstance(data, Mapping):
            raise ProtocolError(f"hello.workers: {shown(data)} is not an object")
        return cls(
            worker=whole_in(data, "worker", MAX_INDEX),
            uid=text(data.get("uid"), MAX_UID),
            seen=whole_in(data, "seen"),
            connected=data.get("connected") is True,
        )

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return {"type": "worker", **self._asdict()}


class Hello(NamedTuple):
    """The first line names the leader, and the workers that it knows."""

    leader: int
    uid: str
    attempt: int
    workers: tuple[WorkerLine, ...]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Hello:
        """Check a line. Raises ProtocolError."""
        workers = data.get("workers")
        if not isinstance(workers, list) or len(workers) > MAX_WORKERS:
            raise ProtocolError(f"hello.workers: {shown(workers)} is not a list of at most {MAX_WORKERS} workers")
        return cls(
            leader=whole_in(data, "leader", MAX_INDEX),
            uid=text(data.get("uid"), MAX_UID),
            attempt=whole_in(data, "attempt"),
            workers=tuple(WorkerLine.parse(worker) for worker in workers),
        )

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        workers = [worker._asdict() for worker in self.workers]
        return {"type": "hello", "leader": self.leader, "uid": self.uid, "attempt": self.attempt, "workers": workers}


class ReportLine(NamedTuple):
    """A worker's report has a number in the leader's life."""

    seq: int
    report: Report

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return {"type": "report", "seq": self.seq, "report": self.report.to_wire()}


class ProgressLine(NamedTuple):
    """The line says how far ranks of a worker are; `more`: the worker's next line goes on with its other ranks."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankProgress]
    at: float = 0.0
    more: bool = False
    recovery: Optional[Recovery] = None
    """How the attempt came about, where a fault ended the one before it."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        recovery = {} if self.recovery is None else {"recovery": self.recovery.to_wire()}
        return {"type": "progress", **_ranks_to_wire(self), **recovery}


class EvidenceLine(NamedTuple):
    """The line says how ranks stand; `more`: the worker's next line goes on with its other ranks."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankState]
    at: float = 0.0
    more: bool = False
    request: str = ""
    """The request for stacks that it answers; empty where a rank has stalled."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        request = {"request": self.request} if self.request else {}
        return {"type": "evidence", **_ranks_to_wire(self), **request}


class Ping(NamedTuple):
    """Ping is a sign of life, a line of a kind that a newer agent knows, or one that can't be this job's."""

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return {"type": "ping"}


StreamLine = Union[Hello, WorkerLine, ReportLine, ProgressLine, EvidenceLine, OutputLine, Ping]
RanksLine = TypeVar("RanksLine", ProgressLine, EvidenceLine)


def parse_line(line: bytes, most_ranks: int = MAX_PROCESSES) -> StreamLine:
    """Parse one line. Raises ProtocolError with what is wrong.

    `most_ranks` is how many a worker of the job has. A line with more of them is passed over.
    """
    try:
        data = loads(line)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(data, dict):
        raise ProtocolError(f"not an object: {line[:80]!r}")
    kind = data.get("type")
    if not isinstance(kind, str):
        raise ProtocolError(f"type: {shown(kind)} is not a text")
    if kind == "hello":
        return Hello.parse(data)
    if kind == "worker":
        return WorkerLine.parse(data)
    if kind == "report":
        return ReportLine(whole_in(data, "seq"), Report.parse(data.get("report")))
    if kind == "output":
        return OutputLine.parse(data)
    if kind in ("progress", "evidence"):
        ranks = data.get("ranks")
        if isinstance(ranks, dict) and len(ranks) > most_ranks:
            return Ping()
        return parse_ranks_line(data)
    return Ping()


def parse_ranks_line(data: Mapping[str, Any]) -> ProgressLine | EvidenceLine:
    """Returns a line of progress, or else of evidence, checked. Raises ProtocolError with what is wrong."""
    attempt, worker = whole_in(data, "attempt"), whole_in(data, "worker", MAX_INDEX)
    at, more = time_in(data, "at"), data.get("more") is True
    if data.get("type") == "progress":
        recovery = Recovery.within(data, "recovery")
        return ProgressLine(attempt, worker, progress.parse_ranks(data.get("ranks")), at, more, recovery)
    request = text(data.get("request"), MAX_REQUEST)
    return EvidenceLine(attempt, worker, evidence.parse_ranks(data.get("ranks")), at, more, request)


def split(line: RanksLine) -> list[RanksLine]:
    """Returns the same in lines of at most MAX_RANKS_IN_LINE ranks in order; one line where there are no ranks."""
    ranks = sorted(line.ranks)
    pieces = [ranks[at : at + MAX_RANKS_IN_LINE] for at in range(0, len(ranks), MAX_RANKS_IN_LINE)] or [[]]
    last = len(pieces) - 1
    return [
        line._replace(ranks={rank: line.ranks[rank] for rank in piece}, more=place < last)
        for place, piece in enumerate(pieces)
    ]


def _ranks_to_wire(line: ProgressLine | EvidenceLine) -> dict[str, Any]:
    ranks: Mapping[int, RankProgress | RankState] = line.ranks
    return {
        "attempt": line.attempt,
        "worker": line.worker,
        "ranks": {str(rank): state.to_wire() for rank, state in ranks.items()},
        "at": round(line.at, 3),
        **({"more": True} if line.more else {}),
    }
