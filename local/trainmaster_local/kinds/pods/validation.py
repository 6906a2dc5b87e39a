"""Pods and pod templates are validated as in kubernetes `pkg/apis/core/validation/validation.go`."""

from __future__ import annotations

import copy
import difflib
import json
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import (
    dns_label_problems,
    dns_subdomain_problems,
    qualified_name_problems,
)
from trainmaster_local.apiserver.apimachinery.objectmeta import annotation_errors, label_errors
from trainmaster_local.kinds.meta_validation import (
    NOT_NEGATIVE,
    invalid_all,
    label_selector_errors,
    selector_requirement_errors,
)
from trainmaster_local.kinds.pods.container_validation import container_list_errors
from trainmaster_local.kinds.pods.defaults import containers_of
from trainmaster_local.kinds.pods.volume_validation import volume_errors

Json = dict[str, Any]

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SECONDS_RANGE = "must be between 1 and 2147483647, inclusive"

POD_UPDATE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_errors(pod: Json) -> list[FieldError]:
    """Validates a new pod; its metadata is checked by the API."""
    errors = pod_spec_errors(pod["spec"], "spec")
    for field, container in containers_of(pod["spec"]):
        image = container.get("image", "")
        if image != image.strip():
            detail = "must not have leading or trailing whitespace"
            errors.append(FieldError.invalid(f"spec.{field}.image", image, detail))
    return errors


def template_errors(template: Json, field: str) -> list[FieldError]:
    """Validates a template: its labels, annotations and spec."""
    return template_metadata_errors(template, field) + pod_spec_errors(template["spec"], f"{field}.spec")


def template_metadata_errors(template: Json, field: str) -> list[FieldError]:
    metadata = template.get("metadata") or {}
    errors = label_errors(metadata.get("labels") or {}, f"{field}.labels")
    return errors + annotation_errors(metadata.get("annotations") or {}, f"{field}.annotations")


def pod_spec_errors(spec: Json, field: str) -> list[FieldError]:
    volumes = spec.get("volumes") or []
    errors = volume_errors(volumes, f"{field}.volumes")
    mountable = {volume.get("name", "") for volume in volumes}
    taken: set[str] = set()
    if not spec.get("containers"):
        errors.append(FieldError.required(f"{field}.containers"))
    for name in ("containers", "initContainers"):
        init = name == "initContainers"
        errors += container_list_errors(spec.get(name) or [], f"{field}.{name}", mountable, init=init, taken=taken)
    if spec["restartPolicy"] not in _RESTART_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.restartPolicy", spec["restartPolicy"], _RESTART_POLICIES))
    if spec["dnsPolicy"] not in _DNS_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.dnsPolicy", spec["dnsPolicy"], _DNS_POLICIES))
    errors += label_errors(spec.get("nodeSelector") or {}, f"{field}.nodeSelector")
    errors += _affinity_errors(spec.get("affinity") or {}, f"{field}.affinity")
    errors += _spread_errors(spec.get("topologySpreadConstraints") or [], f"{field}.topologySpreadConstraints")
    for name in ("serviceAccountName", "nodeName"):
        if value := spec.get(name):
            errors += invalid_all(f"{field}.{name}", value, dns_subdomain_problems(value))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2147483647:
        errors.append(FieldError.invalid(f"{field}.activeDeadlineSeconds", deadline, _SECONDS_RANGE))
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if grace < 0:
        errors.append(FieldError.invalid(f"{field}.terminationGracePeriodSeconds", grace, NOT_NEGATIVE))
    for name in ("hostname", "subdomain"):
        if value := spec.get(name):
            errors += invalid_all(f"{field}.{name}", value, dns_label_problems(value))
    errors += toleration_errors(spec.get("tolerations") or [], f"{field}.tolerations")
    if value := spec.get("priorityClassName"):
        errors += invalid_all(f"{field}.priorityClassName", value, dns_subdomain_problems(value))
    for index, gate in enumerate(spec.get("schedulingGates") or []):
        name = gate.get("name", "")
        errors += invalid_all(f"{field}.schedulingGates[{index}]", name, qualified_name_problems(name))
    return errors


def toleration_errors(tolerations: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in enumerate(tolerations):
        here = f"{field}[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator") or "Equal"
        if key:
            errors += invalid_all(f"{here}.key", key, qualified_name_problems(key))
        elif operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(FieldError.invalid(f"{here}.operator", toleration.get("operator", ""), detail))
        effect = toleration.get("effect", "")
        if "tolerationSeconds" in toleration and effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(FieldError.invalid(f"{here}.effect", effect, detail))
        if operator == "Exists" and toleration.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            errors.append(FieldError.invalid(f"{here}.operator", toleration, detail))
        elif operator not in ("Equal", "Exists"):
            errors.append(FieldError.not_supported(f"{here}.operator", operator, ("Equal", "Exists")))
        if effect and effect not in _EFFECTS:
            errors.append(FieldError.not_supported(f"{here}.effect", effect, _EFFECTS))
    return errors


def _affinity_errors(affinity: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    node = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if node is not None and not node.get("nodeSelectorTerms"):
        here = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        errors.append(FieldError.required(here, "must have at least one node selector term"))
    for index, term in enumerate((node or {}).get("nodeSelectorTerms") or []):
        here = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{index}]"
        for position, requirement in enumerate(term.get("matchExpressions") or []):
            errors += _requirement_errors(requirement, f"{here}.matchExpressions[{position}]")
    for kind in ("podAffinity", "podAntiAffinity"):
        here = f"{field}.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
        terms = (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []
        for index, term in enumerate(terms):
            errors += label_selector_errors(term.get("labelSelector"), f"{here}[{index}].labelSelector")
            if not term.get("topologyKey"):
                errors.append(FieldError.required(f"{here}[{index}].topologyKey", "can not be empty"))
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


def _spread_errors(constraints: list[Json], field: str) -> list[FieldError]:
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


def pod_update_errors(new: Json, old: Json) -> list[FieldError]:
    """Validates an update of the main resource: images, deadline, more tolerations and gates fewer are all that may
    change."""
    errors: list[FieldError] = []
    for name in ("containers", "initContainers"):
        if len(new["spec"].get(name) or []) != len(old["spec"].get(name) or []):
            detail = "pod updates may not add or remove containers"
            return [FieldError.forbidden(f"spec.{name}", detail)]
        for index, container in enumerate(new["spec"].get(name) or []):
            if not container.get("image"):
                errors.append(FieldError.required(f"spec.{name}[{index}].image"))
    before, after = old["spec"].get("activeDeadlineSeconds"), new["spec"].get("activeDeadlineSeconds")
    if before is not None and (after is None or after > before):
        detail = (
            "must be less than or equal to previous value"
            if after is not None
            else ("must not update from a positive integer to nil value")
        )
        errors.append(FieldError.invalid("spec.activeDeadlineSeconds", after, detail))
    munged = copy.deepcopy(new["spec"])
    for name in ("containers", "initContainers"):
        for container, previous in zip(munged.get(name) or [], old["spec"].get(name) or [], strict=True):
            container["image"] = previous.get("image", "")
    _restore(munged, old["spec"], "activeDeadlineSeconds")
    kept = old["spec"].get("tolerations") or []
    if all(toleration in (new["spec"].get("tolerations") or []) for toleration in kept):
        _restore(munged, old["spec"], "tolerations")
    gates = old["spec"].get("schedulingGates") or []
    if all(gate in gates for gate in new["spec"].get("schedulingGates") or []):
        _restore(munged, old["spec"], "schedulingGates")
        if gates:
            _restore(munged, old["spec"], "nodeSelector")
    if munged != old["spec"]:
        errors.append(FieldError.forbidden("spec", f"{POD_UPDATE}\n{_difference(old['spec'], munged)}"))
    return errors


def _restore(spec: Json, old: Json, name: str) -> None:
    spec.pop(name, None)
    if name in old:
        spec[name] = old[name]


def _difference(old: Json, new: Json) -> str:
    """Returns what differs, as a unified diff. Kubernetes prints Go's structs here, we the JSON."""
    before, after = (json.dumps(spec, indent=1, sort_keys=True).splitlines() for spec in (old, new))
    lines = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    return "\n".join([line if line[0] == "@" else f"{line[0]} {line[1:].lstrip(' ')}" for line in lines]) + "\n"
