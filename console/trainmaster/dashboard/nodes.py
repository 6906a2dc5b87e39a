"""Reads the nodes that a viewer's jobs blame or avoid, with their state and pods if the viewer may read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainmaster.client.errors import NotAllowed
from trainmaster.dashboard.board import Row
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.values import decimal, mapping, mappings, text

MAX_NODES, MAX_PODS = 2_000, 5_000
MAX_INDEX = 10**9


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
    """Returns `kept` of each object in a list; None if the viewer may not read the list."""
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
