"""A status that was written becomes CloudEvents (specification 1.0, github.com/cloudevents/spec): phases and failures.

An event's id follows from what happened alone, so that whoever gets it twice can tell. What it says stands in the
status, which has nothing that workers printed where the job's output isn't kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster.api.v1alpha1 import API_VERSION, PLURAL, Failure, JobStatus
from trainmaster.reconciling.observed.snapshot import Job
from trainmaster.reconciling.status.conditions import condition

PHASE = "dev.trainmaster.job.phase.v1"
FAILURE = "dev.trainmaster.job.failure.v1"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
Event = Mapping[str, Any]


def events_of(job: Job, old: JobStatus, new: JobStatus) -> Iterator[Event]:
    """Yields what changed from one status of a job to the next: the failure first, then the phase that follows."""
    failure = new.failures[0] if new.failures else None
    # A provisional one may still be corrected; what it becomes is another failure.
    if failure is not None and not failure.provisional and _cause(failure) not in map(_cause, old.failures[:1]):
        identity = f"{job.uid}/{failure.attempt}/failure/{failure.reason}/{failure.failed_at}"
        yield _event(job, new, FAILURE, identity, failure.failed_at, failure.reason, failure.message, failure)
    if new.phase is not None and new.phase != old.phase:
        why = condition(new.conditions, new.phase) or condition(new.conditions, "Running")
        at = "" if why is None else why.last_transition_time
        identity = f"{job.uid}/{new.attempt}/phase/{new.phase}/{at}"
        reason, message = ("", "") if why is None else (why.reason, why.message)
        yield _event(job, new, PHASE, identity, at, reason, message, failure if new.phase == "Failed" else None)


def _cause(failure: Failure) -> tuple[int, str, str, bool]:
    return failure.attempt, failure.reason, failure.failed_at, bool(failure.provisional)


def _event(
    job: Job, status: JobStatus, kind: str, identity: str, at: str, reason: str, message: str, failure: Failure | None
) -> Event:
    data: dict[str, Any] = {
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "phase": status.phase,
        "reason": reason,
        "message": message,
        "attempt": status.attempt,
        "restarts": status.restarts,
        "disruptions": status.disruptions,
    }
    if failure is not None:
        data["failure"] = failure.model_dump(by_alias=True, exclude_none=True, mode="json")
    event = {
        "specversion": "1.0",
        "id": identity,
        "source": f"/apis/{API_VERSION}/namespaces/{job.namespace}/{PLURAL}/{job.name}",
        "type": kind,
        "subject": f"{job.namespace}/{job.name}",
        "datacontenttype": "application/json",
        "data": data,
    }
    return {**event, "time": at} if at else event
