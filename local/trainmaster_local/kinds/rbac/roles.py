"""rbac.authorization.k8s.io/v1: Role, ClusterRole, RoleBinding, ClusterRoleBinding (kubernetes `pkg/apis/rbac`).

They are stored here and read by `trainmaster_local.auth`. Escalation isn't checked, so a user may grant rights that it
doesn't have itself.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import path_segment_problems
from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.apiserver.schema.official import definition

Json = dict[str, Any]

GROUP = "rbac.authorization.k8s.io"
_PACKAGE = "io.k8s.api.rbac.v1"


def _rule_errors(rules: list[Json], *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, rule in enumerate(rules):
        here = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.append(FieldError.required(f"{here}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            if namespaced:
                detail = "namespaced rules cannot apply to non-resource URLs"
                errors.append(FieldError.invalid(f"{here}.nonResourceURLs", rule["nonResourceURLs"], detail))
            if any(rule.get(name) for name in ("apiGroups", "resources", "resourceNames")):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                errors.append(FieldError.invalid(f"{here}.nonResourceURLs", rule["nonResourceURLs"], detail))
            continue
        if not rule.get("apiGroups"):
            detail = "resource rules must supply at least one api group"
            errors.append(FieldError.required(f"{here}.apiGroups", detail))
        if not rule.get("resources"):
            detail = "resource rules must supply at least one resource"
            errors.append(FieldError.required(f"{here}.resources", detail))
    return errors


def _default_role(obj: Json) -> None:
    obj.setdefault("rules", None)


def _default_binding(obj: Json) -> None:
    reference = obj.setdefault("roleRef", {})
    reference["apiGroup"] = reference.get("apiGroup") or GROUP
    for subject in obj.get("subjects") or []:
        if not subject.get("apiGroup"):
            if subject.get("kind") in ("User", "Group"):
                subject["apiGroup"] = GROUP
            else:
                subject.pop("apiGroup", None)


def _binding_errors(obj: Json, kinds: tuple[str, ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    reference = obj["roleRef"]
    if reference["apiGroup"] != GROUP:
        errors.append(FieldError.not_supported("roleRef.apiGroup", reference["apiGroup"], (GROUP,)))
    if reference.get("kind") not in kinds:
        errors.append(FieldError.not_supported("roleRef.kind", reference.get("kind", ""), kinds))
    if not reference.get("name"):
        errors.append(FieldError.required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or []):
        here, kind = f"subjects[{index}]", subject.get("kind", "")
        if not subject.get("name"):
            errors.append(FieldError.required(f"{here}.name"))
        if kind == "ServiceAccount":
            if not subject.get("namespace"):
                errors.append(FieldError.required(f"{here}.namespace"))
        elif kind not in ("User", "Group"):
            errors.append(FieldError.not_supported(f"{here}.kind", kind, ("Group", "ServiceAccount", "User")))
    return errors


def _binding_update_errors(new: Json, old: Json, kinds: tuple[str, ...]) -> list[FieldError]:
    errors = _binding_errors(new, kinds)
    if new["roleRef"] != old["roleRef"]:
        errors.append(FieldError.invalid("roleRef", new["roleRef"], "cannot change roleRef"))
    return errors


def _role(kind: str, *, namespaced: bool) -> ResourceType:
    return ResourceType(
        group=GROUP,
        version="v1",
        kind=kind,
        plural=f"{kind.lower()}s",
        singular=kind.lower(),
        namespaced=namespaced,
        schema=definition(f"{_PACKAGE}.{kind}"),
        zero={"metadata": {}, "rules": None},
        default=_default_role,
        validate_create=lambda obj: _rule_errors(obj.get("rules") or [], namespaced=namespaced),
        validate_update=lambda new, old: _rule_errors(new.get("rules") or [], namespaced=namespaced),
        name_rule=path_segment_problems,
    )


def _binding(kind: str, *, namespaced: bool) -> ResourceType:
    kinds = ("ClusterRole", "Role") if namespaced else ("ClusterRole",)
    return ResourceType(
        group=GROUP,
        version="v1",
        kind=kind,
        plural=f"{kind.lower()}s",
        singular=kind.lower(),
        namespaced=namespaced,
        schema=definition(f"{_PACKAGE}.{kind}"),
        zero={"metadata": {}, "roleRef": {"apiGroup": "", "kind": "", "name": ""}},
        default=_default_binding,
        validate_create=lambda obj: _binding_errors(obj, kinds),
        validate_update=lambda new, old: _binding_update_errors(new, old, kinds),
        name_rule=path_segment_problems,
    )


ROLE = _role("Role", namespaced=True)
CLUSTER_ROLE = _role("ClusterRole", namespaced=False)
ROLE_BINDING = _binding("RoleBinding", namespaced=True)
CLUSTER_ROLE_BINDING = _binding("ClusterRoleBinding", namespaced=False)

RBAC_TYPES = (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING)
