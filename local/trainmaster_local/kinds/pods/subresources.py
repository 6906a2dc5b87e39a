"""Handles a pod's binding and eviction; the kubelet attaches the subresources that need its node (log, proxy, exec)."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import bad_request, conflict, not_found
from trainmaster_local.apiserver.apimachinery.objectmeta import rfc3339
from trainmaster_local.apiserver.resources import Object, Subresource, SubresourceCall
from trainmaster_local.apiserver.writing.deleter import DeleteOptions
from trainmaster_local.apiserver.writing.writer import copied

Json = dict[str, Any]

_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


async def _bind(call: SubresourceCall) -> Object:
    """Binds the pod to its node, once (`pkg/registry/core/pod/storage`, `setPodHostAndAnnotations`)."""
    target = ((call.body or {}).get("target") or {}).get("name", "")
    if not target:
        raise bad_request("target.name: Required value")
    pod = call.api.peek("pods", call.name, call.namespace)
    if pod is None:
        raise not_found("", "pods", call.name)
    if pod["metadata"].get("deletionTimestamp"):
        problem = f"pod {call.name} is being deleted, cannot be assigned to a host"
        raise conflict("", "pods/binding", call.name, problem)
    if pod["spec"].get("nodeName"):
        raise conflict(
            "", "pods/binding", call.name, f'pod {call.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        )
    if pod["spec"].get("schedulingGates"):
        problem = f"pod {call.name} has non-empty .spec.schedulingGates"
        raise conflict("", "pods/binding", call.name, problem)
    if call.dry_run:
        return dict(_SUCCESS)
    bound = copied(pod)
    bound["spec"]["nodeName"] = target
    annotations = ((call.body or {}).get("metadata") or {}).get("annotations")
    if annotations:
        bound["metadata"].setdefault("annotations", {}).update(annotations)
    conditions = [c for c in bound["status"].get("conditions") or [] if c["type"] != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": rfc3339(call.api.clock()),
    }
    bound["status"]["conditions"] = [*conditions, scheduled]
    call.api.storage.put("pods", call.namespace, call.name, bound)
    return dict(_SUCCESS)


async def _evict(call: SubresourceCall) -> Object:
    """Deletes the pod, with the condition that marks an eviction. The local cluster has no budgets to check."""
    if call.api.peek("pods", call.name, call.namespace) is None:
        raise not_found("", "pods", call.name)
    options = (call.body or {}).get("deleteOptions") or {}
    if not call.dry_run:
        await _set_disruption_target(call)
        grace = options.get("gracePeriodSeconds")
        await call.api.delete("pods", call.name, call.namespace, options=DeleteOptions(grace_period=grace))
    return dict(_SUCCESS)


async def _set_disruption_target(call: SubresourceCall) -> None:
    """Sets the condition that distinguishes an eviction from a deletion (KEP-3329)."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": rfc3339(call.api.clock()),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }

    def mark(pod: Object) -> None:
        status = pod.setdefault("status", {})
        others = [item for item in status.get("conditions") or [] if item["type"] != "DisruptionTarget"]
        status["conditions"] = [*others, condition]

    await call.api.modify("pods", call.name, call.namespace, mark, subresource="status")


POD_SUBRESOURCES = {
    "binding": Subresource("binding", "Binding", version="v1", handle=_bind),
    "eviction": Subresource("eviction", "Eviction", "policy", "v1", handle=_evict),
}
