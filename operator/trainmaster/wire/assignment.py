"""An assignment names an attempt, its workers, and whether to run it (docs/protocol.md, "The assignment").

It comes to an agent three ways (the annotation's file, a push to the leader, the leader's broadcast), in any order and
more than once. `newer` is the merge of them all: the highest attempt wins, at the same attempt `Hold` wins over `Run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Optional

from trainmaster.wire.errors import ProtocolError
from trainmaster.wire.limits import (
    MAX_ASSIGNMENT_BYTES,
    MAX_ATTEMPT,
    MAX_HOST,
    MAX_INDEX,
    MAX_PROCESSES,
    MAX_SECONDS,
    MAX_UID,
    MAX_WORKERS,
)
from trainmaster.wire.ports import FIRST_PORT, LAST_PORT, is_master_port
from trainmaster.wire.values import loads, number, shown, whole


class Assignment(NamedTuple):
    """Assignment is one attempt. Its lists are in rank order, so that a position in them is a NODE_RANK."""

    job: str
    """The job's uid."""
    attempt: int
    """0 only ever comes with `Hold`: the first attempt's order isn't known yet."""
    workers: tuple[int, ...]
    uids: Optional[tuple[str, ...]]
    """None in the first attempt. An empty one is of a pod that isn't known: nobody is that worker."""
    hosts: tuple[str, ...]
    port: int
    state: Literal["Run", "Hold"] = "Run"
    grace_seconds: float = 0.4
    processes: Optional[tuple[int, ...]] = None
    """Ranks of each worker, where they differ; None: all have equally many."""
    code: Optional[str] = None
    """The digest of the code that the attempt runs (spec.code); None: what the image has."""
    signed: Optional[Mapping[str, Any]] = None
    """The JSON object as an agent got it, with its signatures: what goes on to others is what was signed."""

    @property
    def master(self) -> str:
        """Returns the host that rank 0 listens on."""
        return self.hosts[0]

    @classmethod
    def parse(cls, data: object) -> Assignment:
        """Check a JSON object; raises ProtocolError with the field and its value. Unknown fields are passed over."""
        if not isinstance(data, dict):
            raise ProtocolError(f"assignment: {shown(data)} is not an object")
        workers = _list(data, "workers")
        hosts = _list(data, "hosts", len(workers))
        uids = None if data.get("uids") is None else _list(data, "uids", len(workers))
        processes = None if data.get("processes") is None else _list(data, "processes", len(workers))
        indexes = tuple(_whole(worker, "workers", 0, MAX_INDEX - 1) for worker in workers)
        if len(set(indexes)) != len(indexes):
            raise ProtocolError("assignment.workers: an index stands there twice")
        state = data.get("state", "Run")
        if state != "Run" and state != "Hold":
            raise ProtocolError(f"assignment.state: {shown(state)} is neither Run nor Hold")
        if _text(data.get("master", hosts[0]), "master", MAX_HOST) != hosts[0]:
            raise ProtocolError(f"assignment.master: {shown(data['master'])} is not the first of the hosts")
        port = _whole(data.get("port"), "port", FIRST_PORT, LAST_PORT)
        if not is_master_port(port):
            raise ProtocolError(f"assignment.port: {port} is one that nodes serve themselves")
        return cls(
            job=_text(data.get("job"), "job", MAX_UID),
            attempt=_whole(data.get("attempt"), "attempt", 0, MAX_ATTEMPT),
            workers=indexes,
            uids=None if uids is None else tuple(_text(uid, "uids", MAX_UID, least=0) for uid in uids),
            hosts=tuple(_text(host, "hosts", MAX_HOST) for host in hosts),
            port=port,
            state=state,
            grace_seconds=_seconds(data.get("graceSeconds", 0.4)),
            processes=None if processes is None else tuple(_whole(n, "processes", 1, MAX_PROCESSES) for n in processes),
            code=_digest(data.get("code")),
        )

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object, without signatures."""
        return {
            "job": self.job,
            "attempt": self.attempt,
            "workers": list(self.workers),
            "uids": None if self.uids is None else list(self.uids),
            "hosts": list(self.hosts),
            "master": self.master,
            "port": self.port,
            "state": self.state,
            "graceSeconds": self.grace_seconds,
            **({} if self.processes is None else {"processes": list(self.processes)}),
            **({} if self.code is None else {"code": self.code}),
        }

    def held(self) -> Assignment:
        """Returns the same attempt, whose ranks shall stop and wait."""
        return self._replace(state="Hold")

    def first_rank(self, node_rank: int, own: int) -> int:
        """Returns the global rank of a worker's local rank 0; `own`: this worker's number of ranks."""
        return node_rank * own if self.processes is None else sum(self.processes[:node_rank])

    def world_size(self, own: int) -> int:
        """Returns the number of ranks of the attempt; `own`: this worker's number of ranks."""
        return len(self.workers) * own if self.processes is None else sum(self.processes)

    def node_rank(self, worker: int, uid: str) -> int | None:
        """Returns the NODE_RANK of a worker's pod, or None where its index or its uid isn't listed."""
        if worker not in self.workers:
            return None
        position = self.workers.index(worker)
        if self.uids is not None and (not uid or self.uids[position] != uid):
            return None
        return position


def is_digest(text: str) -> bool:
    """Returns whether a text is a SHA-256 as an archive's digest is written: it becomes the name of a file."""
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def newer(one: Assignment | None, other: Assignment) -> bool:
    """Returns whether `other` replaces `one`."""
    if one is None or other.attempt != one.attempt:
        return one is None or other.attempt > one.attempt
    return other.state == "Hold" and one.state == "Run"


def parse_text(text: object) -> Any:
    """Returns the JSON of an assignment's text, to be checked by `Assignment.parse`. Raises ProtocolError."""
    if not isinstance(text, (str, bytes)):
        raise ProtocolError("assignment: not a text")
    if len(text) > MAX_ASSIGNMENT_BYTES:
        raise ProtocolError(f"assignment: longer than {MAX_ASSIGNMENT_BYTES} bytes")
    try:
        return loads(text)
    except ValueError as error:
        raise ProtocolError(f"assignment: not JSON: {str(error)[:100]}") from None


def _list(data: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_WORKERS:
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a list of 1 to {MAX_WORKERS} items")
    if length is not None and len(value) != length:
        raise ProtocolError(f"assignment.{name}: {len(value)} items for {length} workers")
    return value


def _whole(value: object, name: str, least: int, most: int) -> int:
    found = whole(value, most + 1)
    if found is None or found < least:
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a whole number from {least} to {most}")
    return found


def _seconds(value: object) -> float:
    found = number(value)
    if found is None or not 0 <= found < MAX_SECONDS:
        raise ProtocolError(f"assignment.graceSeconds: {shown(value)} is not a number of seconds of at least 0")
    return found


def _digest(value: object) -> str | None:
    if value is None or (isinstance(value, str) and is_digest(value)):
        return value
    raise ProtocolError(f"assignment.code: {shown(value)} is not a SHA-256 in 64 hexadecimal digits")


def _text(value: object, name: str, most: int, *, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a text of {least} to {most} characters")
    return value
