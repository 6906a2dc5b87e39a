"""A sample is what one record says of all ranks: a point of the job's curves, and each rank's figures.

The newest samples stand in the file's `tail` as JSON, in the order in which they came, until they are packed: a block
of one point would cost more than the point.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from trainmaster.history import heat
from trainmaster.history.curves import NO_STEP, Curves
from trainmaster.history.heat import MAX_RANKS, Heat
from trainmaster.history.packing import NAN
from trainmaster_operator.api.records import FIGURES as RECORDED
from trainmaster_operator.api.records import SampleRecord

# A record's name of each rank's figure that is kept.
_OF_RANKS = {name: key for name, key in RECORDED.items() if key in heat.FIGURES}


def step_of(record: SampleRecord) -> int:
    """Returns the step of the first rank that says one; NO_STEP where none does."""
    found = _first(record.columns.get("step") or ())
    return NO_STEP if found is None else int(min(max(found, 0.0), 2.0**53))


def to_text(record: SampleRecord, status: Mapping[str, float]) -> str:
    """Returns the sample as the tail has it; `status` has the figures of the job's status at that time."""
    known = {name: [value for value in values if value is not None] for name, values in record.columns.items()}
    of_job: dict[str, float | None] = {
        "loss": _first(record.columns.get("loss") or ()),
        "learningRate": _first(record.columns.get("learning_rate") or ()),
        "gradNorm": max(known.get("grad_norm") or (), default=None),
        "samplesPerSecond": sum(known["samples_per_second"]) if known.get("samples_per_second") else None,
        "stepSeconds": median(known["step_seconds"]) if known.get("step_seconds") else None,
        "slowestStepSeconds": max(known.get("step_seconds") or (), default=None),
        **status,
    }
    ranks, workers = record.ranks[:MAX_RANKS], record.workers[:MAX_RANKS]
    of_ranks = {
        key: record.columns[name][:MAX_RANKS] for name, key in _OF_RANKS.items() if known.get(name) and record.ranks
    }
    figures = {name: value for name, value in of_job.items() if value is not None}
    return json.dumps([record.attempt, step_of(record), figures, ranks, workers, of_ranks], separators=(",", ":"))


def of_rows(rows: Iterable[tuple[float, str]]) -> tuple[Curves, list[Heat]]:
    """Returns the samples of a tail's rows (time and text): the curves, and the heat by each set of ranks."""
    points, parts = Curves(), list[Heat]()
    for at, text in rows:
        attempt, step, figures, ranks, workers, of_ranks = json.loads(text)
        points.at.append(at)
        points.attempt.append(attempt)
        points.step.append(step)
        for name, values in points.figures.items():
            values.append(figures.get(name, NAN))
        if of_ranks:
            _add(parts, at, attempt, ranks, workers, of_ranks)
    return points, parts


def _add(
    parts: list[Heat],
    at: float,
    attempt: int,
    ranks: list[int],
    workers: list[int],
    of_ranks: Mapping[str, Sequence[float | None]],
) -> None:
    """Adds a time to the last part, or to a new one where the ranks or what they say are others."""
    last = parts[-1] if parts else None
    if last is None or (last.ranks, last.workers, last.figures.keys()) != (ranks, workers, of_ranks.keys()):
        in_order = {name: array("d") for name in heat.FIGURES if name in of_ranks}
        parts.append(Heat(ranks, workers, figures=in_order))
    part = parts[-1]
    part.at.append(at)
    part.attempt.append(attempt)
    for name, values in part.figures.items():
        values.extend(NAN if value is None else value for value in of_ranks[name])


def _first(values: Sequence[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)
