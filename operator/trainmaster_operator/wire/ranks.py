"""This module parses the progress that a rank's script writes to a file, and a rank's state while its job stalls.

They are described in docs/protocol.md, "Progress" and "A stalled rank".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from trainmaster_operator.wire import limits, values
from trainmaster_operator.wire.names import is_metric_name
from trainmaster_operator.wire.system import SYSTEM_METRICS
from trainmaster_operator.wire.values import ProtocolError

SECTIONS = ("setup", "data", "train", "evaluate", "checkpoint", "finish")
"""The sections that a script may report for its rank."""
CONTINUING = ("able", "idle", "ready")
WAITS = ("collective", "device", "nothing")


class RankProgress(NamedTuple):
    """RankProgress is the content of one rank's progress file; a missing field is None or empty."""

    step: Optional[int] = None
    total_steps: Optional[int] = None
    epoch: Optional[float] = None
    loss: Optional[float] = None
    grad_norm: Optional[float] = None
    """The norm of this rank's own gradients if it is known, else the norm of the ranks' mean gradients."""
    learning_rate: Optional[float] = None
    samples_per_second: Optional[float] = None
    step_seconds: Optional[float] = None
    compute_seconds: Optional[float] = None
    """The time of this rank's forward and backward pass in a step, without waiting for other ranks or for data."""
    eta_seconds: Optional[float] = None
    start_step: Optional[int] = None
    """The step at which this attempt began: 0, or the checkpoint's step."""
    data_seconds: Optional[float] = None
    """The seconds for which this rank has waited for data in this attempt. The next two fields are the seconds of other
    work."""
    checkpoint_seconds: Optional[float] = None
    evaluate_seconds: Optional[float] = None
    section: Optional[str] = None
    section_seconds: Optional[float] = None
    """The limit that the script requests for this section, in place of a step's limit."""
    joined_at: Optional[float] = None
    """When this attempt's process group was formed. This and the next two fields are in seconds since the epoch."""
    restored_at: Optional[float] = None
    """When this attempt's initial state was ready, whether it is a checkpoint's or a new one."""
    first_step_at: Optional[float] = None
    """When this attempt's first step was finished."""
    message: str = ""
    result: tuple[tuple[str, float], ...] = ()
    metrics: tuple[tuple[str, float], ...] = ()
    """The last values of the rank's own metrics, such as an accuracy, by name."""
    continuing: Optional[str] = None
    """`able`: this rank is in a group and can continue in another attempt; `ready`: it waits to join."""
    group: Optional[int] = None
    """The attempt of the group that this rank is in."""
    cannot_continue: str = ""
    """Why this rank can't continue."""

    @classmethod
    def parse(cls, data: object) -> RankProgress:
        if not isinstance(data, Mapping):
            raise ProtocolError(f"progress.ranks: {values.shown(data)} is not an object")
        fields: dict[str, Any] = {name: values.optional_whole(data, key) for name, key in _WHOLE.items()}
        fields.update((name, values.optional_number(data, key)) for name, key in _NUMBERS.items())
        results = values.mapping(data.get("result"))
        for name in list(results)[: limits.MAX_RESULTS]:
            values.optional_number(results, name)
        return cls(**fields, **_texts(data))

    @classmethod
    def salvage(cls, data: object) -> RankProgress | None:
        """Returns the well-formed fields of a script's file; None if it isn't an object."""
        if not isinstance(data, Mapping):
            return None
        fields: dict[str, Any] = {name: values.whole(data.get(key)) for name, key in _WHOLE.items()}
        fields.update((name, values.number(data.get(key))) for name, key in _NUMBERS.items())
        return cls(**fields, **_texts(data))

    def to_wire(self) -> dict[str, Any]:
        wire = values.fields_of(self, *self._fields)
        wire.update((name, dict(wire[name])) for name in ("result", "metrics") if name in wire)
        return wire


_WHOLE = {name: values.camel(name) for name in ("step", "total_steps", "start_step", "group")}
_TEXTS = ("section", "message", "result", "metrics", "continuing", "cannot_continue")
_NUMBERS = {name: values.camel(name) for name in RankProgress._fields if name not in _WHOLE and name not in _TEXTS}
BUILT_IN = frozenset((*_WHOLE.values(), *_NUMBERS.values(), *SYSTEM_METRICS, "slowestStepSeconds", "goodput"))
"""The names of curves that every job can have. A rank's own metric can't have such a name."""


def parse_rank_progress(value: object) -> dict[int, RankProgress]:
    """Returns the `ranks` of a progress line. Raises ProtocolError that names the wrong field."""
    return {rank: RankProgress.parse(data) for rank, data in ranks_of(value, "progress.ranks").items()}


def ranks_of(value: object, name: str) -> dict[int, Any]:
    """Returns an object keyed by rank, with at most as many ranks as a worker can have. Raises ProtocolError."""
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{name}: {values.shown(value)} is not an object")
    if len(value) > limits.MAX_PROCESSES:
        raise ProtocolError(f"{name}: {len(value)} are more than {limits.MAX_PROCESSES}")
    found = {}
    for rank, data in value.items():
        index = values.decimal(rank, limits.MAX_INDEX)
        if index is None:
            raise ProtocolError(f"{name}: {values.shown(rank)} is not a rank")
        found[index] = data
    return found


def _texts(data: Mapping[str, Any]) -> dict[str, Any]:
    results = list(values.mapping(data.get("result")).items())[: limits.MAX_RESULTS]
    return {
        "section": values.one_of(SECTIONS, data.get("section")),
        "message": values.text(data.get("message"), limits.MAX_MESSAGE_CHARACTERS),
        "continuing": values.one_of(CONTINUING, data.get("continuing")),
        "cannot_continue": values.text(data.get("cannotContinue"), limits.MAX_MESSAGE_CHARACTERS),
        "result": tuple(
            (values.text(name, limits.MAX_RESULT_NAME), float(result))
            for name, result in results
            if values.is_number(result)
        ),
        "metrics": own_metrics(values.mapping(data.get("metrics"))),
    }


def own_metrics(given: Mapping[Any, Any], most: int = limits.MAX_METRICS) -> tuple[tuple[str, float], ...]:
    """Returns the first `most` well-formed metrics of ranks: finite numbers by name."""
    found: list[tuple[str, float]] = []
    for name, value in given.items():
        number = values.number(value)
        if number is not None and is_metric_name(name) and name not in BUILT_IN:
            found.append((name, number))
            if len(found) == most:
                break
    return tuple(found)


class RankState(NamedTuple):
    """RankState is one rank's state in a stall; its times are in seconds."""

    step: Optional[int] = None
    section: str = ""
    silent_seconds: Optional[float] = None
    """The time since the rank's last progress; None if the rank isn't watched."""
    limit_seconds: float = 0.0
    """How long the rank may be silent in its present section; 0: there is no limit."""
    limit: str = ""
    """The name of the setting that determines the limit."""
    patient: bool = False
    """Whether the limit is longer than a step's limit, because it is the first step's or a section's own limit."""
    state: str = ""
    """The kernel's letter for the state of the rank's process: T (stopped), D (waiting for a device), X (gone)."""
    collective: Optional[int] = None
    """The number of the collective that the rank entered last, according to torch's flight recorder."""
    waits: str = ""
    """The kind of wait that the main thread's stack shows, one of WAITS; empty without a stack."""
    pending: bool = False
    """Whether a collective that the rank has entered is unfinished, according to torch's flight recorder."""
    unreported: int = 0
    """How many steps the rank may have done since its last report, because it doesn't report every step."""
    quiet_seconds: Optional[float] = None
    """The time since the rank's last progress, also if no limit restarts it; None if its progress is unknown."""
    notice_seconds: float = 0.0
    """The learnt limit after which people are informed (progress/usual.py); 0: there is none."""
    usual_seconds: Optional[float] = None
    """The usual duration of a step, or of the present section."""
    active: bool = False
    """Whether the process computes, reads or writes, so that it isn't waiting (hang/vitals.py)."""
    place: str = ""
    """The newest frame of the user's own code in the main thread, such as "train.py:41 in step: `x = queue.get()`"."""
    operation: str = ""
    """The collective in which the rank waits, such as `all_reduce`."""
    text: str = ""
    """The stacks of all the rank's threads and the kernel's view of them, as text for people."""

    @classmethod
    def parse(cls, data: object, most: int = limits.MAX_EVIDENCE_BYTES) -> RankState:
        """Parse a rank's state, and limit its text to `most` characters. Raises ProtocolError."""
        if not isinstance(data, Mapping):
            raise ProtocolError(f"evidence.ranks: {values.shown(data)} is not an object")
        return cls(
            step=values.whole(data.get("step")),
            unreported=values.whole(data.get("unreported")) or 0,
            section=values.one_of(SECTIONS, data.get("section")) or "",
            silent_seconds=_seconds(data.get("silentSeconds")),
            limit_seconds=_seconds(data.get("limitSeconds")) or 0.0,
            limit=values.text(data.get("limit"), limits.MAX_REASON),
            patient=data.get("patient") is True,
            state=values.text(data.get("state"), 1),
            collective=values.whole(data.get("collective")),
            pending=data.get("pending") is True,
            waits=values.one_of(WAITS, data.get("waits")) or "",
            quiet_seconds=_seconds(data.get("quietSeconds")),
            notice_seconds=_seconds(data.get("noticeSeconds")) or 0.0,
            usual_seconds=_seconds(data.get("usualSeconds")),
            active=data.get("active") is True,
            place=values.one_line(data.get("place"), limits.MAX_PLACE_CHARACTERS),
            operation=values.one_line(data.get("operation"), limits.MAX_OPERATION_CHARACTERS),
            text=values.text(data.get("text"), most),
        )

    def to_wire(self) -> dict[str, Any]:
        silent, quiet = (None if at is None else round(at, 3) for at in (self.silent_seconds, self.quiet_seconds))
        known = {"step": self.step, "silentSeconds": silent, "quietSeconds": quiet, "collective": self.collective}
        wire = {values.camel(name): value for name, value in self._asdict().items() if value}
        return {**wire, "text": self.text, **{name: value for name, value in known.items() if value is not None}}


def parse_rank_states(value: object) -> dict[int, RankState]:
    """Returns the `ranks` of an evidence line. All texts together are limited. Raises ProtocolError."""
    found: dict[int, RankState] = {}
    left = limits.MAX_EVIDENCE_BYTES
    for rank, data in ranks_of(value, "evidence.ranks").items():
        found[rank] = RankState.parse(data, left)
        left -= len(found[rank].text)
    return found


def _seconds(value: Any) -> float | None:
    return float(value) if values.is_number(value) and 0 <= value < limits.MAX_SECONDS else None
