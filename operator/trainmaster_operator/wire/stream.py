"""A leader sends the operator its knowledge of all workers in these lines (docs/protocol.md, "The agents' port")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, TypeVar, Union

from trainmaster_operator.wire import limits, values
from trainmaster_operator.wire.ranks import SECTIONS, RankProgress, RankState, parse_rank_progress, parse_rank_states
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.system import SystemSample
from trainmaster_operator.wire.values import ProtocolError

_HEAD_BYTES, _TIME_BYTES = 512, 14
"""The bytes reserved in an output line for the JSON around the lines, and for each line's time."""
_LEAST_BYTES = 1_024
_ROOM_FOR_RANKS = limits.MAX_LINE_BYTES - 1_024
"""The bytes of a line about ranks, without its own fields."""


class WorkerLine(NamedTuple):
    """WorkerLine contains the pod uid of an agent that the leader knows, and the highest attempt seen by that agent."""

    worker: int
    uid: str
    seen: int
    connected: bool

    @classmethod
    def parse(cls, data: object) -> WorkerLine:
        if not isinstance(data, Mapping):
            raise ProtocolError(f"hello.workers: {values.shown(data)} is not an object")
        return cls(
            worker=values.whole_in(data, "worker", limits.MAX_INDEX),
            uid=values.text(data.get("uid"), limits.MAX_UID),
            seen=values.whole_in(data, "seen"),
            connected=data.get("connected") is True,
        )

    def to_wire(self) -> dict[str, Any]:
        return {"type": "worker", **self._asdict()}


class Hello(NamedTuple):
    """Hello, the first line, names the leader and the workers that it knows."""

    leader: int
    uid: str
    attempt: int
    workers: tuple[WorkerLine, ...]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Hello:
        workers = data.get("workers")
        if not isinstance(workers, list) or len(workers) > limits.MAX_WORKERS:
            what = f"{values.shown(workers)} is not a list of at most {limits.MAX_WORKERS} workers"
            raise ProtocolError(f"hello.workers: {what}")
        return cls(
            leader=values.whole_in(data, "leader", limits.MAX_INDEX),
            uid=values.text(data.get("uid"), limits.MAX_UID),
            attempt=values.whole_in(data, "attempt"),
            workers=tuple(WorkerLine.parse(worker) for worker in workers),
        )

    def to_wire(self) -> dict[str, Any]:
        return {"type": "hello", **values.fields_of(self), "workers": [worker._asdict() for worker in self.workers]}


class ReportLine(NamedTuple):
    """ReportLine contains a worker's report and the report's number; a leader counts the reports since its start."""

    seq: int
    report: Report

    def to_wire(self) -> dict[str, Any]:
        return {"type": "report", **values.fields_of(self)}


class Recovery(NamedTuple):
    """Recovery contains the end of each phase, in seconds after the fault by the worker's clock; None if unknown."""

    detected: Optional[float] = None
    """When the worker detected the fault. This is 0 except for a hang, which began at the last progress."""
    assigned: Optional[float] = None
    """When the next attempt's assignment arrived."""
    stopped: Optional[float] = None
    """When the last process of the previous attempt had ended."""
    launched: Optional[float] = None
    """When the next attempt's ranks, or their launcher, had been started."""
    joined: Optional[float] = None
    """When the ranks had formed their process group."""
    restored: Optional[float] = None
    """When the ranks had restored the state from which they continue."""
    first_step: Optional[float] = None
    """When the ranks had finished their first step."""

    @classmethod
    def within(cls, data: Any, name: str) -> Recovery | None:
        """Returns the recovery in a line's field; None if it is missing. Raises ProtocolError."""
        if data.get(name) is None:
            return None
        found = values.mapping_in(data, name)
        known = {part: key for part in cls._fields if found.get(key := values.camel(part)) is not None}
        return cls(**{part: values.seconds_in(found, key, limits.MAX_SECONDS) for part, key in known.items()})

    def to_wire(self) -> dict[str, float]:
        return {part: round(seconds, 4) for part, seconds in values.fields_of(self, *self._fields).items()}


class ProgressLine(NamedTuple):
    """ProgressLine contains the progress of a worker's ranks. `more`: the worker's next line contains further ranks."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankProgress]
    at: float = 0.0
    more: bool = False
    recovery: Optional[Recovery] = None
    """The recovery that led to this attempt, if a fault ended the previous one."""

    def to_wire(self) -> dict[str, Any]:
        recovery = {} if self.recovery is None else {"recovery": self.recovery.to_wire()}
        return {"type": "progress", **_ranks_to_wire(self), **recovery}


class EvidenceLine(NamedTuple):
    """EvidenceLine contains the states of a worker's ranks. `more`: the worker's next line contains further ranks."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankState]
    at: float = 0.0
    more: bool = False
    request: str = ""
    """The operator's request for stacks that this line answers; empty in the diagnosis of a stall."""
    notice: bool = False
    """Whether the leader only asked in order to inform people (`joining.Collect`)."""

    def to_wire(self) -> dict[str, Any]:
        request = {"request": self.request} if self.request else {}
        notice = {"notice": True} if self.notice else {}
        return {"type": "evidence", **_ranks_to_wire(self), **request, **notice}


class StallLine(NamedTuple):
    """StallLine informs people that ranks make no progress for much longer than usual, or that this is over."""

    attempt: int
    since: float = 0.0
    """When the ranks made their last progress (seconds since the epoch); 0: they make progress again."""
    rank: Optional[int] = None
    """The rank for which the others wait; None if a whole worker doesn't answer."""
    section: str = ""
    usual_seconds: Optional[float] = None
    restart_seconds: float = 0.0
    """The silence after which the ranks are restarted; 0: never."""
    message: str = ""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> StallLine:
        usual = data.get("usualSeconds")
        return cls(
            attempt=values.whole_in(data, "attempt"),
            since=values.time_in(data, "since"),
            rank=None if data.get("rank") is None else values.whole_in(data, "rank", limits.MAX_INDEX),
            section=values.one_of(SECTIONS, data.get("section")) or "",
            usual_seconds=None if usual is None else values.seconds_in(data, "usualSeconds", limits.MAX_SECONDS),
            restart_seconds=values.seconds_in({"restartSeconds": 0, **data}, "restartSeconds", limits.MAX_SECONDS),
            message=values.one_line(data.get("message"), limits.MAX_STALL_CHARACTERS),
        )

    def to_wire(self) -> dict[str, Any]:
        line = self._replace(since=round(self.since, 3), restart_seconds=round(self.restart_seconds, 3))
        return {"type": "stall", **values.fields_of(line, "rank", "section", "usual_seconds")}


class SystemLine(NamedTuple):
    """SystemLine contains a sample of a worker's processor, memory, network and GPUs."""

    attempt: int
    worker: int
    sample: SystemSample
    at: float = 0.0

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> SystemLine:
        """Parse a line; `worker` may be missing. Raises ProtocolError."""
        worker = values.whole_in({"worker": 0, **data}, "worker", limits.MAX_INDEX)
        return cls(values.whole_in(data, "attempt"), worker, SystemSample.parse(data), values.time_in(data, "at"))

    def to_wire(self) -> dict[str, Any]:
        head = {"type": "system", "attempt": self.attempt, "worker": self.worker, "at": round(self.at, 3)}
        return {**head, **self.sample.to_wire()}


class OutputLine(NamedTuple):
    """OutputLine contains the last lines of a worker's container log, up to the end of attempt `attempt`."""

    attempt: int
    worker: int
    uid: str
    lines: tuple[str, ...]
    times: tuple[int, ...]
    """When each line was printed, in milliseconds since the epoch."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> OutputLine:
        """Parse a line; `worker` may be missing. Raises ProtocolError."""
        lines, after = data.get("lines"), data.get("after")
        if not isinstance(lines, list) or not isinstance(after, list) or len(lines) != len(after):
            what = f"{values.shown(lines)} and {values.shown(after)} aren't two lists of one length"
            raise ProtocolError(f"output.lines: {what}")
        if any(values.whole(each) is None for each in after):
            raise ProtocolError("output.after: these aren't all whole numbers of milliseconds")
        begin = round(values.time_in(data, "at") * 1_000)
        times = tuple(begin + milliseconds for milliseconds in after)
        lines = [values.text(line, limits.MAX_OUTPUT_BYTES).replace("\n", " ").replace("\x00", "") for line in lines]
        worker = values.whole_in({"worker": 0, **data}, "worker", limits.MAX_INDEX)
        uid = values.text(data.get("uid"), limits.MAX_UID)
        return cls(values.whole_in(data, "attempt"), worker, uid, tuple(lines), times)

    def to_wire(self) -> dict[str, Any]:
        begin = min(self.times, default=0)
        return {
            "type": "output",
            "attempt": self.attempt,
            "worker": self.worker,
            "uid": self.uid,
            "lines": list(self.lines),
            "at": begin / 1_000,
            "after": [time - begin for time in self.times],
        }


class Ping(NamedTuple):
    """Ping is a sign of life. Lines of unknown kinds, or that are impossible in this job, are also parsed as a Ping."""

    def to_wire(self) -> dict[str, Any]:
        return {"type": "ping"}


StreamLine = Union[Hello, WorkerLine, ReportLine, ProgressLine, EvidenceLine, StallLine, SystemLine, OutputLine, Ping]
RanksLine = TypeVar("RanksLine", ProgressLine, EvidenceLine)


def parse_line(line: bytes, most_ranks: int = limits.MAX_PROCESSES) -> StreamLine:
    """Parse one line. Raises ProtocolError with the reason.

    `most_ranks` is the job's number of ranks per worker. A line with more ranks is ignored.
    """
    try:
        data = values.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(data, dict):
        raise ProtocolError(f"not an object: {line[:80]!r}")
    kind = data.get("type")
    if not isinstance(kind, str):
        raise ProtocolError(f"type: {values.shown(kind)} is not a text")
    if kind == "hello":
        return Hello.parse(data)
    if kind == "worker":
        return WorkerLine.parse(data)
    if kind == "report":
        return ReportLine(values.whole_in(data, "seq"), Report.parse(data.get("report")))
    if kind == "output":
        return OutputLine.parse(data)
    if kind == "system":
        return SystemLine.parse(data)
    if kind == "stall":
        return StallLine.parse(data)
    if kind in ("progress", "evidence"):
        ranks = data.get("ranks")
        if isinstance(ranks, dict) and len(ranks) > most_ranks:
            return Ping()
        return parse_ranks_line(data)
    return Ping()


def parse_ranks_line(data: Mapping[str, Any]) -> ProgressLine | EvidenceLine:
    """Parses a line of progress or evidence. Raises ProtocolError with the reason."""
    attempt, worker = values.whole_in(data, "attempt"), values.whole_in(data, "worker", limits.MAX_INDEX)
    at, more = values.time_in(data, "at"), data.get("more") is True
    if data.get("type") == "progress":
        recovery = Recovery.within(data, "recovery")
        return ProgressLine(attempt, worker, parse_rank_progress(data.get("ranks")), at, more, recovery)
    request = values.text(data.get("request"), limits.MAX_REQUEST)
    states = parse_rank_states(data.get("ranks"))
    return EvidenceLine(attempt, worker, states, at, more, request, data.get("notice") is True)


def split(line: RanksLine) -> list[RanksLine]:
    """Splits a line into lines that a reader accepts, in order of the ranks. Without ranks there is one line."""
    pieces: list[list[int]] = [[]]
    room = _ROOM_FOR_RANKS
    for rank, state in sorted(line.ranks.items()):
        # A rank's other fields need at most this many bytes in a line with MAX_RANKS_IN_LINE ranks.
        size = _ROOM_FOR_RANKS // limits.MAX_RANKS_IN_LINE
        if isinstance(state, RankProgress) and (state.metrics or state.result):
            size = max(size, len(json.dumps(state.to_wire())) + 16)
        if pieces[-1] and (size > room or len(pieces[-1]) == limits.MAX_RANKS_IN_LINE):
            pieces.append([])
            room = _ROOM_FOR_RANKS
        pieces[-1].append(rank)
        room -= size
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


def output_share(workers: int) -> int:
    """Returns the limit of a worker's output line in bytes, so that a leader can keep the lines of all `workers`."""
    return max(_LEAST_BYTES, min(limits.MAX_OUTPUT_BYTES, limits.MAX_KEPT_OUTPUT_BYTES // max(workers, 1)))


def newest_lines(lines: Iterable[tuple[int, str]], limit: int) -> list[tuple[int, str]]:
    """Returns the last lines and their times, as many as fit into an output line of at most `limit` bytes."""
    kept: list[tuple[int, str]] = []
    left = limit - _HEAD_BYTES
    for time, line in reversed(list(lines)):
        left -= len(json.dumps(line)) + _TIME_BYTES
        if left < 0:
            break
        kept.append((time, line))
    return kept[::-1]


class LineBuffer:
    """LineBuffer splits a connection's bytes into lines of at most `longest` bytes."""

    def __init__(self, longest: int = limits.MAX_LINE_BYTES) -> None:
        self._longest = longest
        self._rest = bytearray()
        # This many bytes of the unfinished line were already searched for a line end, so that a line that arrives byte
        # by byte is searched only once.
        self._searched = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Returns the lines that are complete now. Raises ProtocolError if a line is too long."""
        self._rest += chunk
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._searched = 0
            if len(line) > self._longest:
                raise ProtocolError(f"a line of {len(line)} bytes is longer than {self._longest}")
            yield line
        self._searched = len(self._rest)
        if len(self._rest) > self._longest:
            raise ProtocolError(f"a line is longer than {self._longest} bytes")
