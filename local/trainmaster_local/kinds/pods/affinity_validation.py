"""Validates affinities and topology spread as in kubernetes `pkg/apis/core/validation/validation.go`."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import qualified_name_problems
from trainmaster_local.kinds.meta_validation import invalid_all, label_selector_errors, selector_requirement_errors

Json = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def affinity_errors(affinity: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    node = affinity.get("nodeAffinity") or {}
    here = f"{field}.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if node.get(_REQUIRED) is not None and not terms:
        errors.append(FieldError.required(here, "must have at least one node selector term"))
    for index, term in enumerate(terms):
        errors += _node_term_errors(term, f"{here}[{index}]")
    for index, preferred in enumerate(node.get(_PREFERRED) or []):
        here = f"{field}.nodeAffinity.{_PREFERRED}[{index}]"
        errors += _weight_errors(preferred, here)
        errors += _node_term_errors(preferred.get("preference") or {}, f"{here}.preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(kind) or {}
        for index, term in enumerate(pods.get(_REQUIRED) or []):
            errors += _pod_term_errors(term, f"{field}.{kind}.{_REQUIRED}[{index}]")
        for index, preferred in enumerate(pods.get(_PREFERRED) or []):
            here = f"{field}.{kind}.{_PREFERRED}[{index}]"
            errors += _weight_errors(preferred, here)
            errors += _pod_term_errors(preferred.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    return errors


def _weight_errors(preferred: Json, field: str) -> list[FieldError]:
    weight = preferred.get("weight", 0)
    if 1 <= weight <= 100:
        return []
    return [FieldError.invalid(f"{field}.weight", weight, "must be in the range 1-100")]


def _pod_term_errors(term: Json, field: str) -> list[FieldError]:
    errors = label_selector_errors(term.get("labelSelector"), f"{field}.labelSelector")
    key = term.get("topologyKey", "")
    if not key:
        errors.append(FieldError.required(f"{field}.topologyKey", "can not be empty"))
    return errors + invalid_all(f"{field}.topologyKey", key, qualified_name_problems(key))


def _node_term_errors(term: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, requirement in enumerate(term.get("matchExpressions") or []):
        errors += _requirement_errors(requirement, f"{field}.matchExpressions[{index}]")
    return errors


def _requirement_errors(requirement: Json, field: str) -> list[FieldError]:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    if operator in ("Gt", "Lt"):
        key = requirement.get("key", "")
        errors = invalid_all(f"{field}.key", key, qualified_name_problems(key))
        if len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.insert(0, FieldError.required(f"{field}.values", detail))
        return errors
    return selector_requirement_errors(requirement, field)


def spread_errors(constraints: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, constraint in enumerate(constraints):
        here = f"{field}[{index}]"
        skew = constraint.get("maxSkew", 0)
        if skew <= 0:
            errors.append(FieldError.invalid(f"{here}.maxSkew", skew, "must be greater than zero"))
        if not constraint.get("topologyKey"):
            errors.append(FieldError.required(f"{here}.topologyKey", "can not be empty"))
        action = constraint.get("whenUnsatisfiable", "")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            supported = ("DoNotSchedule", "ScheduleAnyway")
            errors.append(FieldError.not_supported(f"{here}.whenUnsatisfiable", action, supported))
        errors += label_selector_errors(constraint.get("labelSelector"), f"{here}.labelSelector")
    return errors
