"""Kueue's Workload becomes its frozen view; pure, and total (`wire.values`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster_operator.reconciling.observed.snapshot import PodSetAdmission, WorkloadView
from trainmaster_operator.wire.values import mapping, mappings, text, whole

Raw = Mapping[str, Any]
# Of the message of a scheduler, a kubelet or Kueue: enough for a person, bounded in memory and status.
MAX_MESSAGE = 1_000
MAX_COUNT = 2**31


def conditions_by_type(status: Raw) -> dict[str, Raw]:
    """Returns the conditions of any Kubernetes object's status, by type."""
    return {text(item.get("type")): item for item in mappings(status.get("conditions"))}


def string_pairs(value: object) -> tuple[tuple[str, str], ...]:
    """Returns labels, annotations or a node selector in the order of their keys."""
    pairs = ((text(key), text(item, None)) for key, item in mapping(value).items() if isinstance(item, str))
    return tuple(sorted(pairs))


def workload_view(raw: Raw) -> WorkloadView:
    """Returns a Workload (github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2/workload_types.go)."""
    spec, status = mapping(raw.get("spec")), mapping(raw.get("status"))
    conditions = conditions_by_type(status)
    evicted, reserved, ready, admitted, finished = (
        mapping(conditions.get(kind)) for kind in ("Evicted", "QuotaReserved", "PodsReady", "Admitted", "Finished")
    )
    is_evicted = evicted.get("status") == "True"
    checks = mappings(status.get("admissionChecks"))
    assigned = mappings(mapping(status.get("admission")).get("podSetAssignments"))
    return WorkloadView(
        counts=tuple((text(item.get("name")) or "main", _count(item, 1)) for item in mappings(spec.get("podSets"))),
        active=spec.get("active") is not False,
        reserved=reserved.get("status") == "True",
        admitted=admitted.get("status") == "True",
        evicted=text(evicted.get("reason")) or "Evicted" if is_evicted else "",
        message=text((evicted if is_evicted else reserved).get("message"), MAX_MESSAGE),
        finished=finished.get("status") == "True",
        pods_ready=ready.get("status") == "True" if ready else None,
        pod_sets=tuple(_admitted(item, checks) for item in assigned),
    )


def _admitted(raw: Raw, checks: Iterable[Raw]) -> PodSetAdmission:
    name = text(raw.get("name")) or "main"
    updates = [
        update
        for check in checks
        for update in mappings(check.get("podSetUpdates"))
        if text(update.get("name")) == name
    ]
    return PodSetAdmission(
        name=name,
        count=whole(raw.get("count"), MAX_COUNT),
        flavors=tuple(sorted({text(flavor) for flavor in mapping(raw.get("flavors")).values()} - {""})),
        node_selector=_merged(updates, "nodeSelector"),
        tolerations=tuple(one for update in updates for one in mappings(update.get("tolerations"))),
        labels=_merged(updates, "labels"),
        annotations=_merged(updates, "annotations"),
    )


def _count(raw: Raw, default: int) -> int:
    count = whole(raw.get("count"), MAX_COUNT)
    return default if count is None else count


def _merged(updates: Iterable[Raw], field: str) -> tuple[tuple[str, str], ...]:
    return string_pairs({key: value for update in updates for key, value in mapping(update.get(field)).items()})
