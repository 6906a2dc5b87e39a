"""v1 Namespace, and the quotas that limit one."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, forbidden, not_found
from trainmaster_local.apiserver.apimachinery.names import dns_label_problems
from trainmaster_local.apiserver.resources import Column, Object, ResourceType, Subresource, SubresourceCall
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.pods.defaults import canonical_quantities

Json = dict[str, Any]

_KEPT = ("default", "kube-system", "kube-public")
NAME_LABEL = "kubernetes.io/metadata.name"


def _default_namespace(obj: Json) -> None:
    """Sets the label that names the namespace before any write, so selectors can rely on it."""
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})[NAME_LABEL] = name
    obj.setdefault("status", {}).setdefault("phase", "Active")


def _prepare_namespace(obj: Json) -> None:
    obj["status"] = {"phase": "Active"}
    finalizers = (obj.setdefault("spec", {}) or {}).get("finalizers") or []
    obj["spec"]["finalizers"] = finalizers if "kubernetes" in finalizers else [*finalizers, "kubernetes"]


def _keep_state(new: Json, old: Json) -> None:
    new["spec"], new["status"] = old.get("spec", {}), old.get("status", {})


def _held(obj: Json) -> bool:
    return bool((obj.get("spec") or {}).get("finalizers"))


def _begin_deletion(obj: Json) -> None:
    """Raises ApiError 403 for the namespaces that NamespaceLifecycle keeps."""
    name = obj["metadata"]["name"]
    if name in _KEPT:
        raise forbidden("", "namespaces", name, "this namespace may not be deleted")
    obj.setdefault("status", {})["phase"] = "Terminating"


async def _finalize(call: SubresourceCall) -> Object:
    """Replaces spec.finalizers; without any, a namespace that is being deleted is removed. Raises ApiError 404."""
    found = call.api.peek("namespaces", call.name)
    if found is None:
        raise not_found("", "namespaces", call.name)
    finalizers = ((call.body or {}).get("spec") or {}).get("finalizers") or []
    obj = {**found, "metadata": dict(found["metadata"]), "spec": {"finalizers": finalizers} if finalizers else {}}
    if call.dry_run:
        return obj
    if obj["metadata"].get("deletionTimestamp") and not finalizers and not obj["metadata"].get("finalizers"):
        call.api.storage.remove("namespaces", "", call.name, last=obj)
        return obj
    return call.api.storage.put("namespaces", "", call.name, obj).object


NAMESPACE = ResourceType(
    group="",
    version="v1",
    kind="Namespace",
    plural="namespaces",
    singular="namespace",
    namespaced=False,
    short_names=("ns",),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    schema=definition("io.k8s.api.core.v1.Namespace"),
    zero={"metadata": {}, "spec": {}, "status": {}},
    has_status=True,
    subresources={"finalize": Subresource("finalize", "Namespace", verbs=("update",), handle=_finalize)},
    default=_default_namespace,
    prepare_create=_prepare_namespace,
    prepare_update=_keep_state,
    name_rule=dns_label_problems,
    columns=(NAME, Column("Status", description="The status of the namespace"), AGE),
    row=lambda obj, now: [obj["metadata"]["name"], (obj.get("status") or {}).get("phase", ""), created(obj, now)],
    selectable=("status.phase",),
    holds_deletion=_held,
    begin_deletion=_begin_deletion,
    answers_deleted_object=True,
)


def _default_quota(obj: Json) -> None:
    canonical_quantities(obj.setdefault("spec", {}).get("hard"), "ResourceQuota", "v1")
    for name in ("hard", "used"):
        canonical_quantities(obj.setdefault("status", {}).get(name), "ResourceQuota", "v1")


def _prepare_quota(obj: Json) -> None:
    obj["status"] = {}


def _quota_errors(obj: Json) -> list[FieldError]:
    return [
        FieldError.invalid(f"spec.hard[{name}]", value, "must be greater than or equal to 0")
        for name, value in sorted((obj["spec"].get("hard") or {}).items())
        if str(value).startswith("-")
    ]


RESOURCE_QUOTA = ResourceType(
    group="",
    version="v1",
    kind="ResourceQuota",
    plural="resourcequotas",
    singular="resourcequota",
    namespaced=True,
    short_names=("quota",),
    schema=definition("io.k8s.api.core.v1.ResourceQuota"),
    zero={"metadata": {}, "spec": {}, "status": {}},
    has_status=True,
    default=_default_quota,
    prepare_create=_prepare_quota,
    validate_create=_quota_errors,
    validate_update=lambda new, old: _quota_errors(new),
    answers_deleted_object=True,
)

NAMESPACE_TYPES = (NAMESPACE, RESOURCE_QUOTA)
