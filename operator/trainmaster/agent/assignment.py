"""The assignment: what this attempt is, who takes part, and whether to run (docs/protocol.md, "The assignment").

It comes three ways (the annotation's file, a push to the lead, the lead's broadcast), in any order and more than once.
`newer` is the merge of them all: the highest attempt wins, at the same attempt `Hold` wins over `Run`.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Optional

from trainmaster.agent.errors import InvalidAssignment

MAX_BYTES = 262_144
"""Kubernetes allows 256 KiB for all annotations of an object."""
MAX_WORKERS = 4_096
MAX_PROCESSES = 1_024
MAX_ATTEMPT = 1_000_000
"""An attempt every second for eleven days. One that is higher wasn't counted by anybody."""
MASTER_PORTS = (20_000, 28_980)
"""The operator's range (docs/protocol.md), the end apart."""


class Assignment(NamedTuple):
    """One attempt; `workers`, `uids`, `hosts` and `processes` are in rank order, so a position is a NODE_RANK.

    Only `Authority.read` makes one of what came from outside.
    """

    job: str
    """The job's uid."""
    attempt: int
    workers: tuple[int, ...]
    uids: Optional[tuple[str, ...]]
    hosts: tuple[str, ...]
    master: str
    port: int
    state: str
    grace_seconds: float
    wire: dict[str, Any]
    """The JSON object as it came, with its signatures: what goes on to others is what was signed."""
    processes: Optional[tuple[int, ...]] = None
    """Ranks of each worker, where they differ; None: all have as many as this one."""

    def first_rank(self, node_rank: int, own: int) -> int:
        """The global rank of a worker's local rank 0; `own`: this worker's number of ranks."""
        return node_rank * own if self.processes is None else sum(self.processes[:node_rank])

    def world_size(self, own: int) -> int:
        """Ranks of the attempt; `own`: this worker's number of ranks."""
        return len(self.workers) * own if self.processes is None else sum(self.processes)

    def node_rank(self, worker: int, uid: str) -> int | None:
        """The NODE_RANK of a worker's pod, or None where it doesn't take part: its index or its uid isn't listed."""
        if worker not in self.workers:
            return None
        position = self.workers.index(worker)
        if self.uids is not None and self.uids[position] != uid:
            return None
        return position


def newer(one: Assignment | None, other: Assignment) -> bool:
    """Whether `other` replaces `one`."""
    if one is None or other.attempt != one.attempt:
        return one is None or other.attempt > one.attempt
    return other.state == "Hold" and one.state == "Run"


def parse(text: str | bytes) -> Any:
    """Read JSON; raises InvalidAssignment, whatever the text is."""
    if len(text) > MAX_BYTES:
        raise InvalidAssignment(f"assignment: longer than {MAX_BYTES} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAssignment(f"assignment: not JSON: {str(error)[:100]}") from None


def from_wire(data: Any) -> Assignment:
    """Check a JSON object; raises InvalidAssignment with the field and its value. Unknown fields are passed over."""
    if not isinstance(data, dict):
        raise InvalidAssignment(f"assignment: {_short(data)} is not an object")
    workers = _list(data, "workers")
    hosts = _list(data, "hosts")
    uids = None if data.get("uids") is None else _list(data, "uids")
    processes = None if data.get("processes") is None else _list(data, "processes")
    for name, values in (("hosts", hosts), ("uids", uids), ("processes", processes)):
        if values is not None and len(values) != len(workers):
            raise InvalidAssignment(f"assignment.{name}: {len(values)} items for {len(workers)} workers")
    if len(set(map(_short, workers))) != len(workers):
        raise InvalidAssignment("assignment.workers: an index stands there twice")
    state = data.get("state", "Run")
    if state not in ("Run", "Hold"):
        raise InvalidAssignment(f"assignment.state: {_short(state)} is neither Run nor Hold")
    master = _text(data.get("master", hosts[0]), "master", 253)
    if master != hosts[0]:
        raise InvalidAssignment(f"assignment.master: {_short(master)} is not the first of the hosts")
    return Assignment(
        job=_text(data.get("job"), "job", 64),
        # 0 holds a pod whose first attempt has no order yet.
        attempt=_whole(data.get("attempt"), "attempt", 0, MAX_ATTEMPT),
        workers=tuple(_whole(worker, "workers", 0, 2**31) for worker in workers),
        uids=None if uids is None else tuple(_text(uid, "uids", 64) for uid in uids),
        hosts=tuple(_text(host, "hosts", 253) for host in hosts),
        master=master,
        port=_whole(data.get("port"), "port", MASTER_PORTS[0], MASTER_PORTS[1] - 1),
        state=state,
        grace_seconds=_seconds(data.get("graceSeconds", 0.4)),
        wire=data,
        processes=None if processes is None else tuple(_whole(n, "processes", 1, MAX_PROCESSES) for n in processes),
    )


class AssignmentFile:
    """The downward API's file, read again whenever it changes.

    The kubelet replaces such files by swapping the symbolic link `..data`, so the file's own inode changes; `stat`
    follows the link. Level-triggered: `poll` costs one `stat`, and a file that can't be read is read again.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def poll(self) -> Any:
        """What the file holds, when it has changed since the last call; else None. Raises InvalidAssignment."""
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return None
            with open(self.path, "rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError:
            # Not there yet, or between two versions: the next poll sees it.
            return None
        self._seen = seen
        # The annotation isn't set: the pod was made by hand, or the file is from before the first patch.
        return parse(text) if text.strip() else None


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_WORKERS:
        raise InvalidAssignment(f"assignment.{name}: {_short(value)} is not a list of 1 to {MAX_WORKERS} items")
    return value


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidAssignment(f"assignment.{name}: {_short(value)} is not a whole number from {least} to {most}")
    return value


def _text(value: Any, name: str, most: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= most or not value.isprintable():
        raise InvalidAssignment(f"assignment.{name}: {_short(value)} is not a text of 1 to {most} characters")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise InvalidAssignment(f"assignment.graceSeconds: {_short(value)} is not a number of seconds of at least 0")
    return float(value)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # Lists as deep as the parser lets them be, and numbers of more digits than Python writes.
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
