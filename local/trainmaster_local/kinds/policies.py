"""Restraints: policy/v1 PodDisruptionBudget, and networking.k8s.io/v1 NetworkPolicy of `network_policies`."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.errors import FieldError
from trainmaster_local.apiserver.resources import Column, ResourceType
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.meta_validation import label_selector_errors
from trainmaster_local.kinds.network_policies import NETWORK_POLICY
from trainmaster_local.kinds.schemas import definition, description

Json = dict[str, Any]

_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def _default_budget(obj: Json) -> None:
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    for name in _COUNTS:
        status.setdefault(name, 0)


def _prepare_budget(obj: Json) -> None:
    obj["status"] = dict.fromkeys(_COUNTS, 0)


def _budget_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        detail = "minAvailable and maxUnavailable cannot be both set"
        errors.append(FieldError.invalid("spec", spec, detail))
    for name in ("minAvailable", "maxUnavailable"):
        value = spec.get(name)
        if isinstance(value, int) and value < 0:
            errors.append(FieldError.invalid(f"spec.{name}", value, "must be greater than or equal to 0"))
        elif isinstance(value, str) and not (value.endswith("%") and value[:-1].isdigit()):
            detail = "must be a valid percent value (e.g. '1%' or '93%', regex used for validation is '[0-9]+%')"
            errors.append(FieldError.invalid(f"spec.{name}", value, detail))
    return errors + label_selector_errors(spec.get("selector"), "spec.selector")


_BUDGET = "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"

POD_DISRUPTION_BUDGET = ResourceType(
    group="policy",
    version="v1",
    kind="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    singular="poddisruptionbudget",
    namespaced=True,
    short_names=("pdb",),
    schema=definition("io.k8s.api.policy.v1.PodDisruptionBudget"),
    zero={"metadata": {}, "spec": {}, "status": dict.fromkeys(_COUNTS, 0)},
    has_status=True,
    default=_default_budget,
    prepare_create=_prepare_budget,
    validate_create=_budget_errors,
    validate_update=lambda new, old: _budget_errors(new),
    columns=(
        NAME,
        Column("Min Available", description=description(_BUDGET, "minAvailable")),
        Column("Max Unavailable", description=description(_BUDGET, "maxUnavailable")),
        Column(
            "Allowed Disruptions",
            "integer",
            description="Calculated number of pods that may be disrupted at this time.",
        ),
        AGE,
    ),
    row=lambda obj, now: [
        obj["metadata"]["name"],
        str(obj["spec"].get("minAvailable", "N/A")),
        str(obj["spec"].get("maxUnavailable", "N/A")),
        (obj.get("status") or {}).get("disruptionsAllowed", 0),
        created(obj, now),
    ],
    tracks_generation=True,
)


POLICY_TYPES = (POD_DISRUPTION_BUDGET, NETWORK_POLICY)
