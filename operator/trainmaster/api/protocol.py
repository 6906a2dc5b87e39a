"""The operator's half of docs/protocol.md as typed values: names of labels and annotations, assignments, reports.

What agents say comes from pods that run users' code, and annotations can be edited by who may patch a pod, so all of it
is user input: `Assignment.parse`, `Report.parse` and `parse_progress` bound every string, refuse what isn't a plausible
value of the right type, and never raise anything but `ProtocolError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from trainmaster.api.json_values import MAX_TIME, MAX_WHOLE, is_number, loads, shown, text, whole

JOB_NAME_LABEL = "trainmaster.dev/job-name"
JOB_UID_LABEL = "trainmaster.dev/job-uid"
GROUP_LABEL = "trainmaster.dev/worker-group"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
ASSIGNMENT_ANNOTATION = "trainmaster.dev/assignment"
TOUCHED_ANNOTATION = "trainmaster.dev/touched"
HASH_ANNOTATION = "trainmaster.dev/rendered-hash"
FIELD_MANAGER = "trainmaster"

AGENT_PORT = 8472
TOKEN_HEADER = "Trainmaster-Token"
# torch's own default: what a manifest shows before an assignment names the attempt's port.
DEFAULT_MASTER_PORT = 29500
# What nodes are known to serve themselves, which meets jobs with hostNetwork: OpenShift's machine configs, GlusterFS,
# MicroK8s' cluster agent, CockroachDB, MongoDB.
_TAKEN_PORTS = frozenset({22_623, 22_624, 24_007, 24_008, 25_000, 26_257, 27_017, 27_018, 27_019})
# Below torch's defaults (29400 and 29500, where jobs of others are), NodePorts (30000) and ephemeral ports (32768).
# Their number is a prime, so that every stride visits all of them.
MASTER_PORTS = tuple(port for port in range(20_000, 29_000) if port not in _TAKEN_PORTS)[:8_971]

MAX_LINE_BYTES = 65_536
MAX_ERROR_CHARACTERS = 2_000
MAX_RESULTS = 16
# An attempt every second for eleven days; agents take none beyond it (agent/assignment.py).
MAX_ATTEMPT = 1_000_000
# Kubernetes allows 256 KiB for all annotations of an object.
MAX_ASSIGNMENT_CHARACTERS = 262_144
# Beyond any worker's index, and beyond the list of one job's workers; the agent has the same limit.
MAX_INDEX, MAX_LISTED = 2**31, 4_096
# As the agent's own limits of what an assignment holds.
MAX_PROCESSES, MAX_GRACE_SECONDS = 1_024, 1e9

WorkerState = Literal["Waiting", "Starting", "Running", "Finished", "Failed", "Stopped"]
SECTIONS = ("setup", "data", "train", "evaluate", "checkpoint", "finish")


class ProtocolError(ValueError):
    """A message of an agent that doesn't fit docs/protocol.md; the text names the field and what is wrong."""


def master_port(job_uid: str, attempt: int) -> int:
    """The port of an attempt's rendezvous: each attempt's own, so that a rank left over can't join a new one.

    Each job walks through the ports from a place and with a stride of its own: jobs on one network hardly meet at a
    port, and two that did don't meet again at the next attempt.
    """
    spread = int.from_bytes(hashlib.sha256(job_uid.encode()).digest()[:8], "big")
    start, stride = spread % len(MASTER_PORTS), 1 + spread // len(MASTER_PORTS) % (len(MASTER_PORTS) - 1)
    return MASTER_PORTS[(start + attempt * stride) % len(MASTER_PORTS)]


@dataclass(frozen=True)
class Assignment:
    """One attempt as the agents are told of it. `workers`, `uids`, `hosts` and `processes` are in rank order.

    `job` is the job's uid. `processes` (ranks by worker) is only told where workers differ in it; None: all have
    equally many.
    """

    job: str
    attempt: int
    workers: tuple[int, ...]
    uids: tuple[str, ...] | None
    hosts: tuple[str, ...]
    port: int
    state: Literal["Run", "Hold"] = "Run"
    grace_seconds: float = 0.4
    processes: tuple[int, ...] | None = None

    def to_json(self) -> str:
        """What is signed (`api.signing.canonical`): equal assignments are equal strings."""
        return json.dumps(
            {
                "job": self.job,
                "attempt": self.attempt,
                "workers": list(self.workers),
                "uids": None if self.uids is None else list(self.uids),
                "hosts": list(self.hosts),
                "master": self.hosts[0],
                "port": self.port,
                "state": self.state,
                "graceSeconds": self.grace_seconds,
                **({} if self.processes is None else {"processes": list(self.processes)}),
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, raw: object) -> Assignment:
        """Read an annotation back. Raises ProtocolError when it isn't an assignment (a user may have edited it)."""
        if not isinstance(raw, str) or len(raw) > MAX_ASSIGNMENT_CHARACTERS:
            raise ProtocolError(
                f"{ASSIGNMENT_ANNOTATION}: not a text of at most {MAX_ASSIGNMENT_CHARACTERS} characters"
            )
        try:
            data = loads(raw)
        except ValueError as error:
            raise ProtocolError(f"{ASSIGNMENT_ANNOTATION}: not JSON: {shown(raw)}") from error
        if not isinstance(data, dict):
            raise ProtocolError(f"{ASSIGNMENT_ANNOTATION}: {shown(data)} is not an object")
        workers = _list(data, "workers")
        uids = None if data.get("uids") is None else _list(data, "uids", len(workers))
        hosts = _list(data, "hosts", len(workers))
        processes = None if data.get("processes") is None else _list(data, "processes", len(workers))
        return cls(
            job=_text(data.get("job"), "job", 64),
            attempt=_whole(data.get("attempt"), "attempt", MAX_ATTEMPT + 1),
            workers=tuple(_whole(worker, "workers", MAX_INDEX) for worker in workers),
            uids=None if uids is None else tuple(_text(uid, "uids", 64, least=0) for uid in uids),
            hosts=tuple(_text(host, "hosts", 253) for host in hosts),
            port=_whole(data.get("port"), "port", 65_536),
            state="Hold" if data.get("state") == "Hold" else "Run",
            grace_seconds=_grace(data.get("graceSeconds", 0.4)),
            processes=None
            if processes is None
            else tuple(_whole(count, "processes", MAX_PROCESSES + 1) for count in processes),
        )

    def held(self) -> Assignment:
        """The same attempt, told to stop and wait."""
        return replace(self, state="Hold")


@dataclass(frozen=True)
class Report:
    """What an agent says of its worker in one attempt. `at` is the agent's clock, in seconds since the epoch."""

    attempt: int
    worker: int
    uid: str
    state: WorkerState
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    error: str = ""
    at: float = 0.0
    culprit: bool = True
    node: str = ""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Report:
        """Check a report and bound it. Raises ProtocolError with the field that is wrong."""
        state = data.get("state")
        if not isinstance(state, str) or state not in get_args(WorkerState):
            raise ProtocolError(f"report.state: {shown(state)} is none of {', '.join(get_args(WorkerState))}")
        return cls(
            attempt=_whole(data.get("attempt"), "attempt"),
            worker=_whole(data.get("worker"), "worker", MAX_INDEX),
            uid=text(data.get("uid"), 64),
            state=cast(WorkerState, state),
            rank=_optional(data, "rank"),
            exit_code=_optional(data, "exitCode"),
            signal=_optional(data, "signal"),
            reason=text(data.get("reason"), 64),
            error=text(data.get("error"), MAX_ERROR_CHARACTERS, from_end=True),
            at=_time(data.get("at")),
            culprit=data.get("culprit") is not False,
            node=text(data.get("node"), 253),
        )


@dataclass(frozen=True)
class RankProgress:
    """What one rank wrote to its progress file."""

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    eta_seconds: float | None = None
    # The step that this attempt began with: 0, or its checkpoint's.
    start_step: int | None = None
    # What this rank has waited in this attempt so far.
    data_seconds: float | None = None
    checkpoint_seconds: float | None = None
    evaluate_seconds: float | None = None
    section: str | None = None
    message: str = ""
    result: tuple[tuple[str, float], ...] = ()


def parse_progress(data: Mapping[str, Any]) -> RankProgress:
    """Check one rank's progress and bound it. Raises ProtocolError with the field that is wrong."""
    section = data.get("section")
    raw_result = data.get("result")
    result: tuple[tuple[str, float], ...] = ()
    if isinstance(raw_result, Mapping):
        pairs = ((text(name, 64), _number(raw_result, name)) for name in list(raw_result)[:MAX_RESULTS])
        result = tuple((name, value) for name, value in pairs if value is not None)
    return RankProgress(
        step=_optional(data, "step"),
        total_steps=_optional(data, "totalSteps"),
        epoch=_number(data, "epoch"),
        loss=_number(data, "loss"),
        samples_per_second=_number(data, "samplesPerSecond"),
        step_seconds=_number(data, "stepSeconds"),
        eta_seconds=_number(data, "etaSeconds"),
        start_step=_optional(data, "startStep"),
        data_seconds=_number(data, "dataSeconds"),
        checkpoint_seconds=_number(data, "checkpointSeconds"),
        evaluate_seconds=_number(data, "evaluateSeconds"),
        section=section if isinstance(section, str) and section in SECTIONS else None,
        message=text(data.get("message"), 200),
        result=result,
    )


def _list(data: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_LISTED or len(value) != (length or len(value)):
        many = f"1 to {MAX_LISTED}" if length is None else f"{length}"
        raise ProtocolError(f"{name}: {shown(value)} is not a list of {many} items")
    return value


def _whole(value: object, name: str, most: int = MAX_WHOLE) -> int:
    found = whole(value, most)
    if found is None:
        limit = "" if most == MAX_WHOLE else f" and below {most}"
        raise ProtocolError(f"{name}: {shown(value)} is not a whole number of at least 0{limit}")
    return found


def _optional(data: Mapping[str, Any], name: str) -> int | None:
    return None if data.get(name) is None else _whole(data[name], name)


def _number(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or not is_number(value):
        raise ProtocolError(f"{name}: {shown(value)} is not a finite number, or is beyond 1e100")
    return float(value)


def _time(value: object) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not is_number(value) or not 0 <= value <= MAX_TIME:
        raise ProtocolError(f"at: {shown(value)} is not a time in seconds since 1970")
    return float(value)


def _grace(value: object) -> float:
    if not isinstance(value, int | float) or not is_number(value) or not 0 <= value <= MAX_GRACE_SECONDS:
        raise ProtocolError(f"graceSeconds: {shown(value)} is not a number of seconds of at least 0")
    return float(value)


def _text(value: object, name: str, most: int, *, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
        raise ProtocolError(f"{name}: {shown(value)} is not a text of {least} to {most} characters")
    return value
