"""The kinds of apps/v1 with a pod template share these defaults, rules and columns.

They follow kubernetes `pkg/apis/apps/v1/defaults.go` and `pkg/apis/apps/validation/validation.go`.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.resources import Column, Object
from trainmaster_local.kinds.columns import joined
from trainmaster_local.kinds.meta_validation import (
    IMMUTABLE,
    is_empty_selector,
    label_selector_errors,
    not_negative,
    selector_string,
    selects,
)
from trainmaster_local.kinds.pods.validation import template_errors, template_metadata_errors

Json = dict[str, Any]

TEMPLATE_ZERO: Json = {"metadata": {}, "spec": {"containers": None}}


def drop_zero_seconds(spec: Json) -> None:
    """Drops fields that are no pointers in Go, because their zero is never written."""
    if spec.get("minReadySeconds") == 0:
        del spec["minReadySeconds"]
    if spec.get("paused") is False:
        del spec["paused"]


def settle_counts(obj: Json, always: tuple[str, ...]) -> None:
    """Writes zeros for the counts that Go always writes, and drops the zeros of others."""
    status = obj.setdefault("status", {})
    counts = (
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "fullyLabeledReplicas",
        "observedGeneration",
    )
    for name in counts:
        if name not in always and status.get(name) == 0:
            del status[name]
    for name in always:
        status.setdefault(name, 0)


def workload_errors(obj: Json, kind: str) -> list[FieldError]:
    """Returns the errors common to all three kinds: numbers, selector, template and its restart policy."""
    spec = obj["spec"]
    errors: list[FieldError] = []
    for name in ("replicas", "minReadySeconds", "revisionHistoryLimit"):
        errors += not_negative(spec, name, "spec")
    selector = spec.get("selector")
    if selector is None:
        errors.append(FieldError.required("spec.selector"))
    else:
        errors += label_selector_errors(selector, "spec.selector")
        if is_empty_selector(selector):
            errors.append(FieldError.invalid("spec.selector", selector, f"empty selector is invalid for {kind}"))
    template = spec["template"]
    labels = template["metadata"].get("labels") or {}
    # A missing selector selects nothing.
    if (not errors and not selects(selector, labels)) or selector is None:
        detail = "`selector` does not match template `labels`"
        errors.append(FieldError.invalid("spec.template.metadata.labels", labels or None, detail))
    errors += template_errors(template, "spec.template")
    if kind == "statefulset":
        # Kubernetes validates them twice there.
        errors += template_metadata_errors(template, "spec.template")
    policy = template["spec"]["restartPolicy"]
    if policy != "Always":
        errors = [error for error in errors if error.field != "spec.template.spec.restartPolicy"]
        errors.append(FieldError.not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if "activeDeadlineSeconds" in template["spec"]:
        named = {"statefulset": "StatefulSet", "deployment": "Deployment", "replicaset": "ReplicaSet"}[kind]
        detail = f"activeDeadlineSeconds in {named} is not Supported"
        errors.append(FieldError.forbidden("spec.template.spec.activeDeadlineSeconds", detail))
    return errors


def fixed_selector(new: Json, old: Json) -> list[FieldError]:
    """Returns an error if the selector of a Deployment or a ReplicaSet changed."""
    if new["spec"].get("selector") != old["spec"].get("selector"):
        return [FieldError.invalid("spec.selector", new["spec"].get("selector"), IMMUTABLE)]
    return []


def selector_of(obj: Object) -> str:
    """Returns the selector in its string form, for the scale subresource and the table."""
    return selector_string(obj["spec"].get("selector"))


def template_cells(obj: Json) -> list[str]:
    """Returns a row's cells for `template_columns`."""
    containers = obj["spec"]["template"]["spec"].get("containers") or []
    return [joined([c["name"] for c in containers]), joined([c.get("image", "") for c in containers])]


def template_columns() -> tuple[Column, Column]:
    """Returns the template's columns in `kubectl get -o wide`."""
    return (
        Column("Containers", description="Names of each container in the template.", priority=1),
        Column("Images", description="Images referenced by each container in the template.", priority=1),
    )
