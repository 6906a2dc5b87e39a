"""A leader and the agents that have joined it send each other these lines (docs/protocol.md, "The agents' port").

Progress, evidence and output are the lines of the stream (`stream`, `output`). `Ping` also stands for every line that
this side doesn't know: a newer agent may send more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from trainmaster_operator.wire import limits
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, OutputLine, Ping, ProgressLine, parse_ranks_line
from trainmaster_operator.wire.values import ProtocolError, mapping_in, seconds_in, shown, text, whole_in


class Joined(NamedTuple):
    """A follower names itself in its first line."""

    job: str
    worker: int
    uid: str
    seen: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "hello", **self._asdict()}


class Reported(NamedTuple):
    """A follower sends its worker's report."""

    report: Report

    def to_wire(self) -> dict[str, Any]:
        return {"type": "report", "report": self.report.to_wire()}


class Stalled(NamedTuple):
    """A rank of the follower is over its limit."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "stalled", "attempt": self.attempt}


class Seen(NamedTuple):
    """The follower has accepted a higher assignment."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "seen", "attempt": self.attempt}


class Environment(NamedTuple):
    """The follower has started an attempt in this environment; the leader compares it across workers."""

    attempt: int
    environment: Mapping[str, str]

    @property
    def line(self) -> str:
        """Returns the devices and libraries that the ranks run on, for a person."""
        found = self.environment
        nccl = next((value for name, value in found.items() if name.startswith("nvidia-nccl")), "")
        named = {
            "driver": found.get("driver"),
            "CUDA": found.get("torch cuda"),
            "HIP": found.get("torch hip"),
            "NCCL": nccl,
            "torch": found.get("torch"),
        }
        known = (f"{name} {value}" for name, value in named.items() if value)
        return ", ".join(filter(None, (found.get("gpus"), *known)))[: limits.MAX_ENVIRONMENT]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "environment", "attempt": self.attempt, "environment": dict(self.environment)}


class Assigned(NamedTuple):
    """The leader passes an assignment on as it came, with its signatures, which are still to be verified."""

    assignment: Mapping[str, Any]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "assignment", "assignment": dict(self.assignment)}


class Ack(NamedTuple):
    """The operator has recorded the end that the follower reported."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "ack", "attempt": self.attempt}


class Watched(NamedTuple):
    """`value` says whether an operator has the leader's stream open; `uid` is the leader's pod, once."""

    value: bool
    uid: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {"type": "watched", "value": self.value, **({"uid": self.uid} if self.uid else {})}


class Stop(NamedTuple):
    """A rank failed: stop the ranks of this attempt; SIGTERM comes after `after_seconds`, SIGKILL a grace later."""

    attempt: int
    grace_seconds: float
    after_seconds: float = 0.0
    report: Optional[Report] = None
    """The failed worker's, which the follower publishes too: an operator that watches it receives the cause first."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "type": "stop",
            "attempt": self.attempt,
            "graceSeconds": self.grace_seconds,
            "afterSeconds": self.after_seconds,
            **({} if self.report is None else {"report": self.report.to_wire()}),
        }


class Collect(NamedTuple):
    """A rank somewhere stalled: send the evidence of your ranks, in at most `bytes` of text.

    With a `request` it is an operator that asks, of ranks that may all be well: nothing follows from the answers.
    """

    attempt: int
    bytes: int
    request: str = ""

    def to_wire(self) -> dict[str, Any]:
        request = {"request": self.request} if self.request else {}
        return {"type": "collect", "attempt": self.attempt, "bytes": self.bytes, **request}


class Hung(NamedTuple):
    """`rank` stopped first; its worker reports Hung."""

    attempt: int
    rank: int
    message: str

    def to_wire(self) -> dict[str, Any]:
        return {"type": "hung", "attempt": self.attempt, "rank": self.rank, "message": self.message}


class Patience(NamedTuple):
    """Nobody hangs: there is good reason to wait so long."""

    attempt: int
    seconds: float

    def to_wire(self) -> dict[str, Any]:
        return {"type": "patience", "attempt": self.attempt, "seconds": round(self.seconds, 3)}


class Mismatch(NamedTuple):
    """The workers' environments differ in these lines."""

    attempt: int
    lines: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "mismatch", "attempt": self.attempt, "lines": list(self.lines)}


class Modules(NamedTuple):
    """A rank had imported these modules when it did its first step; those that others of them import are left out."""

    names: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "modules", "names": list(self.names)}


FollowerMessage = Union[
    Joined, Reported, ProgressLine, EvidenceLine, OutputLine, Stalled, Seen, Environment, Modules, Ping
]
LeaderMessage = Union[Assigned, Ack, Watched, Stop, Collect, Hung, Patience, Mismatch, Modules, OutputLine, Ping]


def parse_from_follower(data: Mapping[str, Any]) -> FollowerMessage:
    """Parse a follower's line, in which `worker` of progress and evidence may be missing. Raises ProtocolError."""
    kind = data.get("type")
    if kind in ("progress", "evidence"):
        return parse_ranks_line({"worker": 0, **data})
    if kind == "output":
        return OutputLine.parse(data)
    if kind == "report":
        return Reported(Report.parse(data.get("report")))
    if kind == "hello":
        uid = data.get("uid")
        if not isinstance(uid, str) or len(uid) > limits.MAX_UID:
            raise ProtocolError(f"hello.uid: {shown(uid)} is not a text of at most {limits.MAX_UID} characters")
        seen = whole_in({"seen": 0, **data}, "seen")
        return Joined(text(data.get("job"), limits.MAX_UID), whole_in(data, "worker", limits.MAX_INDEX), uid, seen)
    if kind == "stalled":
        return Stalled(whole_in(data, "attempt"))
    if kind == "seen":
        return Seen(whole_in(data, "attempt"))
    if kind == "environment":
        return Environment(whole_in(data, "attempt"), _environment(mapping_in(data, "environment")))
    if kind == "modules":
        return Modules(module_names(data.get("names")))
    return Ping()


def parse_from_leader(data: Mapping[str, Any]) -> LeaderMessage:
    """Parse a leader's line. Raises ProtocolError with what is wrong."""
    kind = data.get("type")
    if kind == "assignment":
        return Assigned(mapping_in(data, "assignment"))
    if kind == "ack":
        return Ack(whole_in(data, "attempt"))
    if kind == "watched":
        return Watched(data.get("value") is True, text(data.get("uid"), limits.MAX_UID))
    if kind == "stop":
        return Stop(
            whole_in(data, "attempt"),
            seconds_in(data, "graceSeconds", limits.MAX_RANK_GRACE_SECONDS),
            seconds_in({"afterSeconds": 0, **data}, "afterSeconds", limits.MAX_RANK_GRACE_SECONDS),
            None if data.get("report") is None else Report.parse(data["report"]),
        )
    if kind == "collect":
        request = text(data.get("request"), limits.MAX_REQUEST)
        return Collect(whole_in(data, "attempt"), whole_in(data, "bytes", limits.MAX_EVIDENCE_BYTES + 1), request)
    if kind == "hung":
        message = text(data.get("message"), limits.MAX_ERROR_CHARACTERS)
        return Hung(whole_in(data, "attempt"), whole_in(data, "rank", limits.MAX_INDEX), message)
    if kind == "patience":
        return Patience(whole_in(data, "attempt"), seconds_in(data, "seconds", limits.MAX_SECONDS))
    if kind == "mismatch":
        lines = data.get("lines")
        if not isinstance(lines, list):
            raise ProtocolError(f"mismatch.lines: {shown(lines)} is not a list")
        return Mismatch(
            whole_in(data, "attempt"),
            tuple(text(line, limits.MAX_DIFFERENCE_CHARACTERS) for line in lines[: limits.MAX_DIFFERENCES]),
        )
    if kind == "modules":
        return Modules(module_names(data.get("names")))
    if kind == "output":
        return OutputLine.parse(data)
    return Ping()


def module_names(
    data: object, most: int = limits.MAX_MODULES, most_characters: int = limits.MAX_MODULES_CHARACTERS
) -> tuple[str, ...]:
    """Returns the names of a list that can be modules', as many as may be sent; raises ProtocolError for another thing.

    What a rank has imported under a stranger name is ignored: it was made by a program, not found in a folder.
    """
    if not isinstance(data, list):
        raise ProtocolError(f"modules.names: {shown(data)} is not a list")
    names: list[str] = []
    for name in data[:most]:
        if (
            isinstance(name, str)
            and len(name) <= limits.MAX_MODULE_NAME
            and all(map(str.isidentifier, name.split(".")))
        ):
            most_characters -= len(name)
            if name.isascii() and most_characters >= 0:
                names.append(name)
    return tuple(names)


def _environment(data: Mapping[str, Any]) -> dict[str, str]:
    items = list(data.items())[: limits.MAX_VARIABLES]
    return {text(name, limits.MAX_VARIABLE_NAME): text(value, limits.MAX_VARIABLE_CHARACTERS) for name, value in items}
