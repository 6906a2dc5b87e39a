"""Validates pods and pod templates as in kubernetes `pkg/apis/core/validation/validation.go`."""

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
from trainmaster_local.kinds.meta_validation import NO_ADDRESS, NOT_NEGATIVE, invalid_all, is_address
from trainmaster_local.kinds.pods.affinity_validation import affinity_errors, spread_errors
from trainmaster_local.kinds.pods.container_validation import container_list_errors
from trainmaster_local.kinds.pods.defaults import containers_of
from trainmaster_local.kinds.pods.security_validation import pod_security_errors
from trainmaster_local.kinds.pods.volume_validation import volume_errors

Json = dict[str, Any]

_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SECONDS_RANGE = "must be between 1 and 2147483647, inclusive"

POD_UPDATE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_errors(pod: Json) -> list[FieldError]:
    """Validates a new pod; the API checks its metadata."""
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
    if spec["dnsPolicy"] == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        if "dnsConfig" in spec:
            here, detail = (
                f"{field}.dnsConfig.nameservers",
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            )
        else:
            here, detail = f"{field}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"
        errors.append(FieldError.required(here, detail))
    errors += _choice_errors(spec, field)
    errors += pod_security_errors(spec.get("securityContext") or {}, f"{field}.securityContext")
    errors += label_errors(spec.get("nodeSelector") or {}, f"{field}.nodeSelector")
    errors += affinity_errors(spec.get("affinity") or {}, f"{field}.affinity")
    errors += spread_errors(spec.get("topologySpreadConstraints") or [], f"{field}.topologySpreadConstraints")
    for name in ("serviceAccountName", "nodeName", "runtimeClassName"):
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


def _choice_errors(spec: Json, field: str) -> list[FieldError]:
    """Returns the errors of fields with a fixed set of values."""
    errors: list[FieldError] = []
    preemption = spec.get("preemptionPolicy", "Never")
    if preemption not in _PREEMPTION_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.preemptionPolicy", preemption, _PREEMPTION_POLICIES))
    system = (spec.get("os") or {}).get("name", "linux")
    if system not in ("linux", "windows"):
        errors.append(FieldError.not_supported(f"{field}.os", system, ("linux", "windows")))
    for kind in ("limits", "requests"):
        for name in (spec.get("resources") or {}).get(kind) or {}:
            if name not in ("cpu", "memory") and not name.startswith("hugepages-"):
                supported = ("cpu", "hugepages-", "memory")
                errors.append(FieldError.not_supported(f"{field}.resources.{kind}[{name}]", name, supported))
    for index, alias in enumerate(spec.get("hostAliases") or []):
        address = alias.get("ip", "")
        if not is_address(address):
            errors.append(FieldError.invalid(f"{field}.hostAliases[{index}].ip", address, NO_ADDRESS))
    claims = {claim.get("name", "") for claim in spec.get("resourceClaims") or []}
    for place, container in containers_of(spec):
        for index, claim in enumerate((container.get("resources") or {}).get("claims") or []):
            name = claim.get("name", "")
            if name not in claims:
                known = ", ".join(sorted(f'"{one}"' for one in claims)) if claims else "which is empty"
                error = FieldError.not_found(f"{field}.{place}.resources.claims[{index}]", name)
                detail = f"{error.message}: must be one of the names in pod.spec.resourceClaims {known}"
                errors.append(FieldError(error.field, error.reason, detail))
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


def pod_update_errors(new: Json, old: Json) -> list[FieldError]:
    """Validates an update of the main resource:

    Only images, the deadline, added tolerations and removed gates may change.
    """
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
    """Returns the difference as a unified diff. Kubernetes prints Go's structs here, we the JSON."""
    before, after = (json.dumps(spec, indent=1, sort_keys=True).splitlines() for spec in (old, new))
    lines = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    return "\n".join([line if line[0] == "@" else f"{line[0]} {line[1:].lstrip(' ')}" for line in lines]) + "\n"
