"""admissionregistration.k8s.io/v1: ValidatingAdmissionPolicy and its binding.

They are stored here and enforced by `apiserver.writing.admission_policies`, which validates them.
"""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.apiserver.writing.admission_policies import GROUP, binding_problems, problems

Json = dict[str, Any]

_PACKAGE = "io.k8s.api.admissionregistration.v1"


def _default_policy(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    constraints = spec.get("matchConstraints")
    if constraints is None:
        return
    for name in ("namespaceSelector", "objectSelector"):
        constraints.setdefault(name, {})
    constraints.setdefault("matchPolicy", "Equivalent")
    for kind in ("resourceRules", "excludeResourceRules"):
        for rule in constraints.get(kind) or ():
            rule.setdefault("scope", "*")


VALIDATING_ADMISSION_POLICY = ResourceType(
    group=GROUP,
    version="v1",
    kind="ValidatingAdmissionPolicy",
    plural="validatingadmissionpolicies",
    singular="validatingadmissionpolicy",
    namespaced=False,
    categories=("api-extensions",),
    schema=definition(f"{_PACKAGE}.ValidatingAdmissionPolicy"),
    zero={"metadata": {}, "spec": {}, "status": {}},
    has_status=True,
    default=_default_policy,
    prepare_create=lambda obj: obj.update(status={}),
    validate_create=problems,
    validate_update=lambda new, old: problems(new),
    tracks_generation=True,
)

VALIDATING_ADMISSION_POLICY_BINDING = ResourceType(
    group=GROUP,
    version="v1",
    kind="ValidatingAdmissionPolicyBinding",
    plural="validatingadmissionpolicybindings",
    singular="validatingadmissionpolicybinding",
    namespaced=False,
    categories=("api-extensions",),
    schema=definition(f"{_PACKAGE}.ValidatingAdmissionPolicyBinding"),
    zero={"metadata": {}, "spec": {}},
    default=lambda obj: obj.setdefault("spec", {}),
    validate_create=binding_problems,
    validate_update=lambda new, old: binding_problems(new),
)

ADMISSION_TYPES = (VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING)
