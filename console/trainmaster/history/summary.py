"""A job's summary is what a list of recorded jobs shows of each: its RecordedJob, made of the last object."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from trainmaster.history.curves import SPENT
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES
from trainmaster_operator.wire.limits import MAX_RESULT_NAME, MAX_RESULTS
from trainmaster_operator.wire.values import is_number, mapping, mappings, number, text, whole

# Of a failure: its fields, and the characters of one; the operator's own message has fewer.
_FIELDS, _CHARACTERS = 20, 4_000
_COUNTS = ("attempt", "restarts", "disruptions")
# Everything in a summary that isn't the job's identity.
NOTHING: Mapping[str, Any] = {
    "startedAt": None,
    "endedAt": None,
    "phase": None,
    **dict.fromkeys(_COUNTS, 0),
    "step": None,
    "totalSteps": None,
    "loss": None,
    "goodput": None,
    "lastFailure": None,
    "result": None,
}


def summary(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a RecordedJob without its identity and when it was deleted; what anybody edited out of shape is null."""
    status = mapping(job.get("status"))
    progress = mapping(status.get("progress"))
    failures = mappings(status.get("failures"))
    found = islice(mapping(progress.get("result")).items(), MAX_RESULTS)
    result = {name[:MAX_RESULT_NAME]: number(value) for name, value in found}
    return {
        **NOTHING,
        "startedAt": time(status.get("startTime")),
        "endedAt": time(status.get("completionTime")),
        "phase": text(status.get("phase"), 64) or None,
        **{name: whole(status.get(name)) or 0 for name in _COUNTS},
        "step": whole(progress.get("step")),
        "totalSteps": whole(progress.get("totalSteps")),
        "loss": number(progress.get("loss")),
        "goodput": number(progress.get("goodput")),
        "lastFailure": bounded_failure(failures[0]) if failures else None,
        "result": result or None,
    }


def bounded_failure(failure: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a failure as it is, but for what is too large: a job has hundreds of them, and a list shows hundreds."""
    found = dict[str, Any]()
    for name, value in islice(failure.items(), _FIELDS):
        if isinstance(value, str):
            found[name] = value[:_CHARACTERS]
        elif isinstance(value, Mapping):
            found[name] = {key: each for key, each in islice(value.items(), _FIELDS) if each is None or is_number(each)}
        elif value is None or isinstance(value, bool) or is_number(value):
            found[name] = value
    return found


def status_figures(job: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures of a status that belong to curves: goodput, and where the time went."""
    status = mapping(job.get("status"))
    spent = mapping(status.get("timeSpent"))
    found = {f"{SPENT}{category}": number(spent.get(category)) for category in TIME_CATEGORIES}
    found["goodput"] = number(mapping(status.get("progress")).get("goodput"))
    return {name: value for name, value in found.items() if value is not None}


def time(value: object) -> str | None:
    """Returns a time as it is written; None for what isn't one."""
    return value if isinstance(value, str) and len(value) <= 40 and to_seconds(value) is not None else None
