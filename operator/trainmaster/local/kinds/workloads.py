"""apps/v1: StatefulSet, Deployment, ReplicaSet and ControllerRevision.

Defaults and rules are those of kubernetes `pkg/apis/apps/v1/defaults.go` and `pkg/apis/apps/validation/validation.go`.
"""

from __future__ import annotations

from typing import Any

from trainmaster.local.apiserver.errors import FieldError
from trainmaster.local.apiserver.resources import Column, Object, ResourceType, ScalePaths
from trainmaster.local.kinds.claims import default_claim
from trainmaster.local.kinds.columns import AGE, NAME, created, joined
from trainmaster.local.kinds.meta_validation import (
    IMMUTABLE,
    is_empty_selector,
    label_selector_errors,
    not_negative,
    selector_string,
    selects,
)
from trainmaster.local.kinds.pod_defaults import default_pod_template
from trainmaster.local.kinds.pod_validation import template_errors
from trainmaster.local.kinds.schemas import definition, description

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
_TEMPLATE_ZERO: Json = {"metadata": {}, "spec": {"containers": None}}


def _number_or_percent(value: Any, replicas: int) -> int:
    """The number that an int-or-percent stands for, rounded down."""
    return int(value[:-1]) * replicas // 100 if isinstance(value, str) else int(value)


def _workload_errors(obj: Json, kind: str) -> list[FieldError]:
    """What the three have in common: numbers, the selector, the template and its restart policy."""
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
    if selector is not None and not errors and not selects(selector, labels):
        detail = "`selector` does not match template `labels`"
        errors.append(FieldError.invalid("spec.template.metadata.labels", labels, detail))
    errors += template_errors(_with_claims(template, spec), "spec.template")
    policy = template["spec"]["restartPolicy"]
    if policy != "Always":
        errors = [error for error in errors if error.field != "spec.template.spec.restartPolicy"]
        errors.append(FieldError.not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if "activeDeadlineSeconds" in template["spec"]:
        named = {"statefulset": "StatefulSet", "deployment": "Deployment", "replicaset": "ReplicaSet"}[kind]
        detail = f"activeDeadlineSeconds in {named} is not Supported"
        errors.append(FieldError.forbidden("spec.template.spec.activeDeadlineSeconds", detail))
    return errors


def _with_claims(template: Json, spec: Json) -> Json:
    """The template as its pods will be: with a volume for each of the set's claim templates."""
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or []]
    if not claims:
        return template
    own = [volume for volume in template["spec"].get("volumes") or [] if volume.get("name") not in claims]
    made = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {**template, "spec": {**template["spec"], "volumes": [*own, *made]}}


def _selector_of(obj: Object) -> str:
    return selector_string(obj["spec"].get("selector"))


def _template_cells(obj: Json) -> list[str]:
    containers = obj["spec"]["template"]["spec"].get("containers") or []
    return [joined([c["name"] for c in containers]), joined([c.get("image", "") for c in containers])]


def _template_columns() -> tuple[Column, Column]:
    return (
        Column("Containers", description="Names of each container in the template.", priority=1),
        Column("Images", description="Images referenced by each container in the template.", priority=1),
    )


# StatefulSet


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
    for claim in spec.get("volumeClaimTemplates") or []:
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("kind", "PersistentVolumeClaim")
        default_claim(claim, kind="StatefulSet", version="v1")
    _drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="StatefulSet", version="v1")
    _settle_counts(obj, ("replicas", "availableReplicas"))


def _drop_zero_seconds(spec: Json) -> None:
    """Fields without a pointer in Go: their zero is never written."""
    if spec.get("minReadySeconds") == 0:
        del spec["minReadySeconds"]
    if spec.get("paused") is False:
        del spec["paused"]


def _settle_counts(obj: Json, always: tuple[str, ...]) -> None:
    """Counts that Go always writes are there even when zero; the others are left out when zero."""
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


def _set_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
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
    return errors + _workload_errors(obj, "statefulset")


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
        *_template_cells(obj),
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
        "spec": {"selector": None, "template": _TEMPLATE_ZERO, "serviceName": "", "updateStrategy": {}},
        "status": {"replicas": 0, "availableReplicas": 0},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=_selector_of,
    default=_default_set,
    prepare_create=_prepare_set,
    validate_create=_set_errors,
    validate_update=_set_update_errors,
    columns=(NAME, Column("Ready", description="Number of the pod with ready state"), AGE, *_template_columns()),
    row=_set_row,
    tracks_generation=True,
)


# Deployment


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
    _drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="Deployment", version="v1")
    _settle_counts(obj, ())


def _deployment_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors = _workload_errors(obj, "deployment")
    strategy = spec["strategy"]
    if strategy["type"] == "Recreate":
        if "rollingUpdate" in strategy:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(FieldError.forbidden("spec.strategy.rollingUpdate", detail))
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


def _fixed_selector(new: Json, old: Json) -> list[FieldError]:
    if new["spec"].get("selector") != old["spec"].get("selector"):
        return [FieldError.invalid("spec.selector", new["spec"].get("selector"), IMMUTABLE)]
    return []


def _deployment_update_errors(new: Json, old: Json) -> list[FieldError]:
    return _deployment_errors(new) + _fixed_selector(new, old)


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
        *_template_cells(obj),
        _selector_of(obj),
    ]


_DEPLOYMENT_SPEC, _DEPLOYMENT_STATUS = "io.k8s.api.apps.v1.DeploymentSpec", "io.k8s.api.apps.v1.DeploymentStatus"

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
        "spec": {"selector": None, "template": _TEMPLATE_ZERO, "strategy": {}},
        "status": {},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=_selector_of,
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
        *_template_columns(),
        Column("Selector", description=description(_DEPLOYMENT_SPEC, "selector"), priority=1),
    ),
    row=_deployment_row,
    tracks_generation=True,
)


# ReplicaSet


def _default_replica_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _drop_zero_seconds(spec)
    default_pod_template(spec.setdefault("template", {}), kind="ReplicaSet", version="v1")
    _settle_counts(obj, ("replicas",))


def _replica_set_errors(obj: Json) -> list[FieldError]:
    return _workload_errors(obj, "replicaset")


def _replica_set_update_errors(new: Json, old: Json) -> list[FieldError]:
    return _replica_set_errors(new) + _fixed_selector(new, old)


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
        *_template_cells(obj),
        _selector_of(obj),
    ]


_REPLICA_SPEC, _REPLICA_STATUS = "io.k8s.api.apps.v1.ReplicaSetSpec", "io.k8s.api.apps.v1.ReplicaSetStatus"

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
        "spec": {"selector": None, "template": _TEMPLATE_ZERO},
        "status": {"replicas": 0},
    },
    has_status=True,
    scale=ScalePaths(),
    scale_selector=_selector_of,
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
        *_template_columns(),
        Column("Selector", description=description(_REPLICA_SPEC, "selector"), priority=1),
    ),
    row=_replica_set_row,
    tracks_generation=True,
)


# ControllerRevision


def _revision_update_errors(new: Json, old: Json) -> list[FieldError]:
    if new.get("data") != old.get("data"):
        return [FieldError.invalid("data", new.get("data"), IMMUTABLE)]
    return not_negative(new, "revision", "")


def _revision_row(obj: Json, now: float) -> list[Any]:
    owner = next((o for o in obj["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
    controller = "<none>"
    if owner:
        group = owner["apiVersion"].partition("/")[0] if "/" in owner["apiVersion"] else ""
        controller = f"{owner['kind'].lower()}{'.' + group if group else ''}/{owner['name']}"
    return [obj["metadata"]["name"], controller, obj.get("revision", 0), created(obj, now)]


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
    columns=(
        NAME,
        Column("Controller", description="Controller of the object"),
        Column(
            "Revision",
            description=description("io.k8s.api.apps.v1.ControllerRevision", "revision"),
        ),
        AGE,
    ),
    row=_revision_row,
)

WORKLOAD_TYPES = (STATEFUL_SET, DEPLOYMENT, REPLICA_SET, CONTROLLER_REVISION)
