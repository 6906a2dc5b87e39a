"""Derives a job's summary and attempts from its statuses, even if some were missed or repeated.

A status contains the current attempt and the newest ten failures, so an attempt that began and failed unrecorded is
known from its failure. Identical failures in a row are one entry with a count there; here, each attempt has its own
failure. Later statuses correct failures that were provisional or merged with another failure. Data that later statuses
no longer contain stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from trainmaster.history.figures import SPENT
from trainmaster_operator.api.records import PodPlace
from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import MAX_FAILURES, SUSPENDED_PHASES, TERMINAL_PHASES, TIME_CATEGORIES
from trainmaster_operator.wire.limits import MAX_ATTEMPT, MAX_RESULT_NAME, MAX_RESULTS
from trainmaster_operator.wire.values import is_number, mapping, mappings, number, text, whole

# Maximum number of a failure's fields, and of a field's characters. The operator's messages are shorter.
_FIELDS, _CHARACTERS = 20, 4_000
# Maximum characters of the text that names the ranks that train (`training_with`).
MAX_SHOWN = 300
# Fields of an entry with a count that don't describe its newest failure, and the maximum number of attempts that are
# added for an entry although their own statuses were missed.
_OF_ENTRIES, _UNSEEN = frozenset({"count", "firstAttempt", "firstFailedAt"}), 100
# The Running condition's time has whole seconds. If a record is less than this much later, the attempt has just begun
# to run, and the record's more precise time is used.
_SECONDS_OF_A_CONDITION = 1.5


def summary(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a RecordedJob without its identity and deletion. Malformed values become null."""
    status = mapping(job.get("status"))
    progress = mapping(status.get("progress"))
    failures = mappings(status.get("failures"))
    found = islice(mapping(progress.get("result")).items(), MAX_RESULTS)
    result = {name[:MAX_RESULT_NAME]: number(value) for name, value in found}
    return {
        "startedAt": rfc3339(status.get("startTime")),
        "endedAt": rfc3339(status.get("completionTime")),
        "phase": text(status.get("phase"), 64) or None,
        **{name: whole(status.get(name)) or 0 for name in ("attempt", "restarts", "disruptions")},
        "step": whole(progress.get("step")),
        "totalSteps": whole(progress.get("totalSteps")),
        "loss": number(progress.get("loss")),
        "goodput": number(progress.get("goodput")),
        "lastFailure": bounded_failure(failures[0]) if failures else None,
        "result": result or None,
    }


def bounded_failure(failure: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a failure without large parts, because lists contain the failures of hundreds of jobs."""
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
    """Returns a status's figures for curves: goodput, and the time spent."""
    status = mapping(job.get("status"))
    spent = mapping(status.get("timeSpent"))
    found = {f"{SPENT}{category}": number(spent.get(category)) for category in TIME_CATEGORIES}
    found["goodput"] = number(mapping(status.get("progress")).get("goodput"))
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Attempt:
    """Attempt contains the known data of one attempt. Times are RFC 3339, or None if unknown."""

    started_at: str | None = None
    running_at: str | None = None
    # How the job ended in this attempt (Succeeded, Failed), or why the attempt stopped (Suspended, Resized, Restarted).
    ended_as: str | None = None
    ended_at: str | None = None
    failure: Mapping[str, Any] | None = None
    # `continues`: the attempt continues with the previous attempt's ranks. If some are absent, `training_with` names
    # those that are present.
    continues: bool = False
    training_with: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the known values as they are written into the file."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    @property
    def is_over(self) -> bool:
        """Returns whether the attempt's end is known."""
        return self.ended_as is not None or self.failure is not None


def oldest_failure(status: Mapping[str, Any]) -> int:
    """Returns the oldest attempt whose failure a status can still contain."""
    failures = _failures(status)
    return 0 if len(failures) < MAX_FAILURES else min([*failures, *(span.start for span in _spans(status))])


def observe(status: Mapping[str, Any], known: Mapping[int, Attempt], at: float) -> dict[int, Attempt]:
    """Returns the new state of each attempt that a status changes.

    The status was recorded at `at`. `known` must contain the attempts from `oldest_failure` on.
    """
    failures, current = _failures(status), whole(status.get("attempt"), MAX_ATTEMPT) or 0
    now = {attempt: replace(known.get(attempt, Attempt()), failure=failure) for attempt, failure in failures.items()}
    spans = _spans(status)
    for attempt, old in known.items():
        is_known = attempt in failures or any(attempt in span for span in spans)
        if attempt >= oldest_failure(status) and not is_known and old.failure is not None:
            now[attempt] = replace(old, failure=None)
    for span, is_whole in spans.items():
        for attempt in span[-_UNSEEN:] if is_whole else ():
            old = known.get(attempt, Attempt())
            if old.failure is None:
                now[attempt] = replace(old, failure={**_like(failures[span.stop]), "attempt": attempt})
    if current:
        now[current] = _current(status, now.get(current) or known.get(current) or Attempt(), at)
    return {attempt: found for attempt, found in now.items() if found != known.get(attempt)}


def merge_workers(known: Mapping[int, PodPlace], pods: Sequence[PodPlace]) -> dict[int, PodPlace]:
    """Returns the pod and node of each worker of an attempt. A pod without a node keeps its last known node."""
    found = dict(known)
    for place in pods:
        old = found.get(place.worker)
        is_nowhere_now = old is not None and old.pod == place.pod and not place.node
        if place.pod and not is_nowhere_now:
            found[place.worker] = place
    return found


def shown(
    attempt: int, found: Attempt, following: Attempt | None, *, phase: str | None, deleted_at: str | None
) -> dict[str, Any]:
    """Returns a RecordedAttempt without its steps and workers. `following` is the next attempt, or None."""
    ended_at: str | None = found.ended_at
    outcome: str | None = found.ended_as
    if found.failure is not None:
        has_failed = outcome == "Failed" or found.failure.get("counted") is not False
        if outcome != "Succeeded":
            outcome = "Failed" if has_failed else "Disrupted"
        ended_at = rfc3339(found.failure.get("failedAt")) or ended_at
    elif outcome is None and following is not None:
        outcome = "Joined" if following.continues else "Ended"
    elif outcome is None and deleted_at is not None:
        outcome, ended_at = "Deleted", deleted_at
    if following is not None and ended_at is None:
        ended_at = following.started_at
    if outcome is None:
        outcome = "Running" if found.running_at is not None and phase == "Running" else "Starting"
    return {
        "attempt": attempt,
        "startedAt": found.started_at,
        "runningAt": found.running_at,
        "endedAt": ended_at,
        "outcome": outcome,
        "failure": None if found.failure is None else dict(found.failure),
        "trainingWith": found.training_with,
    }


def rfc3339(value: object) -> str | None:
    """Returns a time unchanged; None for any other value."""
    return value if isinstance(value, str) and len(value) <= 40 and to_seconds(value) is not None else None


def _current(status: Mapping[str, Any], old: Attempt, at: float) -> Attempt:
    phase = text(status.get("phase"), 64)
    found = replace(
        old,
        started_at=_earlier(old.started_at, status.get("attemptStartTime")),
        continues=whole(status.get("continues"), MAX_ATTEMPT) is not None,
        training_with=text(status.get("trainingWith"), MAX_SHOWN) or None,
    )
    if phase == "Running" and found.running_at is None:
        since = to_seconds(_transition(status, "Running"))
        runs = at if since is None or at - since < _SECONDS_OF_A_CONDITION else since
        found = replace(found, running_at=to_text(max(runs, to_seconds(found.started_at) or 0.0)))
    if phase in TERMINAL_PHASES:
        return replace(found, ended_as=phase, ended_at=rfc3339(status.get("completionTime")) or to_text(at))
    if phase in SUSPENDED_PHASES:
        ended_at = old.ended_at if old.ended_as == "Suspended" else _transition(status, "Suspended")
        return replace(found, ended_as="Suspended", ended_at=ended_at)
    if phase == "Restarting" and old.ended_as == "Suspended":
        # The job is resuming: the next attempt hasn't begun.
        return found
    stopped = "Resized" if status.get("resizing") is True else "Restarted" if status.get("stopping") is True else None
    # This attempt's end will be the next attempt's start.
    return replace(found, ended_as=stopped, ended_at=None)


def _failures(status: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Returns the failures by attempt. If an attempt has two failures, the earlier one, which ended it, is used."""
    found = dict[int, Mapping[str, Any]]()
    for failure in mappings(status.get("failures"))[:MAX_FAILURES]:
        attempt = whole(failure.get("attempt"), MAX_ATTEMPT)
        if attempt is not None:
            bounded = bounded_failure(failure)
            found[attempt] = {name: value for name, value in bounded.items() if name not in _OF_ENTRIES}
    return found


def _spans(status: Mapping[str, Any]) -> dict[range, bool]:
    """Returns the earlier attempts that each entry with a count covers, and whether it counts each of them."""
    found = dict[range, bool]()
    for failure in mappings(status.get("failures"))[:MAX_FAILURES]:
        newest, first = (whole(failure.get(name), MAX_ATTEMPT) for name in ("attempt", "firstAttempt"))
        if newest is not None and first is not None and first < newest:
            found[range(first, newest)] = whole(failure.get("count")) == newest - first + 1
    return found


def _like(failure: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is known of an earlier failure from an identical one."""
    return {name: failure[name] for name in ("reason", "exception", "location", "counted") if name in failure}


def _transition(status: Mapping[str, Any], kind: str) -> str | None:
    """Returns the time at which a condition became true; None if it isn't true."""
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == kind and condition.get("status") == "True":
            return rfc3339(mapping(condition).get("lastTransitionTime"))
    return None


def _earlier(known: str | None, new: object) -> str | None:
    """Returns the earlier of two times, because a resumed attempt's status contains a later start."""
    found = rfc3339(new)
    if known is None or found is None:
        return known or found
    return min(known, found, key=lambda time: to_seconds(time) or 0.0)
