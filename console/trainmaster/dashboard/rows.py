"""A row is what the list shows of a job: a few values of the raw object, whatever else stands there.

Objects are trimmed to rows as they come, so that thousands of jobs are a few megabytes. Everything in an object was
written by somebody else: a value that isn't plausible is null, and texts are cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster_operator.wire.values import mapping, mappings, number, text, whole

Row = dict[str, Any]

MAX_SENTENCE = 300
_MAX_MESSAGE = 4_000
# How a failure's message begins (reconciling/policies/attribution.py); the lines of the rank stand behind it.
_WHO = re.compile(r"worker (?P<worker>\d{1,10}) \((?:rank (?P<rank>\d{1,10}), )?pod [^()]{1,600}\) ")
# Reasons for which a job of any phase waits without pods.
_HELD = ("Queued", "SchedulingBackoff")


def row_of(job: Mapping[str, Any]) -> Row:
    """Returns a job's row; times are RFC 3339, and what isn't known is None."""
    metadata, spec, status = (mapping(job.get(name)) for name in ("metadata", "spec", "status"))
    progress, workers = mapping(status.get("progress")), mapping(status.get("workers"))
    phase = text(status.get("phase"), 20) or "Pending"
    running = phase == "Running"
    failures = mappings(status.get("failures"))
    newest = failures[0] if failures else {}
    condition = _newest_condition(status)
    return {
        "uid": text(metadata.get("uid"), 64),
        "namespace": text(metadata.get("namespace"), 253),
        "name": text(metadata.get("name"), 253),
        "phase": phase,
        "attempt": whole(status.get("attempt")) or 0,
        "restarts": whole(status.get("restarts")) or 0,
        "disruptions": whole(status.get("disruptions")) or 0,
        "running": whole(workers.get("running")) or 0,
        "desired": whole(workers.get("desired")) or 0,
        "step": whole(progress.get("step")),
        "totalSteps": whole(progress.get("totalSteps")),
        "etaSeconds": number(progress.get("etaSeconds")) if running else None,
        "loss": number(progress.get("loss")),
        "samplesPerSecond": number(progress.get("samplesPerSecond")) if running else None,
        "goodput": number(progress.get("goodput")),
        "createdAt": _time(metadata.get("creationTimestamp")),
        "startedAt": _time(status.get("startTime")),
        "completedAt": _time(status.get("completionTime")),
        "failure": _failure(newest, phase, condition),
        "failedAt": _time(newest.get("failedAt")),
        "reason": None if running or phase == "Succeeded" else text(condition.get("reason"), 100) or None,
        "waits": _waits(phase, condition),
        "queue": text(mapping(spec.get("scheduling")).get("queue"), 253) or None,
        "suspended": mapping(spec.get("runPolicy")).get("suspend") is True,
    }


def changed_fields(before: Row, after: Row) -> Row:
    """Returns the fields of a row that are others than they were."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def first_line(message: object) -> str:
    """Returns the first line of a text, which isn't empty where the text isn't."""
    return text(message, MAX_SENTENCE).strip().partition("\n")[0]


def failure_in_words(failure: Mapping[str, Any]) -> str | None:
    """Returns who failed and how, in the few words that there is room for: without its place, with its last line."""
    said = text(failure.get("message"), _MAX_MESSAGE).strip().partition("\n")[0]
    match = _WHO.match(said)
    if match is not None:
        who = f"rank {match['rank']}" if match["rank"] else f"worker {match['worker']}"
        how, colon, lines = said[match.end() :].partition(": ")
        said = f"{who} {how}{colon}{lines.rpartition(' | ')[2]}"
    return said[:MAX_SENTENCE] or text(failure.get("reason"), 100) or None


def _failure(newest: Mapping[str, Any], phase: str, condition: Mapping[str, Any]) -> str | None:
    """Returns the last failure in words, or what ended a job in which no rank failed."""
    if phase == "Failed" and not newest:
        return first_line(condition.get("message")) or text(condition.get("reason"), 100) or None
    return failure_in_words(newest)


def _waits(phase: str, condition: Mapping[str, Any]) -> str | None:
    """Returns what a job waits for, such as its place in the queue; None for one that doesn't wait."""
    if phase not in ("Pending", "Starting") and condition.get("reason") not in _HELD:
        return None
    return first_line(condition.get("message")) or None


def _newest_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the condition that changed last of those that say something; that a spec can be run is no news."""
    found = [
        condition
        for condition in mappings(status.get("conditions"))
        if condition.get("message") and not (condition.get("type") == "Accepted" and condition.get("status") == "True")
    ]
    return max(found, key=lambda condition: text(condition.get("lastTransitionTime"), 40), default={})


def _time(value: object) -> str | None:
    return text(value, 40) or None
