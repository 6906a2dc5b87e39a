"""Reads the nodes that a viewer's jobs blame or avoid, with their state and pods if the viewer may read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.dashboard.board import Row
from trainmaster.dashboard.reading import ViewerTransport
from trainmaster_operator.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster_operator.wire.values import decimal, mapping, mappings, text

MAX_NODES, MAX_PODS = 2_000, 5_000
MAX_INDEX = 10**9

T = TypeVar("T")


class KeptNode(NamedTuple):
    """KeptNode contains the values of a node that the page shows."""

    name: str
    ready: bool
    gpus: int


class KeptPod(NamedTuple):
    """KeptPod is a job's pod on a node."""

    node: str
    namespace: str
    job: str
    worker: int | None


async def nodes_of(transport: ViewerTransport, namespace: str | None, blame: Iterable[Row]) -> dict[str, Any]:
    """Returns the nodes, sorted by name. Raises ClientError if the API server can't be reached."""
    unread: list[str] = []
    nodes = await _list(transport, "/api/v1/nodes", {"limit": str(MAX_NODES)}, kept_node, unread)
    path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
    pods = await _list(transport, path, {"labelSelector": JOB_NAME_LABEL, "limit": str(MAX_PODS)}, kept_pod, unread)
    return {"nodes": node_rows(blame, nodes, pods), "why": " ".join(unread) or None}


def node_rows(blame: Iterable[Row], nodes: list[KeptNode] | None, pods: list[KeptPod] | None) -> list[dict[str, Any]]:
    """Returns a row for each node. `nodes` and `pods` are None if the viewer may not read them."""
    rows: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        empty = {"name": name, "failures": 0, "avoidedBy": [], "blamedBy": [], "ready": None, "gpus": None}
        return rows.setdefault(name, {**empty, "pods": None if pods is None else []})

    for node in nodes or ():
        row(node.name).update(ready=node.ready, gpus=node.gpus)
    for job in blame:
        known = {"namespace": job["namespace"], "name": job["name"]}
        for name, count in job["failures"].items():
            row(name)["failures"] += count
            row(name)["blamedBy"].append({**known, "failures": count})
        for name in job["avoided"]:
            row(name)["avoidedBy"].append(known)
    for pod in pods or ():
        row(pod.node)["pods"].append({"namespace": pod.namespace, "job": pod.job, "worker": pod.worker})
    return [rows[name] for name in sorted(rows)]


async def _list(
    transport: ViewerTransport,
    path: str,
    query: Mapping[str, str],
    kept: Callable[[Mapping[str, Any]], T | None],
    unread: list[str],
) -> list[T] | None:
    """Returns `kept` of each object in a list; None if the viewer may not read the list."""
    found: list[T] = []

    def take(item: Mapping[str, Any]) -> None:
        if (one := kept(item)) is not None:
            found.append(one)

    try:
        rest = await transport.listed(path, query, take)
    except NotAllowed as error:
        unread.append(_sentence(error))
        return None
    if mapping(rest.get("metadata")).get("continue"):
        unread.append(f"Only the first {query['limit']} {path.rpartition('/')[2]} were read.")
    return found


def _sentence(error: ClientError) -> str:
    said = str(error)
    return said if said.endswith(".") else f"{said}."


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in mappings(status.get("conditions")))


def _gpus(status: Mapping[str, Any]) -> int:
    """Returns the number of allocatable accelerators."""
    found = mapping(status.get("allocatable")).items()
    return sum(decimal(text(count), MAX_INDEX) or 0 for name, count in found if text(name).endswith("/gpu"))


def kept_node(node: Mapping[str, Any]) -> KeptNode:
    """Returns the values of a node that the page shows."""
    status = mapping(node.get("status"))
    return KeptNode(text(mapping(node.get("metadata")).get("name"), 253), _is_ready(status), _gpus(status))


def kept_pod(pod: Mapping[str, Any]) -> KeptPod | None:
    """Returns a pod's values; None if it isn't on a node, or has ended."""
    node = text(mapping(pod.get("spec")).get("nodeName"), 253)
    if not node or mapping(pod.get("status")).get("phase") in ("Succeeded", "Failed"):
        return None
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    job, namespace = text(labels.get(JOB_NAME_LABEL), 253), text(metadata.get("namespace"), 253)
    return KeptPod(
        sys.intern(node), sys.intern(namespace), sys.intern(job), decimal(labels.get(POD_INDEX_LABEL), MAX_INDEX)
    )
