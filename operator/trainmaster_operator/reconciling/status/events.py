"""Derives events from the change of the status, so that a repeated decision publishes no event twice."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.times import duration, to_seconds
from trainmaster_operator.api.v1alpha1 import (
    SUSPENDED_PHASES,
    TERMINAL_PHASES,
    Failure,
    JobIdentity,
    JobSpec,
    JobStatus,
)
from trainmaster_operator.reconciling.decision import JobEvent
from trainmaster_operator.reconciling.observed.members import Members
from trainmaster_operator.reconciling.status.doubts import NEVER_MET
from trainmaster_operator.reconciling.transition import condition
from trainmaster_operator.rendering import worker_layout


def events_between(old: JobStatus, new: JobStatus, spec: JobSpec | None) -> tuple[JobEvent, ...]:
    """Returns the events of a transition, in chronological order."""
    return tuple(_events(old, new, spec))


def _events(old: JobStatus, new: JobStatus, spec: JobSpec | None) -> Iterator[JobEvent]:
    yield from _accepted(old, new)
    # A recovery becomes known only later.
    before, newest = ([one.model_copy(update={"recovery": None}) for one in each.failures[:1]] for each in (old, new))
    if new.phase != "Failed" and newest and newest != before:
        yield _failure(new.failures[0], new, spec)
    yield from _quarantine(old, new)
    if old.phase in SUSPENDED_PHASES and new.phase not in SUSPENDED_PHASES | TERMINAL_PHASES:
        held = condition(old.conditions, "Suspended")
        if held is not None and held.reason == "Queued":
            yield JobEvent("Normal", "Admitted", "Kueue has admitted the job")
        else:
            yield JobEvent("Normal", "Resumed", "The job is resumed")
    # The first attempt has no event, which saves a write before the pods exist.
    if new.attempt > old.attempt and new.continues is not None and spec is not None:
        yield from _continued(old, new, spec)
    elif new.attempt > max(old.attempt, 1):
        yield JobEvent("Normal", "AttemptOpened", f"Attempt {new.attempt} with {_who(new)}")
    running = condition(new.conditions, "Running")
    if running is not None:
        if new.scheduling_backoff and not old.scheduling_backoff:
            left = f"The job gives up its pods until {new.next_attempt_time}: {running.message}"
            yield JobEvent("Warning", "SchedulingBackoff", left)
        if new.resizing and not old.resizing:
            yield JobEvent("Normal", "Resizing", _sentence(running.message))
        replaced = set(new.replacing_pod_uids) - set(old.replacing_pod_uids)
        if (new.stopping and not old.stopping) or (replaced and running.reason == "ReplacingPods"):
            yield JobEvent("Normal", running.reason, _sentence(running.message))
    if new.phase != old.phase:
        yield from _phase(old, new)
    yield from _problem(old, new)
    yield from _never_met(old, new)


def _never_met(old: JobStatus, new: JobStatus) -> Iterator[JobEvent]:
    before, now = (each.progress.notice if each.progress is not None else None for each in (old, new))
    if now is not None and now != before and now.startswith(NEVER_MET.partition("{")[0]):
        yield JobEvent("Warning", "NeverMet", _sentence(now))


def _phase(old: JobStatus, new: JobStatus) -> Iterator[JobEvent]:
    shown = condition(new.conditions, "Suspended" if new.phase in SUSPENDED_PHASES else new.phase or "")
    if new.phase == "Running":
        yield JobEvent("Normal", "Running", f"All ranks of attempt {new.attempt} are up")
    elif new.phase in SUSPENDED_PHASES and shown is not None and shown.reason == "Queued":
        if old.phase not in SUSPENDED_PHASES:
            yield JobEvent("Normal", "Queued", _sentence(shown.message))
    elif new.phase == "Suspending":
        yield JobEvent("Normal", "Suspending", "The job is being suspended: its ranks save a checkpoint and stop")
    elif new.phase == "Suspended":
        yield JobEvent("Normal", "Suspended", "The job is suspended")
    elif shown is not None and new.phase in ("Succeeded", "Failed"):
        yield JobEvent("Normal" if new.phase == "Succeeded" else "Warning", shown.reason, _sentence(shown.message))


def _accepted(old: JobStatus, new: JobStatus) -> Iterator[JobEvent]:
    before, after = condition(old.conditions, "Accepted"), condition(new.conditions, "Accepted")
    if new.phase in TERMINAL_PHASES:
        # The event about the end of the job has the same message.
        return
    if after is not None and after.status == "False" and (before is None or before.message != after.message):
        yield JobEvent("Warning", after.reason, after.message)


def _failure(failure: Failure, new: JobStatus, spec: JobSpec | None) -> JobEvent:
    if failure.provisional:
        cost = "the cause isn't known yet"
    elif not failure.counted:
        cost = "doesn't count as a restart"
    else:
        limit = f" of {spec.failure_policy.max_restarts}" if spec is not None else ""
        cost = f"restart {new.restarts}{limit}"
    stopped = f"; {failure.not_continued}" if failure.not_continued else ""
    return JobEvent("Warning", failure.reason, f"Attempt {failure.attempt} ended: {failure.message}{stopped}; {cost}")


def _continued(old: JobStatus, new: JobStatus, spec: JobSpec) -> Iterator[JobEvent]:
    """Yields the event about the ranks that train in a continued attempt, or that have joined it."""
    before, after = _members(old, spec), _members(new, spec)
    joined = {*before.absent_ranks} - {*after.absent_ranks}
    shown = f"Attempt {new.attempt} continues with {new.training_with or after.shown(new.workers.desired)}"
    if not joined:
        yield JobEvent("Normal", "Continued", shown)
        return
    began, joins_at = to_seconds(old.attempt_start_time), to_seconds(new.attempt_start_time)
    seconds = max((joins_at or 0.0) - (began or 0.0), 0.0)
    trained_with = old.training_with or before.shown(old.workers.desired)
    waited = f"before, the job continued with {trained_with} for {duration(seconds)}"
    yield JobEvent("Normal", "Joined", f"{shown}: {after.named(joined)} joined; {waited}")


def _members(status: JobStatus, spec: JobSpec) -> Members:
    layout = worker_layout(JobIdentity("", "", ""), spec)
    first = (index for group in layout for index in group.first_workers)
    return Members.of(status.worker_order or first, layout, status.absent_ranks)


def _quarantine(old: JobStatus, new: JobStatus) -> Iterator[JobEvent]:
    for node in sorted(set(new.avoided_nodes) - set(old.avoided_nodes)):
        times = new.node_failures.get(node, 0)
        message = (
            f"Node {node} may have caused {times} failure{'' if times == 1 else 's'} of this job, so pods avoid it; "
            "failurePolicy.nodes.quarantineAfter: 0 forgives all nodes"
        )
        yield JobEvent("Warning", "NodeAvoided", message)
    if old.avoided_nodes and not new.avoided_nodes:
        yield JobEvent("Normal", "NodesForgiven", f"No longer avoided: {', '.join(old.avoided_nodes)}")


def _problem(old: JobStatus, new: JobStatus) -> Iterator[JobEvent]:
    before, after = condition(old.conditions, "Running"), condition(new.conditions, "Running")
    if new.phase in ("Succeeded", "Failed") or after is None or after.status == "True" or after.reason not in REASONS:
        return
    if before is None or before.reason != after.reason:
        yield JobEvent("Warning", after.reason, _sentence(after.message))


def _who(status: JobStatus) -> str:
    desired = status.workers.desired
    if status.worker_order and len(status.worker_order) != desired:
        return f"{len(status.worker_order)} of {desired} workers"
    return f"{desired} worker{'' if desired == 1 else 's'}"


def _sentence(message: str) -> str:
    # A field's path keeps its case.
    is_path = message.partition(" ")[0].endswith(":")
    return message if is_path else message[:1].upper() + message[1:]
