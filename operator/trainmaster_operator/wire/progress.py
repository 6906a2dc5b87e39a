"""Progress is how far a rank is, as its script writes it to a file (docs/protocol.md, "Progress")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from trainmaster_operator.wire.errors import ProtocolError
from trainmaster_operator.wire.limits import (
    MAX_INDEX,
    MAX_MESSAGE_CHARACTERS,
    MAX_PROCESSES,
    MAX_RESULT_NAME,
    MAX_RESULTS,
)
from trainmaster_operator.wire.states import SECTIONS
from trainmaster_operator.wire.values import decimal, is_number, is_whole, optional_number, optional_whole, shown, text

_WHOLE = {"step": "step", "total_steps": "totalSteps", "start_step": "startStep", "group": "group"}
CONTINUING = ("able", "idle", "ready")
_NUMBERS = {
    "epoch": "epoch",
    "loss": "loss",
    "grad_norm": "gradNorm",
    "learning_rate": "learningRate",
    "samples_per_second": "samplesPerSecond",
    "step_seconds": "stepSeconds",
    "compute_seconds": "computeSeconds",
    "eta_seconds": "etaSeconds",
    "data_seconds": "dataSeconds",
    "checkpoint_seconds": "checkpointSeconds",
    "evaluate_seconds": "evaluateSeconds",
    "section_seconds": "sectionSeconds",
    "joined_at": "joinedAt",
    "restored_at": "restoredAt",
    "first_step_at": "firstStepAt",
}


class RankProgress(NamedTuple):
    """RankProgress is what one rank wrote to its progress file; a field that it left out is None or empty."""

    step: Optional[int] = None
    total_steps: Optional[int] = None
    epoch: Optional[float] = None
    loss: Optional[float] = None
    grad_norm: Optional[float] = None
    """The norm of this rank's own gradients where it knows that, else of their mean over the ranks."""
    learning_rate: Optional[float] = None
    samples_per_second: Optional[float] = None
    step_seconds: Optional[float] = None
    compute_seconds: Optional[float] = None
    """This rank's own forward and backward of a step take so long, without waiting for others or for data."""
    eta_seconds: Optional[float] = None
    start_step: Optional[int] = None
    """The step that this attempt began with: 0, or its checkpoint's."""
    data_seconds: Optional[float] = None
    """This rank has waited for data for so long in this attempt; the next two are alike."""
    checkpoint_seconds: Optional[float] = None
    evaluate_seconds: Optional[float] = None
    section: Optional[str] = None
    section_seconds: Optional[float] = None
    """The limit that this section asks for, in place of the step's."""
    joined_at: Optional[float] = None
    """When this attempt's process group stood (seconds since the epoch); the next two are alike."""
    restored_at: Optional[float] = None
    """When the state was there that this attempt began with: a checkpoint's, or the first one."""
    first_step_at: Optional[float] = None
    """When this attempt's first step was done."""
    message: str = ""
    result: tuple[tuple[str, float], ...] = ()
    continuing: Optional[str] = None
    """`able`: this rank is in a group and can go on in a continued attempt; `ready`: it waits to join."""
    group: Optional[int] = None
    """The attempt of the group that this rank is in."""
    cannot_continue: str = ""
    """Why this rank can't continue."""

    @classmethod
    def parse(cls, data: object) -> RankProgress:
        """Check one rank's progress and bound it. Raises ProtocolError with the field that is wrong."""
        if not isinstance(data, Mapping):
            raise ProtocolError(f"progress.ranks: {shown(data)} is not an object")
        fields: dict[str, Any] = {name: optional_whole(data, key) for name, key in _WHOLE.items()}
        fields.update((name, optional_number(data, key)) for name, key in _NUMBERS.items())
        results = data.get("result")
        if isinstance(results, Mapping):
            for name in list(results)[:MAX_RESULTS]:
                optional_number(results, name)
        return cls(**fields, **_texts(data))

    @classmethod
    def salvage(cls, data: object) -> RankProgress | None:
        """Returns the fields of a script's file that are well-formed; None where it is no object."""
        if not isinstance(data, Mapping):
            return None
        fields = {name: data[key] for name, key in _WHOLE.items() if is_whole(data.get(key))}
        fields.update((name, float(data[key])) for name, key in _NUMBERS.items() if is_number(data.get(key)))
        return cls(**fields, **_texts(data))

    def to_wire(self) -> dict[str, Any]:
        """Returns the JSON object, without what is unknown."""
        values = {key: getattr(self, name) for name, key in {**_WHOLE, **_NUMBERS}.items()}
        values.update(section=self.section, message=self.message or None, result=dict(self.result) or None)
        values.update(continuing=self.continuing, cannotContinue=self.cannot_continue or None)
        return {key: value for key, value in values.items() if value is not None}


def parse_ranks(value: object) -> dict[int, RankProgress]:
    """Returns the `ranks` of a progress line. Raises ProtocolError with the field that is wrong."""
    return {rank: RankProgress.parse(data) for rank, data in ranks_of(value, "progress.ranks").items()}


def ranks_of(value: object, name: str) -> dict[int, Any]:
    """Returns an object by rank, with no more of them than a worker can have. Raises ProtocolError."""
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{name}: {shown(value)} is not an object")
    if len(value) > MAX_PROCESSES:
        raise ProtocolError(f"{name}: {len(value)} are more than {MAX_PROCESSES}")
    found = {}
    for rank, data in value.items():
        number = decimal(rank, MAX_INDEX)
        if number is None:
            raise ProtocolError(f"{name}: {shown(rank)} is not a rank")
        found[number] = data
    return found


def _texts(data: Mapping[str, Any]) -> dict[str, Any]:
    section, results, continuing = data.get("section"), data.get("result"), data.get("continuing")
    pairs = list(results.items())[:MAX_RESULTS] if isinstance(results, Mapping) else []
    return {
        "section": section if isinstance(section, str) and section in SECTIONS else None,
        "message": text(data.get("message"), MAX_MESSAGE_CHARACTERS),
        "continuing": continuing if isinstance(continuing, str) and continuing in CONTINUING else None,
        "cannot_continue": text(data.get("cannotContinue"), MAX_MESSAGE_CHARACTERS),
        "result": tuple((text(name, MAX_RESULT_NAME), float(value)) for name, value in pairs if is_number(value)),
    }
