"""apps/v1: StatefulSet, and the ControllerRevisions that store its templates.

Defaults and rules are those of kubernetes `pkg/apis/apps/v1/defaults.go` and `pkg/apis/apps/validation/validation.go`.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, FieldError
from trainmaster_local.apiserver.apimachinery.names import dns_label_problems
from trainmaster_local.apiserver.resources import Column, ResourceType, ScalePaths
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.kinds.apps.templates import (
    TEMPLATE_ZERO,
    drop_zero_seconds,
    selector_of,
    settle_counts,
    template_cells,
    template_columns,
    workload_errors,
)
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.meta_validation import IMMUTABLE, not_negative
from trainmaster_local.kinds.pods.defaults import default_pod_template
from trainmaster_local.kinds.pods.warnings import template_warnings

Json = dict[str, Any]

_RETENTION = ("Retain", "Delete")
_MUTABLE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)
_SET_UPDATE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def _default_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for name in ("whenDeleted", "whenScaled"):
        retention[name] = retention.get(name) or "Retain"
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="StatefulSet", version="v1")
    settle_counts(obj, ("replicas", "availableReplicas"))


def _set_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
    if spec.get("volumeClaimTemplates"):
        errors.append(FieldError.forbidden("spec.volumeClaimTemplates", NOT_HERE))
    if spec["podManagementPolicy"] not in ("OrderedReady", "Parallel"):
        detail = "must be 'OrderedReady' or 'Parallel'"
        errors.append(FieldError.invalid("spec.podManagementPolicy", spec["podManagementPolicy"], detail))
    strategy = spec["updateStrategy"]
    if strategy["type"] == "OnDelete":
        if "rollingUpdate" in strategy:
            detail = "only allowed for updateStrategy 'RollingUpdate'"
            errors.append(FieldError.invalid("spec.updateStrategy.rollingUpdate", strategy["rollingUpdate"], detail))
    elif strategy["type"] == "RollingUpdate":
        errors += not_negative(strategy["rollingUpdate"], "partition", "spec.updateStrategy.rollingUpdate")
    else:
        detail = "must be 'RollingUpdate' or 'OnDelete'"
        errors.append(FieldError.invalid("spec.updateStrategy", strategy, detail))
    retention = spec["persistentVolumeClaimRetentionPolicy"]
    for name in ("whenScaled", "whenDeleted"):
        if retention[name] not in _RETENTION:
            here = f"spec.persistentVolumeClaimRetentionPolicy.{name}"
            errors.append(FieldError.not_supported(here, retention[name], _RETENTION))
    errors += not_negative(spec.get("ordinals") or {}, "start", "spec.ordinals")
    return errors + workload_errors(obj, "statefulset")


def _set_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors = _set_errors(new)
    kept_new, kept_old = ({k: v for k, v in o["spec"].items() if k not in _MUTABLE} for o in (new, old))
    if kept_new != kept_old:
        errors.append(FieldError.forbidden("spec", _SET_UPDATE))
    return errors


def _prepare_set(obj: Json) -> None:
    obj["status"] = {"replicas": 0, "availableReplicas": 0}


def _set_row(obj: Json, now: float) -> list[Any]:
    ready = (obj.get("status") or {}).get("readyReplicas", 0)
    return [
        obj["metadata"]["name"],
        f"{ready}/{obj['spec']['replicas']}",
        created(obj, now),
        *template_cells(obj),
    ]


STATEFUL_SET = ResourceType(
    group="apps",
    version="v1",
    kind="StatefulSet",
    plural="statefulsets",
    singular="statefulset",
    namespaced=True,
    short_names=("sts",),
    categories=("all",),
    schema=definition("io.k8s.api.apps.v1.StatefulSet"),
    zero={
        "metadata": {},
        "spec": {"selector": None, "template": TEMPLATE_ZERO, "serviceName": "", "updateStrategy": {}},
        "status": {"replicas": 0, "availableReplicas": 0},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=selector_of,
    default=_default_set,
    prepare_create=_prepare_set,
    validate_create=_set_errors,
    validate_update=_set_update_errors,
    warnings=template_warnings,
    name_rule=dns_label_problems,
    columns=(NAME, Column("Ready", description="Number of the pod with ready state"), AGE, *template_columns()),
    row=_set_row,
    tracks_generation=True,
)


def _revision_update_errors(new: Json, old: Json) -> list[FieldError]:
    if new.get("data") != old.get("data"):
        return [FieldError.invalid("data", new.get("data"), IMMUTABLE)]
    return not_negative(new, "revision", "")


CONTROLLER_REVISION = ResourceType(
    group="apps",
    version="v1",
    kind="ControllerRevision",
    plural="controllerrevisions",
    singular="controllerrevision",
    namespaced=True,
    schema=definition("io.k8s.api.apps.v1.ControllerRevision"),
    zero={"metadata": {}, "revision": 0},
    validate_update=_revision_update_errors,
)
