"""Nodes that jobs of a viewer blame or avoid, and what those nodes are, where the viewer may read that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.client.blocking import AsyncTransport
from trainmaster.client.errors import ClientError, NotAllowed
from trainmaster.client.job import items_of
from trainmaster.dashboard.rows import Row
from trainmaster.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL
from trainmaster.wire.values import decimal, mapping, mappings, text

MAX_NODES, MAX_PODS = 2_000, 5_000
MAX_INDEX = 10**9


async def nodes_of(transport: AsyncTransport, namespace: str | None, blame: Iterable[Row]) -> dict[str, Any]:
    """Returns the nodes by name. Raises ClientError where the API server can't be read."""
    unread: list[str] = []
    nodes = await _list(transport, "/api/v1/nodes", {"limit": str(MAX_NODES)}, unread)
    path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
    pods = await _list(transport, path, {"labelSelector": JOB_NAME_LABEL, "limit": str(MAX_PODS)}, unread)
    return {"nodes": node_rows(blame, nodes, pods), "why": " ".join(unread) or None}


def node_rows(
    blame: Iterable[Row], nodes: list[Mapping[str, Any]] | None, pods: list[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Returns what is known of each node; None for nodes or pods is what the viewer may not read."""
    rows: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        empty = {"name": name, "failures": 0, "avoidedBy": [], "blamedBy": [], "ready": None, "gpus": None}
        return rows.setdefault(name, {**empty, "pods": None if pods is None else []})

    for node in nodes or ():
        name, status = text(mapping(node.get("metadata")).get("name"), 253), mapping(node.get("status"))
        row(name).update(ready=_is_ready(status), gpus=_gpus(status))
    for job in blame:
        known = {"namespace": job["namespace"], "name": job["name"]}
        for name, count in job["failures"].items():
            row(name)["failures"] += count
            row(name)["blamedBy"].append({**known, "failures": count})
        for name in job["avoided"]:
            row(name)["avoidedBy"].append(known)
    for pod in pods or ():
        name = text(mapping(pod.get("spec")).get("nodeName"), 253)
        if name and mapping(pod.get("status")).get("phase") not in ("Succeeded", "Failed"):
            row(name)["pods"].append(_pod(mapping(pod.get("metadata"))))
    return [rows[name] for name in sorted(rows)]


async def _list(
    transport: AsyncTransport, path: str, query: Mapping[str, str], unread: list[str]
) -> list[Mapping[str, Any]] | None:
    try:
        return items_of(await transport.request("GET", path, query=query))
    except NotAllowed as error:
        unread.append(_sentence(error))
        return None


def _sentence(error: ClientError) -> str:
    said = str(error)
    return said if said.endswith(".") else f"{said}."


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in mappings(status.get("conditions")))


def _gpus(status: Mapping[str, Any]) -> int:
    """Returns how many accelerators jobs may ask for there."""
    found = mapping(status.get("allocatable")).items()
    return sum(decimal(text(count), MAX_INDEX) or 0 for name, count in found if text(name).endswith("/gpu"))


def _pod(metadata: Mapping[str, Any]) -> dict[str, Any]:
    labels = mapping(metadata.get("labels"))
    return {
        "namespace": text(metadata.get("namespace"), 253),
        "job": text(labels.get(JOB_NAME_LABEL), 253),
        "worker": decimal(labels.get(POD_INDEX_LABEL), MAX_INDEX),
    }
