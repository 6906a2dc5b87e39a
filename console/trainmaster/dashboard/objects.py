"""Reads the values of a job's pods and events that a page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster.client.job import TrainingJob, has_index, items_of, worker_index
from trainmaster.client.transport import AsyncTransport
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster_operator.api.v1alpha1.names import set_names
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.values import mapping, mappings, text, whole

# Maximum number of events of an object, and of unhealthy pods whose events are read (most have the same cause).
MOST_EVENTS = 100
MOST_TROUBLED = 4

PodRow = dict[str, Any]


async def pods_of(transport: ViewerTransport, namespace: str, name: str) -> list[PodRow]:
    """Returns the rows of a job's pods, by worker. Each pod becomes a row as it arrives. Raises ClientError."""
    path, query = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{JOB_NAME_LABEL}={name}"}
    rows, _ = await transport.listed(path, query, lambda pod: pod_row(pod) if has_index(pod) else None)
    return sorted(rows, key=lambda row: row["worker"])


def asked_pods(rows: Sequence[PodRow]) -> list[Mapping[str, Any]]:
    """Returns pods with the values that polling their agents needs."""
    return [
        {
            "metadata": {"name": row["name"], "labels": {POD_INDEX_LABEL: str(row["worker"])}},
            "status": {"phase": row["phase"]},
        }
        for row in rows
    ]


def pod_row(pod: Mapping[str, Any]) -> PodRow:
    """Returns a pod's row."""
    metadata, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    containers = mappings(status.get("containerStatuses"))
    conditions = {text(one.get("type"), 60): one for one in mappings(status.get("conditions"))}
    waiting = next(
        (
            found
            for one in [*mappings(status.get("initContainerStatuses")), *containers]
            if (found := mapping(mapping(one.get("state")).get("waiting"))).get("reason")
            not in (None, "PodInitializing", "ContainerCreating")
        ),
        {},
    )
    unscheduled = conditions.get("PodScheduled", {})
    message = text(waiting.get("message")) or text(waiting.get("reason"))
    if not message and unscheduled.get("status") == "False":
        message = text(unscheduled.get("message"))
    return {
        "name": text(metadata.get("name"), 253),
        "worker": worker_index(pod),
        "node": text(mapping(pod.get("spec")).get("nodeName"), 253) or None,
        "phase": "Terminating" if metadata.get("deletionTimestamp") else text(status.get("phase"), 40) or "Unknown",
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "restarts": sum(whole(one.get("restartCount")) or 0 for one in containers),
        "message": message or text(status.get("message")) or text(status.get("reason")) or None,
    }


async def events_of(transport: AsyncTransport, job: TrainingJob, pods: Sequence[PodRow]) -> list[dict[str, Any]]:
    """Returns the events of a job, its StatefulSets and its unhealthy pods, oldest first."""
    groups = mappings(mapping(job.raw.get("spec")).get("workerGroups"))
    sets = set_names(job.name, [text(group.get("name"), 63) for group in groups])
    troubled = [row["name"] for row in pods if not row["ready"] and row["phase"] != "Succeeded"]
    path = f"/api/v1/namespaces/{job.namespace}/events"
    found: list[Mapping[str, Any]] = []
    for name in dict.fromkeys([job.name, *sets[:MOST_TROUBLED], *troubled[:MOST_TROUBLED]]):
        query = {"fieldSelector": f"involvedObject.name={name}", "limit": str(MOST_EVENTS)}
        found += items_of(await transport.request("GET", path, query=query))
    created = text(mapping(job.raw.get("metadata")).get("creationTimestamp"), 40)
    return event_rows(found, since=created)


def event_rows(events: Iterable[Mapping[str, Any]], *, since: str) -> list[dict[str, Any]]:
    """Returns events of either API as rows, without those before `since`: they belong to an earlier job of the name."""
    rows = [_event_row(event) for event in events]
    return sorted((row for row in rows if row["at"] >= since), key=lambda row: row["at"])[-MOST_EVENTS:]


def _event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    about = mapping(event.get("involvedObject"))
    times = (mapping(event.get("series")).get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = mapping(event.get("metadata")).get("creationTimestamp")
    kind = text(about.get("kind"), 63).lower()
    return {
        "at": next((text(time, 40) for time in (*times, created) if isinstance(time, str) and time), ""),
        "type": text(event.get("type"), 40),
        "reason": text(event.get("reason"), 100),
        "message": text(event.get("message"), 2_000).strip(),
        "object": f"{'dtj' if kind == 'distributedtrainingjob' else kind}/{text(about.get('name'), 253)}",
    }
