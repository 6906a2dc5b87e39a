"""The job's side writes into the status of its Workload, as Kueue's own integrations do.

A merge patch of the whole list of conditions, on the version that was read a moment ago: Kueue writes there too, and
a Conflict means that its status is read first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.controller.apiserver.cluster import GANGS, Cluster
from trainmaster_operator.controller.apiserver.errors import NotFound
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.reconciling.decision import ReportWorkload
from trainmaster_operator.wire.values import mapping, mappings

WORKLOADS = GANGS["kueue"]


async def report_workload(cluster: Cluster, store: Store, key: JobKey, action: ReportWorkload, now: float) -> None:
    """Set conditions and, to release it, clear the admission. Raises Conflict when Kueue wrote meanwhile."""
    try:
        live = await cluster.get(WORKLOADS, key.namespace, action.name)
    except NotFound:
        store.remove(WORKLOADS, key, action.name, action.uid)
        return
    metadata, status = mapping(live.get("metadata")), mapping(live.get("status"))
    if metadata.get("uid") != action.uid:
        store.remove(WORKLOADS, key, action.name, action.uid)
        store.upsert(WORKLOADS, live)
        return
    wanted: dict[str, tuple[bool, str, str]] = {
        one.type: (one.status, one.reason, one.message) for one in action.conditions
    }
    patch: dict[str, Any] = {}
    if action.release is not None:
        # QuotaReserved and Admitted go with the admission (pkg/workload, UnsetQuotaReservationWithCondition).
        wanted["QuotaReserved"] = (False, "Pending", action.release)
        wanted["Admitted"] = (False, "NoReservation", "The workload has no reservation")
        patch["admission"] = None
    conditions = list(mappings(status.get("conditions")))
    for kind, (holds, reason, message) in wanted.items():
        conditions = _with(conditions, kind, "True" if holds else "False", reason, message, metadata, now)
    body = {
        "metadata": {"uid": action.uid, "resourceVersion": metadata.get("resourceVersion")},
        "status": {**patch, "conditions": conditions},
    }
    store.upsert(WORKLOADS, await cluster.patch(WORKLOADS, key.namespace, action.name, body, subresource="status"))


def _with(
    conditions: list[Mapping[str, Any]],
    kind: str,
    status: str,
    reason: str,
    message: str,
    metadata: Mapping[str, Any],
    now: float,
) -> list[Mapping[str, Any]]:
    """Returns the conditions with one set: its time moves when its status does."""
    old = next((item for item in conditions if item.get("type") == kind), None)
    moved = old is None or old.get("status") != status
    new = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": to_whole_text(now) if moved or old is None else old.get("lastTransitionTime"),
        "observedGeneration": metadata.get("generation", 1),
    }
    return [new if item is old else item for item in conditions] if old is not None else [*conditions, new]
