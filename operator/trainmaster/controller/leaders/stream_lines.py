"""The lines of a lead's stream (docs/protocol.md, "The agents' port") as typed values: pure, bounded, never trusted.

They come from pods that run users' code. Whatever doesn't fit raises ProtocolError, which ends the connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.reconciling.observed.snapshot import MemberView
from trainmaster.wire import evidence, progress
from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.evidence import RankState
from trainmaster.wire.limits import MAX_LINE_BYTES, MAX_PROCESSES
from trainmaster.wire.progress import RankProgress
from trainmaster.wire.report import Report
from trainmaster.wire.values import is_whole, loads, shown, text

# Workers that a stream may name; a job of this size needs another design anyway.
MAX_MEMBERS = 10_000


@dataclass(frozen=True)
class Hello:
    """The first line: who speaks, and whom it knows."""

    lead: int
    uid: str
    attempt: int
    members: tuple[MemberView, ...]


@dataclass(frozen=True)
class ReportLine:
    """A worker's report and its number in the lead's life."""

    seq: int
    report: Report


@dataclass(frozen=True)
class ProgressLine:
    """How far a worker's ranks are."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankProgress]


@dataclass(frozen=True)
class EvidenceLine:
    """How a worker's ranks stood in a stall, with their stacks."""

    attempt: int
    worker: int
    ranks: Mapping[int, RankState]


@dataclass(frozen=True)
class Ping:
    """A sign of life, a line of a kind that a newer agent knows, or one that can't be this job's."""


Line = Hello | ReportLine | ProgressLine | EvidenceLine | MemberView | Ping


class LineBuffer:
    """Cuts a stream's bytes into lines, none longer than the protocol allows."""

    def __init__(self) -> None:
        self._rest = bytearray()
        # So many bytes of the rest hold no line's end: a line that comes byte by byte is searched once.
        self._searched = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that are complete now. Raises ProtocolError when one is blank, or doesn't end."""
        self._rest += chunk
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._searched = 0
            if len(line) > MAX_LINE_BYTES:
                raise ProtocolError(f"a line of {len(line)} bytes is longer than {MAX_LINE_BYTES}")
            if not line.strip():
                raise ProtocolError("a blank line, and no line of the protocol is")
            yield line
        self._searched = len(self._rest)
        if len(self._rest) > MAX_LINE_BYTES:
            raise ProtocolError(f"a line is longer than {MAX_LINE_BYTES} bytes")


def parse_line(line: bytes, most_ranks: int = MAX_PROCESSES) -> Line:
    """One line. Raises ProtocolError with what is wrong.

    `most_ranks`: as many as a worker of the job has. Of a line with more of them none is looked at.
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
        members = data.get("members")
        if not isinstance(members, list):
            raise ProtocolError(f"hello.members: {shown(members)} is not a list")
        if len(members) > MAX_MEMBERS:
            raise ProtocolError(f"hello.members: {len(members)} are more than {MAX_MEMBERS}")
        return Hello(
            lead=_number(data, "lead"),
            uid=_text(data, "uid"),
            attempt=_number(data, "attempt"),
            members=tuple(_member(_mapping(member, "hello.members")) for member in members),
        )
    if kind == "report":
        return ReportLine(_number(data, "seq"), Report.parse(data.get("report")))
    if kind in ("progress", "evidence") and len(_mapping(data.get("ranks"), f"{kind}.ranks")) > most_ranks:
        return Ping()
    if kind == "progress":
        return _progress(data)
    if kind == "evidence":
        return EvidenceLine(_number(data, "attempt"), _number(data, "worker"), evidence.parse_ranks(data.get("ranks")))
    if kind == "member":
        return _member(data)
    return Ping()


def _progress(data: Mapping[str, Any]) -> ProgressLine:
    return ProgressLine(_number(data, "attempt"), _number(data, "worker"), progress.parse_ranks(data.get("ranks")))


def _member(data: Mapping[str, Any]) -> MemberView:
    return MemberView(
        worker=_number(data, "worker"),
        uid=_text(data, "uid"),
        seen=_number(data, "seen"),
        connected=data.get("connected") is True,
    )


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name}: {shown(value)} is not an object")
    return value


def _number(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or not is_whole(value):
        raise ProtocolError(f"{name}: {shown(value)} is not a whole number of at least 0")
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    return text(data.get(name), 64)
