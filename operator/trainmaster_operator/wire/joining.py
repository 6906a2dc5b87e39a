"""A leader and its followers exchange these lines (docs/protocol.md, "The agents' port").

For progress, evidence and output they use the stream's lines (`stream`). A line of an unknown kind counts as a `Ping`,
because a newer agent may send more kinds of lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

from trainmaster_operator.wire import limits
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, OutputLine, Ping, ProgressLine, SystemLine, parse_ranks_line
from trainmaster_operator.wire.values import ProtocolError, fields_of, mapping_in, seconds_in, shown, text, whole_in


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
        return {"type": "report", **fields_of(self)}


class Stalled(NamedTuple):
    """Stalled reports that a rank of the follower is over its limit.

    `notice`: only the learnt limit is exceeded, after which people are informed.
    """

    attempt: int
    notice: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {"type": "stalled", **fields_of(self, "notice")}


class Resumed(NamedTuple):
    """Resumed reports that no rank of the follower exceeds the learnt limit any more."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "resumed", "attempt": self.attempt}


class Seen(NamedTuple):
    """Seen reports that the follower has accepted an assignment with a higher attempt."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "seen", "attempt": self.attempt}


class Environment(NamedTuple):
    """Environment describes a worker's environment in a started attempt; the leader compares it across workers."""

    attempt: int
    environment: Mapping[str, str]

    @property
    def line(self) -> str:
        """Returns one line for people about the ranks' devices and libraries."""
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
    """The leader forwards an assignment unchanged, with its signatures, which the follower verifies."""

    assignment: Mapping[str, Any]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "assignment", "assignment": dict(self.assignment)}


class Ack(NamedTuple):
    """Ack confirms that the operator has recorded the follower's report of an end."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "ack", "attempt": self.attempt}


class Watched(NamedTuple):
    """`value` is whether an operator watches the leader; `uid` is the uid of the leader's pod, sent once."""

    value: bool
    uid: str = ""

    def to_wire(self) -> dict[str, Any]:
        return {"type": "watched", **fields_of(self, "uid")}


class Gathered(NamedTuple):
    """Gathered reports that all workers with ranks in an attempt have joined the leader."""

    attempt: int

    def to_wire(self) -> dict[str, Any]:
        return {"type": "gathered", "attempt": self.attempt}


class Stop(NamedTuple):
    """Stop orders the follower to stop its ranks after a failure: SIGTERM after `after_seconds`, then SIGKILL.

    SIGKILL follows `grace_seconds` after SIGTERM.
    """

    attempt: int
    grace_seconds: float
    after_seconds: float = 0.0
    report: Optional[Report] = None
    """The failed worker's report. The follower publishes this report before its own, so that operators that watch the
    follower receive the cause first."""

    def to_wire(self) -> dict[str, Any]:
        return {"type": "stop", **fields_of(self, "report")}


class Collect(NamedTuple):
    """Collect requests the evidence of the follower's ranks, with at most `bytes` of text, because a rank has stalled.

    If `request` is set, an operator has requested the evidence instead, perhaps of healthy ranks. If `notice` is set,
    the leader only informs people. In both cases the answers don't end the attempt.
    """

    attempt: int
    bytes: int
    request: str = ""
    notice: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {"type": "collect", **fields_of(self, "request", "notice")}


class Hung(NamedTuple):
    """Hung names the `rank` that stopped first. This rank's worker then reports that it hangs."""

    attempt: int
    rank: int
    message: str

    def to_wire(self) -> dict[str, Any]:
        return {"type": "hung", **fields_of(self)}


class Patience(NamedTuple):
    """Patience informs the follower that no rank hangs, and how long to wait before it asks again."""

    attempt: int
    seconds: float

    def to_wire(self) -> dict[str, Any]:
        return {"type": "patience", "attempt": self.attempt, "seconds": round(self.seconds, 3)}


class Mismatch(NamedTuple):
    """Mismatch lists the differences between the workers' environments."""

    attempt: int
    lines: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "mismatch", **fields_of(self)}


class Modules(NamedTuple):
    """Modules lists a rank's imported modules at its first step, except those that other listed modules import."""

    names: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        return {"type": "modules", **fields_of(self)}


FollowerMessage = Union[
    Joined,
    Reported,
    ProgressLine,
    EvidenceLine,
    SystemLine,
    OutputLine,
    Stalled,
    Resumed,
    Seen,
    Environment,
    Modules,
    Ping,
]
LeaderMessage = Union[
    Assigned, Ack, Watched, Gathered, Stop, Collect, Hung, Patience, Mismatch, Modules, OutputLine, Ping
]


def parse_from_follower(data: Mapping[str, Any]) -> FollowerMessage:
    """Parse a follower's line; `worker` may be missing in progress and evidence. Raises ProtocolError."""
    kind = data.get("type")
    if kind in ("progress", "evidence"):
        return parse_ranks_line({"worker": 0, **data})
    if kind == "output":
        return OutputLine.parse(data)
    if kind == "system":
        return SystemLine.parse(data)
    if kind == "report":
        return Reported(Report.parse(data.get("report")))
    if kind == "hello":
        uid = data.get("uid")
        if not isinstance(uid, str) or len(uid) > limits.MAX_UID:
            raise ProtocolError(f"hello.uid: {shown(uid)} is not a text of at most {limits.MAX_UID} characters")
        seen = whole_in({"seen": 0, **data}, "seen")
        return Joined(text(data.get("job"), limits.MAX_UID), whole_in(data, "worker", limits.MAX_INDEX), uid, seen)
    if kind == "stalled":
        return Stalled(whole_in(data, "attempt"), data.get("notice") is True)
    if kind == "resumed":
        return Resumed(whole_in(data, "attempt"))
    if kind == "seen":
        return Seen(whole_in(data, "attempt"))
    if kind == "environment":
        return Environment(whole_in(data, "attempt"), _environment(mapping_in(data, "environment")))
    if kind == "modules":
        return Modules(module_names(data.get("names")))
    return Ping()


def parse_from_leader(data: Mapping[str, Any]) -> LeaderMessage:
    """Parse a leader's line. Raises ProtocolError with the reason."""
    kind = data.get("type")
    if kind == "assignment":
        return Assigned(mapping_in(data, "assignment"))
    if kind == "ack":
        return Ack(whole_in(data, "attempt"))
    if kind == "watched":
        return Watched(data.get("value") is True, text(data.get("uid"), limits.MAX_UID))
    if kind == "gathered":
        return Gathered(whole_in(data, "attempt"))
    if kind == "stop":
        return Stop(
            whole_in(data, "attempt"),
            seconds_in(data, "graceSeconds", limits.MAX_RANK_GRACE_SECONDS),
            seconds_in({"afterSeconds": 0, **data}, "afterSeconds", limits.MAX_RANK_GRACE_SECONDS),
            None if data.get("report") is None else Report.parse(data["report"]),
        )
    if kind == "collect":
        request = text(data.get("request"), limits.MAX_REQUEST)
        size = whole_in(data, "bytes", limits.MAX_EVIDENCE_BYTES + 1)
        return Collect(whole_in(data, "attempt"), size, request, data.get("notice") is True)
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
    """Returns a list's valid module names, up to the limits. Raises ProtocolError if `value` isn't a list of names.

    A name that no module's file can have is ignored, because it belongs to a module that a program has created.
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
