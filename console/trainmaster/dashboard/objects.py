"""Reads the values of pods, events and nodes that a page shows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainmaster.client.errors import NotAllowed
from trainmaster.client.job import TrainingJob, has_index, items_of, worker_index
from trainmaster.dashboard.board import Row
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster_operator.api.v1alpha1.names import set_names
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.values import decimal, mapping, mappings, text, whole

# Maximum number of events on a page, of StatefulSets whose events are read, and of events of a namespace's pods.
MOST_EVENTS, MOST_SETS, MOST_POD_EVENTS = 100, 4, 5_000
# Maximum number of nodes, and of pods of all jobs, that a page of nodes shows.
MAX_NODES, MAX_PODS = 2_000, 5_000
# Limit of a number that an API object writes as text: a worker's index, or a node's accelerators.
MAX_INDEX = 10**9


async def pods_of(transport: ViewerTransport, namespace: str, name: str) -> list[Row]:
    """Returns the rows of a job's pods, sorted by worker. Each pod becomes a row as it arrives. Raises ClientError."""
    path, query = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{JOB_NAME_LABEL}={name}"}
    rows, _ = await transport.listed(path, query, lambda pod: pod_row(pod) if has_index(pod) else None)
    return sorted(rows, key=lambda row: row["worker"])


def asked_pods(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """Returns pods that contain only the values needed to poll their agents."""
    return [
        {
            "metadata": {"name": row["name"], "labels": {POD_INDEX_LABEL: str(row["worker"])}},
            "status": {"phase": row["phase"]},
        }
        for row in rows
    ]


def pod_row(pod: Mapping[str, Any]) -> Row:
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


async def events_of(transport: ViewerTransport, job: TrainingJob) -> list[Row]:
    """Returns the events of a job, its StatefulSets and its pods, also of pods that are gone, oldest first."""
    groups = mappings(mapping(job.raw.get("spec")).get("workerGroups"))
    sets = set_names(job.name, [text(group.get("name"), 63) for group in groups])
    path = f"/api/v1/namespaces/{job.namespace}/events"
    found: list[Mapping[str, Any]] = []
    for name in dict.fromkeys([job.name, *sets[:MOST_SETS]]):
        query = {"fieldSelector": f"involvedObject.name={name}", "limit": str(MOST_EVENTS)}
        found += items_of(await transport.request("GET", path, query=query))

    def of_a_pod(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        # A pod's name is its StatefulSet's name and a number.
        owner, _, index = text(mapping(event.get("involvedObject")).get("name"), 253).rpartition("-")
        return event if owner in sets and index.isdecimal() else None

    query = {"fieldSelector": "involvedObject.kind=Pod", "limit": str(MOST_POD_EVENTS)}
    of_pods, _ = await transport.listed(path, query, of_a_pod)
    created = text(mapping(job.raw.get("metadata")).get("creationTimestamp"), 40)
    return event_rows([*found, *of_pods], since=created)


def event_rows(events: Iterable[Mapping[str, Any]], *, since: str) -> list[Row]:
    """Returns the events that aren't older than `since` as rows. Older events belong to an earlier job of the name.

    Equal events are one row with the sum of their counts.
    """
    rows: dict[tuple[str, ...], Row] = {}
    for row in sorted(map(_event_row, events), key=lambda row: row["at"]):
        if row["at"] >= since:
            key = (row["type"], row["reason"], row["object"], row["message"])
            row["count"] += rows.pop(key, {"count": 0})["count"]
            rows[key] = row
    return list(rows.values())[-MOST_EVENTS:]


def _event_row(event: Mapping[str, Any]) -> dict[str, Any]:
    about = mapping(event.get("involvedObject"))
    times = (mapping(event.get("series")).get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = mapping(event.get("metadata")).get("creationTimestamp")
    kind = text(about.get("kind"), 63).lower()
    count = whole(mapping(event.get("series")).get("count")) or whole(event.get("count")) or 1
    return {
        "at": next((text(time, 40) for time in (*times, created) if isinstance(time, str) and time), ""),
        "type": text(event.get("type"), 40),
        "reason": text(event.get("reason"), 100),
        "message": text(event.get("message"), 2_000).strip(),
        "count": count,
        "object": f"{'dtj' if kind == 'distributedtrainingjob' else kind}/{text(about.get('name'), 253)}",
    }


async def nodes_of(transport: ViewerTransport, namespace: str | None, blame: Iterable[Row]) -> dict[str, Any]:
    """Returns the nodes, sorted by name. Raises ClientError if the API server can't be reached."""
    unread: list[str] = []
    nodes = await _list(transport, "/api/v1/nodes", {"limit": str(MAX_NODES)}, kept_node, unread)
    path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
    pods = await _list(transport, path, {"labelSelector": JOB_NAME_LABEL, "limit": str(MAX_PODS)}, kept_pod, unread)
    return {"nodes": node_rows(blame, nodes, pods), "why": " ".join(unread) or None}


def node_rows(blame: Iterable[Row], nodes: list[Row] | None, pods: list[Row] | None) -> list[Row]:
    """Returns a row for each node. `nodes` and `pods` are None if the viewer may not read them."""
    rows: dict[str, Row] = {}

    def row(name: str) -> Row:
        empty = {"name": name, "failures": 0, "avoidedBy": [], "blamedBy": [], "ready": None, "gpus": None}
        return rows.setdefault(name, {**empty, "pods": None if pods is None else []})

    for node in nodes or ():
        row(node["name"]).update(node)
    for job in blame:
        known = {"namespace": job["namespace"], "name": job["name"]}
        for name, count in job["failures"].items():
            row(name)["failures"] += count
            row(name)["blamedBy"].append({**known, "failures": count})
        for name in job["avoided"]:
            row(name)["avoidedBy"].append(known)
    for pod in pods or ():
        row(pod.pop("node"))["pods"].append(pod)
    return [rows[name] for name in sorted(rows)]


async def _list(
    transport: ViewerTransport,
    path: str,
    query: Mapping[str, str],
    kept: Callable[[Mapping[str, Any]], Row | None],
    unread: list[str],
) -> list[Row] | None:
    """Applies `kept` to each object of a list and returns the results; None if the viewer may not read the list."""
    try:
        found, metadata = await transport.listed(path, query, kept)
    except NotAllowed as error:
        unread.append(f"{str(error).removesuffix('.')}.")
        return None
    if metadata.get("continue"):
        unread.append(f"Only the first {query['limit']} {path.rpartition('/')[2]} were read.")
    return found


def kept_node(node: Mapping[str, Any]) -> Row:
    """Returns the values of a node that the page shows, with the number of allocatable accelerators."""
    status = mapping(node.get("status"))
    conditions = mappings(status.get("conditions"))
    counts = mapping(status.get("allocatable")).items()
    return {
        "name": text(mapping(node.get("metadata")).get("name"), 253),
        "ready": any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions),
        "gpus": sum(decimal(text(count), MAX_INDEX) or 0 for name, count in counts if text(name).endswith("/gpu")),
    }


def kept_pod(pod: Mapping[str, Any]) -> Row | None:
    """Returns a pod's values; None if it isn't on a node, or has ended."""
    node = text(mapping(pod.get("spec")).get("nodeName"), 253)
    if not node or mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed"):
        return None
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    worker = decimal(labels.get(POD_INDEX_LABEL), MAX_INDEX)
    names = {"node": node, "namespace": metadata.get("namespace"), "job": labels.get(JOB_NAME_LABEL)}
    return {**{key: sys.intern(text(name, 253)) for key, name in names.items()}, "worker": worker}
