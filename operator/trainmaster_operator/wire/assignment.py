"""An assignment names an attempt, its workers, and whether to run it (docs/protocol.md, "The assignment").

An assignment reaches an agent by three routes (the annotation's file, a push to the leader, the leader's broadcast), in
any order and more than once. `newer` decides which one counts: the highest attempt wins, and for equal attempts `Hold`
wins over `Run`. Each attempt's rendezvous has its own port, so that a leftover rank of another attempt can't join it
(`master_port`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Optional

from trainmaster_operator.wire import limits
from trainmaster_operator.wire.values import ProtocolError, fields_of, loads, number, shown, whole

DEFAULT_MASTER_PORT = 29_500
"""torch's own default, which a manifest contains as long as no assignment names the attempt's port."""
FIRST_PORT, LAST_PORT, PORTS = 20_000, 28_979, 8_971
"""The ports are below torch's defaults (29400 and 29500, which other jobs use), below NodePorts (from 30000) and below
ephemeral ports (from 32768). PORTS is a prime number, so that any stride visits all ports."""
_TAKEN = (22_623, 22_624, 24_007, 24_008, 25_000, 26_257, 27_017, 27_018, 27_019)
"""Jobs with hostNetwork must avoid these ports, which services on nodes use: OpenShift's machine configs, GlusterFS,
MicroK8s' cluster agent, CockroachDB and MongoDB."""


def master_port(job_uid: str, attempt: int) -> int:
    """Returns the port of an attempt's rendezvous.

    Each job has its own first port and its own stride, so jobs on one network rarely use the same port. If two jobs do,
    their ports differ again at the next attempt.
    """
    from hashlib import sha256

    spread = int.from_bytes(sha256(job_uid.encode()).digest()[:8], "big")
    start, stride = spread % PORTS, 1 + spread // PORTS % (PORTS - 1)
    return port_at((start + attempt * stride) % PORTS)


def port_at(place: int) -> int:
    """Returns the port at an index (0 <= place < PORTS) of the ascending list of allowed ports."""
    port = FIRST_PORT + place
    for taken in _TAKEN:
        if port >= taken:
            port += 1
    return port


def is_master_port(port: int) -> bool:
    """Returns whether an operator may give this port to an attempt."""
    return FIRST_PORT <= port <= LAST_PORT and port not in _TAKEN


class Assignment(NamedTuple):
    """Assignment is one attempt. Its lists are in rank order, so a position in them is a NODE_RANK."""

    job: str
    """The job's uid."""
    attempt: int
    """0 occurs only with `Hold`, while the first attempt's order isn't known yet."""
    workers: tuple[int, ...]
    uids: Optional[tuple[str, ...]]
    """The uids of the workers' pods; None in the first attempt. An empty uid: the worker's pod isn't known, so no pod
    runs this worker's ranks."""
    hosts: tuple[str, ...]
    port: int
    state: Literal["Run", "Hold"] = "Run"
    grace_seconds: float = 0.4
    processes: Optional[tuple[int, ...]] = None
    """Each worker's number of ranks; None if all workers have the same number."""
    code: Optional[str] = None
    """The digest of the code that the attempt runs (spec.code); None if the image contains the code."""
    continues: Optional[int] = None
    """The attempt whose processes this attempt continues: the last one in which all ranks were started. None: all ranks
    are started in this attempt."""
    absent: tuple[int, ...] = ()
    """Global ranks that aren't in the group of a continued attempt."""
    master_place: int = 0
    """The position in `workers` of the worker with the lowest present rank."""
    signed: Optional[Mapping[str, Any]] = None
    """The received JSON object with its signatures, kept so that the agent forwards exactly the signed text."""

    @property
    def master(self) -> str:
        """Returns the host of the lowest present rank (usually rank 0), which serves the rendezvous."""
        return self.hosts[self.master_place]

    @classmethod
    def parse(cls, data: object) -> Assignment:
        """Parses and checks a JSON object; raises ProtocolError with the field and its value.

        Unknown fields are ignored.
        """
        if not isinstance(data, dict):
            raise ProtocolError(f"assignment: {shown(data)} is not an object")
        workers = _list(data, "workers")
        hosts = _list(data, "hosts", len(workers))
        uids, counts = None, None
        if data.get("uids") is not None:
            uids = tuple(_text(uid, "uids", limits.MAX_UID, least=0) for uid in _list(data, "uids", len(workers)))
        if data.get("processes") is not None:
            given = _list(data, "processes", len(workers))
            counts = tuple(_whole(count, "processes", 1, limits.MAX_PROCESSES) for count in given)
        indexes = tuple(_whole(worker, "workers", 0, limits.MAX_INDEX - 1) for worker in workers)
        if len(set(indexes)) != len(indexes):
            raise ProtocolError("assignment.workers: an index stands there twice")
        state = data.get("state", "Run")
        if state != "Run" and state != "Hold":
            raise ProtocolError(f"assignment.state: {shown(state)} is neither Run nor Hold")
        attempt = _whole(data.get("attempt"), "attempt", 0, limits.MAX_ATTEMPT)
        continues = None if data.get("continues") is None else _whole(data["continues"], "continues", 1, attempt - 1)
        master = _text(data.get("master", hosts[0]), "master", limits.MAX_HOST)
        if master not in hosts[: 1 if continues is None else len(hosts)]:
            place = "the first" if continues is None else "one"
            raise ProtocolError(f"assignment.master: {shown(data['master'])} is not {place} of the hosts")
        ranks = len(workers) * limits.MAX_PROCESSES if counts is None else sum(counts)
        port = _whole(data.get("port"), "port", FIRST_PORT, LAST_PORT)
        if not is_master_port(port):
            raise ProtocolError(f"assignment.port: {port} is one that nodes serve themselves")
        grace = number(data.get("graceSeconds", 0.4))
        if grace is None or not 0 <= grace < limits.MAX_SECONDS:
            what = "is not a number of seconds of at least 0"
            raise ProtocolError(f"assignment.graceSeconds: {shown(data['graceSeconds'])} {what}")
        code = data.get("code")
        if code is not None and not (isinstance(code, str) and is_digest(code)):
            raise ProtocolError(f"assignment.code: {shown(code)} is not a SHA-256 in 64 hexadecimal digits")
        return cls(
            job=_text(data.get("job"), "job", limits.MAX_UID),
            attempt=attempt,
            workers=indexes,
            uids=uids,
            hosts=tuple(_text(host, "hosts", limits.MAX_HOST) for host in hosts),
            port=port,
            state=state,
            grace_seconds=grace,
            processes=counts,
            code=code,
            continues=continues,
            absent=_absent(data.get("absent"), continues, ranks),
            master_place=hosts.index(master),
        )

    def to_wire(self) -> dict[str, Any]:
        wire = fields_of(self, "processes", "code", "continues", "absent")
        del wire["masterPlace"], wire["signed"]
        return {**wire, "master": self.master}

    def held(self) -> Assignment:
        """Returns the same attempt as a Hold: its ranks stop and wait."""
        return self._replace(state="Hold")

    def first_rank(self, node_rank: int, own: int) -> int:
        """Returns the global rank of a worker's local rank 0; `own`: this worker's number of ranks."""
        return node_rank * own if self.processes is None else sum(self.processes[:node_rank])

    def world_size(self, own: int) -> int:
        """Returns the attempt's number of ranks; `own`: this worker's number of ranks."""
        return len(self.workers) * own if self.processes is None else sum(self.processes)

    def present(self, node_rank: int, own: int) -> tuple[int, ...]:
        """Returns a worker's local ranks in the attempt's group; `own`: this worker's number of ranks."""
        first, absent = self.first_rank(node_rank, own), set(self.absent)
        count = own if self.processes is None else self.processes[node_rank]
        return tuple(local_rank for local_rank in range(count) if first + local_rank not in absent)

    def uid_of(self, worker: int) -> str:
        """Returns the uid of the pod that is listed for a worker; empty if there is none, as in the first attempt."""
        return self.uids[self.workers.index(worker)] if self.uids is not None and worker in self.workers else ""

    def node_rank(self, worker: int, uid: str) -> int | None:
        """Returns the NODE_RANK of a worker's pod, or None if its index or its uid isn't listed.

        A continued attempt lists an empty uid for a worker whose ranks are all absent. Any pod of this worker may
        prepare to join.
        """
        if worker not in self.workers:
            return None
        position = self.workers.index(worker)
        if self.uids is None or self.uids[position] == uid != "":
            return position
        return position if self.absent and not self.uids[position] else None


def is_digest(text: str) -> bool:
    """Returns whether a text is a SHA-256 digest in lower-case hexadecimal, which is safe in a file name."""
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def newer(one: Assignment | None, other: Assignment) -> bool:
    """Returns whether `other` replaces `one`. A held attempt never runs again, so Hold is newer than Run."""
    if one is None or other.attempt != one.attempt:
        return one is None or other.attempt > one.attempt
    return other.state == "Hold" and one.state == "Run"


def parse_text(text: object) -> Any:
    """Decodes an assignment's JSON text, for `Assignment.parse` to check. Raises ProtocolError."""
    if not isinstance(text, (str, bytes)):
        raise ProtocolError("assignment: not a text")
    if len(text) > limits.MAX_ASSIGNMENT_BYTES:
        raise ProtocolError(f"assignment: longer than {limits.MAX_ASSIGNMENT_BYTES} bytes")
    try:
        return loads(text)
    except ValueError as error:
        raise ProtocolError(f"assignment: not JSON: {str(error)[:100]}") from None


def _list(data: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= limits.MAX_WORKERS:
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a list of 1 to {limits.MAX_WORKERS} items")
    if length is not None and len(value) != length:
        raise ProtocolError(f"assignment.{name}: {len(value)} items for {length} workers")
    return value


def _whole(value: object, name: str, least: int, most: int) -> int:
    found = whole(value, most + 1)
    if found is None or found < least:
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a whole number from {least} to {most}")
    return found


def _absent(value: object, continues: int | None, most: int) -> tuple[int, ...]:
    """Returns the absent ranks, sorted and below `most`.

    At least one rank must be present, and without `continues` no rank may be absent.
    """
    if value is None or value == []:
        return ()
    if continues is None or not isinstance(value, list) or len(value) >= most:
        what = "not allowed without continues" if continues is None else f"not a list of less than {most} ranks"
        raise ProtocolError(f"assignment.absent: {shown(value)} is {what}")
    ranks = tuple(_whole(rank, "absent", 0, most - 1) for rank in value)
    if any(one >= other for one, other in zip(ranks, ranks[1:])):
        raise ProtocolError("assignment.absent: the ranks are not in ascending order")
    return ranks


def _text(value: object, name: str, most: int, *, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        raise ProtocolError(f"assignment.{name}: {shown(value)} is not a text of {least} to {most} characters")
    return value
