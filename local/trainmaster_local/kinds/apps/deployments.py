"""apps/v1: Deployment and ReplicaSet.

Defaults and rules are those of kubernetes `pkg/apis/apps/v1/defaults.go` and `pkg/apis/apps/validation/validation.go`.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, FieldError
from trainmaster_local.apiserver.resources import Column, ResourceType, ScalePaths
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.apps.templates import (
    TEMPLATE_ZERO,
    drop_zero_seconds,
    fixed_selector,
    selector_of,
    settle_counts,
    template_cells,
    template_columns,
    workload_errors,
)
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.pods.defaults import default_pod_template

Json = dict[str, Any]

_DEPLOYMENT_SPEC, _DEPLOYMENT_STATUS = "io.k8s.api.apps.v1.DeploymentSpec", "io.k8s.api.apps.v1.DeploymentStatus"
_REPLICA_SPEC, _REPLICA_STATUS = "io.k8s.api.apps.v1.ReplicaSetSpec", "io.k8s.api.apps.v1.ReplicaSetStatus"


def _number_or_percent(value: Any, replicas: int) -> int:
    """Returns the number for an int-or-percent, rounded down."""
    return int(value[:-1]) * replicas // 100 if isinstance(value, str) else int(value)


def _default_deployment(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="Deployment", version="v1")
    settle_counts(obj, ())


def _deployment_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors = workload_errors(obj, "deployment")
    strategy = spec["strategy"]
    if strategy["type"] == "Recreate":
        errors.append(FieldError.forbidden("spec.strategy.type", NOT_HERE))
    elif strategy["type"] == "RollingUpdate":
        rolling = strategy["rollingUpdate"]
        if not any(_number_or_percent(rolling[name], 100) for name in ("maxUnavailable", "maxSurge")):
            here, detail = "spec.strategy.rollingUpdate.maxUnavailable", "may not be 0 when `maxSurge` is 0"
            errors.append(FieldError.invalid(here, rolling["maxUnavailable"], detail))
    else:
        errors.append(FieldError.not_supported("spec.strategy.type", strategy["type"], ("Recreate", "RollingUpdate")))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        detail = "must be greater than minReadySeconds"
        errors.append(FieldError.invalid("spec.progressDeadlineSeconds", deadline, detail))
    return errors


def _deployment_update_errors(new: Json, old: Json) -> list[FieldError]:
    return _deployment_errors(new) + fixed_selector(new, old)


def _clear_status(obj: Json) -> None:
    obj["status"] = {}


def _deployment_row(obj: Json, now: float) -> list[Any]:
    status = obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{obj['spec']['replicas']}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        created(obj, now),
        *template_cells(obj),
        selector_of(obj),
    ]


DEPLOYMENT = ResourceType(
    group="apps",
    version="v1",
    kind="Deployment",
    plural="deployments",
    singular="deployment",
    namespaced=True,
    short_names=("deploy",),
    categories=("all",),
    schema=definition("io.k8s.api.apps.v1.Deployment"),
    zero={
        "metadata": {},
        "spec": {"selector": None, "template": TEMPLATE_ZERO, "strategy": {}},
        "status": {},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=selector_of,
    default=_default_deployment,
    prepare_create=_clear_status,
    validate_create=_deployment_errors,
    validate_update=_deployment_update_errors,
    columns=(
        NAME,
        Column("Ready", description="Number of the pod with ready state"),
        Column("Up-to-date", description=description(_DEPLOYMENT_STATUS, "updatedReplicas")),
        Column("Available", description=description(_DEPLOYMENT_STATUS, "availableReplicas")),
        AGE,
        *template_columns(),
        Column("Selector", description=description(_DEPLOYMENT_SPEC, "selector"), priority=1),
    ),
    row=_deployment_row,
    tracks_generation=True,
)


def _default_replica_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="ReplicaSet", version="v1")
    settle_counts(obj, ("replicas",))


def _replica_set_errors(obj: Json) -> list[FieldError]:
    return workload_errors(obj, "replicaset")


def _replica_set_update_errors(new: Json, old: Json) -> list[FieldError]:
    return _replica_set_errors(new) + fixed_selector(new, old)


def _prepare_replica_set(obj: Json) -> None:
    obj["status"] = {"replicas": 0}


def _replica_set_row(obj: Json, now: float) -> list[Any]:
    status = obj.get("status") or {}
    return [
        obj["metadata"]["name"],
        obj["spec"]["replicas"],
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        created(obj, now),
        *template_cells(obj),
        selector_of(obj),
    ]


REPLICA_SET = ResourceType(
    group="apps",
    version="v1",
    kind="ReplicaSet",
    plural="replicasets",
    singular="replicaset",
    namespaced=True,
    short_names=("rs",),
    categories=("all",),
    schema=definition("io.k8s.api.apps.v1.ReplicaSet"),
    zero={
        "metadata": {},
        "spec": {"selector": None, "template": TEMPLATE_ZERO},
        "status": {"replicas": 0},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=selector_of,
    default=_default_replica_set,
    prepare_create=_prepare_replica_set,
    validate_create=_replica_set_errors,
    validate_update=_replica_set_update_errors,
    columns=(
        NAME,
        Column("Desired", "integer", description=description(_REPLICA_SPEC, "replicas")),
        Column("Current", "integer", description=description(_REPLICA_STATUS, "replicas")),
        Column("Ready", "integer", description=description(_REPLICA_STATUS, "readyReplicas")),
        AGE,
        *template_columns(),
        Column("Selector", description=description(_REPLICA_SPEC, "selector"), priority=1),
    ),
    row=_replica_set_row,
    tracks_generation=True,
)
