"""From Kueue's Workload to its frozen view: pure, tolerant of what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.reconciling.snapshot import PodSetAdmission, WorkloadView

Raw = Mapping[str, Any]
MAX_MESSAGE = 1_000


def workload_view(raw: Raw) -> WorkloadView:
    """github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2/workload_types.go."""
    spec: Raw = raw.get("spec") or {}
    status: Raw = raw.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    evicted: Raw = conditions.get("Evicted") or {}
    reserved: Raw = conditions.get("QuotaReserved") or {}
    ready: Raw = conditions.get("PodsReady") or {}
    is_evicted = evicted.get("status") == "True"
    checks = status.get("admissionChecks") or ()
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    return WorkloadView(
        counts=tuple(
            (str(item.get("name") or "main"), int(item.get("count", 1))) for item in spec.get("podSets") or ()
        ),
        active=spec.get("active") is not False,
        reserved=reserved.get("status") == "True",
        admitted=(conditions.get("Admitted") or {}).get("status") == "True",
        evicted=str(evicted.get("reason") or "Evicted") if is_evicted else "",
        message=str((evicted if is_evicted else reserved).get("message") or "")[:MAX_MESSAGE],
        finished=(conditions.get("Finished") or {}).get("status") == "True",
        pods_ready=ready.get("status") == "True" if ready else None,
        pod_sets=tuple(_admitted(item, checks) for item in assigned),
    )


def _admitted(raw: Raw, checks: Iterable[Raw]) -> PodSetAdmission:
    name = str(raw.get("name") or "main")
    updates = [update for check in checks for update in check.get("podSetUpdates") or () if update.get("name") == name]
    count = raw.get("count")
    return PodSetAdmission(
        name=name,
        count=int(count) if count is not None else None,
        flavors=tuple(sorted({str(flavor) for flavor in (raw.get("flavors") or {}).values()})),
        node_selector=_pairs(updates, "nodeSelector"),
        tolerations=tuple(toleration for update in updates for toleration in update.get("tolerations") or ()),
        labels=_pairs(updates, "labels"),
        annotations=_pairs(updates, "annotations"),
    )


def _pairs(updates: Iterable[Raw], field: str) -> tuple[tuple[str, str], ...]:
    merged = {key: value for update in updates for key, value in (update.get(field) or {}).items()}
    return tuple(sorted(merged.items()))
