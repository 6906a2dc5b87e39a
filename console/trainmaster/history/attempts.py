"""The attempts of a job are derived from its statuses, whichever of them were seen and how often.

A status names the current attempt and the newest ten failures, so an attempt that began and failed while nobody
recorded is known by its failure. What only a later status could correct (a failure that was provisional, or merged with
another) is corrected by it. What no status says any more stays as it was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainmaster.history.summary import bounded_failure, time
from trainmaster_operator.api.records import PodPlace
from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES
from trainmaster_operator.wire.limits import MAX_ATTEMPT
from trainmaster_operator.wire.values import mapping, mappings, text, whole

# Failures in a status (reconciling/policies/attempts.py): of a list with fewer nothing was left out.
FAILURES_IN_STATUS = 10
# Characters of the text on who trains.
MAX_SHOWN = 300
# The Running condition's time has whole seconds; a record that comes within them saw the attempt begin to run.
_SECONDS_OF_A_CONDITION = 1.5


@dataclass(frozen=True)
class Attempt:
    """Attempt is what is known of one attempt. Times are RFC 3339, None where they aren't known."""

    started_at: str | None = None
    running_at: str | None = None
    # How the job ended in it (Succeeded, Failed), or why it was stopped (Suspended, Resized, Restarted).
    ended_as: str | None = None
    ended_at: str | None = None
    failure: Mapping[str, Any] | None = None
    # The attempt goes on with the ranks of the one before, and where some are absent, with whom.
    continues: bool = False
    training_with: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns what the file has of it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}

    @property
    def is_over(self) -> bool:
        """Returns whether an end is known."""
        return self.ended_as is not None or self.failure is not None


def oldest_failure(status: Mapping[str, Any]) -> int:
    """Returns the first attempt about whose failure a status says whether there was one."""
    failures = _failures(status)
    return 0 if len(failures) < FAILURES_IN_STATUS else min(failures)


def observe(status: Mapping[str, Any], known: Mapping[int, Attempt], at: float) -> dict[int, Attempt]:
    """Returns the attempts of which a status (recorded at `at`) says something that isn't known, as they are now.

    `known` has at least those from `oldest_failure` on.
    """
    failures, current = _failures(status), whole(status.get("attempt"), MAX_ATTEMPT) or 0
    now = {attempt: replace(known.get(attempt, Attempt()), failure=failure) for attempt, failure in failures.items()}
    for attempt, old in known.items():
        if attempt >= oldest_failure(status) and attempt not in failures and old.failure is not None:
            now[attempt] = replace(old, failure=None)
    if current:
        old = now.get(current) or known.get(current) or Attempt()
        now[current] = _current(status, old, at)
    return {attempt: found for attempt, found in now.items() if found != known.get(attempt)}


def merge_workers(known: Mapping[int, PodPlace], pods: Sequence[PodPlace]) -> dict[int, PodPlace]:
    """Returns where the workers of an attempt are; a pod keeps the node that it was seen on."""
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
    """Returns an attempt as it is answered; `following` is the next one, where there is one."""
    ended_at: str | None = found.ended_at
    outcome: str | None = found.ended_as
    if found.failure is not None:
        has_failed = outcome == "Failed" or found.failure.get("counted") is not False
        if outcome != "Succeeded":
            outcome = "Failed" if has_failed else "Disrupted"
        ended_at = time(found.failure.get("failedAt")) or ended_at
    elif outcome is None and following is not None:
        outcome = "Joined" if following.continues else "Ended"
    elif outcome is None and deleted_at is not None:
        outcome, ended_at = "Deleted", deleted_at
    if following is not None and ended_at is None:
        ended_at = following.started_at
    if outcome is None:
        outcome = "Running" if found.running_at is not None and phase == "Running" else "Starting"
    failure = None if found.failure is None else dict(found.failure)
    times = {"startedAt": found.started_at, "runningAt": found.running_at, "endedAt": ended_at}
    ended = {"outcome": outcome, "failure": failure}
    return {"attempt": attempt, **times, **ended, "trainingWith": found.training_with}


def _current(status: Mapping[str, Any], old: Attempt, at: float) -> Attempt:
    """Returns the current attempt with what its status says of it."""
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
        return replace(found, ended_as=phase, ended_at=time(status.get("completionTime")) or to_text(at))
    if phase == "Suspended":
        ended_at = old.ended_at if old.ended_as == "Suspended" else time(_transition(status, "Suspended"))
        return replace(found, ended_as="Suspended", ended_at=ended_at)
    if phase == "Restarting" and old.ended_as == "Suspended":
        # It is resumed, by the next attempt.
        return found
    stopped = "Resized" if status.get("resizing") is True else "Restarted" if status.get("stopping") is True else None
    # When it was over the next attempt's start says.
    return replace(found, ended_as=stopped, ended_at=None)


def _failures(status: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Returns the failures by attempt; of two in one attempt the first one ended it, and the list begins with the
    newest."""
    found = dict[int, Mapping[str, Any]]()
    for failure in mappings(status.get("failures"))[:FAILURES_IN_STATUS]:
        attempt = whole(failure.get("attempt"), MAX_ATTEMPT)
        if attempt is not None:
            found[attempt] = bounded_failure(failure)
    return found


def _transition(status: Mapping[str, Any], kind: str) -> str | None:
    """Returns since when a condition is true."""
    for condition in mappings(status.get("conditions")):
        if condition.get("type") == kind and condition.get("status") == "True":
            return time(mapping(condition).get("lastTransitionTime"))
    return None


def _earlier(known: str | None, new: object) -> str | None:
    """Returns the earlier of two times: of an attempt that is resumed the status has a later one."""
    found = time(new)
    if known is None or found is None:
        return known or found
    return found if (to_seconds(found) or 0.0) < (to_seconds(known) or 0.0) else known
