"""Writes operator/trainmaster_operator/api/pod_schema/types.json: every field that a pod can have, with its type.

The fields come from Kubernetes' definitions, which the library `kubernetes_validate` contains for each release. The
definitions contain neither the valid values of fields nor the required fields. Both are listed here, from Kubernetes'
validation (pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

RELEASE = "1.37"
_CORE = "io.k8s.api.core.v1."
_ROOT = f"{_CORE}PodSpec"
# Fields that a pod's template can't have.
_LEFT_OUT = frozenset({("PodSpec", "ephemeralContainers"), ("ObjectMeta", "managedFields")})
_SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
}

# All values of a field. "..." means that later releases may add values, so only likely misspellings are refused.
VALUES: Mapping[tuple[str, str], str] = {
    ("AppArmorProfile", "type"): "Localhost RuntimeDefault Unconfined",
    ("Container", "imagePullPolicy"): "Always IfNotPresent Never",
    ("Container", "restartPolicy"): "Always Never OnFailure ...",
    ("Container", "terminationMessagePolicy"): "File FallbackToLogsOnError",
    ("ContainerPort", "protocol"): "TCP UDP SCTP",
    ("ContainerResizePolicy", "restartPolicy"): "NotRequired RestartContainer ...",
    ("EmptyDirVolumeSource", "medium"): "Memory ...",
    ("HTTPGetAction", "scheme"): "HTTP HTTPS",
    ("HostPathVolumeSource", "type"): "BlockDevice CharDevice Directory DirectoryOrCreate File FileOrCreate Socket",
    ("ImageVolumeSource", "pullPolicy"): "Always IfNotPresent Never",
    ("LabelSelectorRequirement", "operator"): "In NotIn Exists DoesNotExist",
    ("NodeSelectorRequirement", "operator"): "In NotIn Exists DoesNotExist Gt Lt",
    ("PersistentVolumeClaimSpec", "accessModes"): "ReadWriteOnce ReadOnlyMany ReadWriteMany ReadWriteOncePod ...",
    ("PersistentVolumeClaimSpec", "volumeMode"): "Block Filesystem",
    ("PodOS", "name"): "linux windows",
    ("PodSecurityContext", "fsGroupChangePolicy"): "Always OnRootMismatch",
    ("PodSecurityContext", "seLinuxChangePolicy"): "MountOption Recursive",
    ("PodSecurityContext", "supplementalGroupsPolicy"): "Merge Strict",
    ("PodSpec", "dnsPolicy"): "ClusterFirst ClusterFirstWithHostNet Default None",
    ("PodSpec", "preemptionPolicy"): "Never PreemptLowerPriority",
    ("SeccompProfile", "type"): "Localhost RuntimeDefault Unconfined",
    ("SecurityContext", "procMount"): "Default Unmasked",
    ("Toleration", "effect"): "NoSchedule PreferNoSchedule NoExecute",
    ("Toleration", "operator"): "Equal Exists Gt Lt ...",
    ("TopologySpreadConstraint", "nodeAffinityPolicy"): "Honor Ignore",
    ("TopologySpreadConstraint", "nodeTaintsPolicy"): "Honor Ignore",
    ("TopologySpreadConstraint", "whenUnsatisfiable"): "DoNotSchedule ScheduleAnyway",
    ("VolumeMount", "mountPropagation"): "None HostToContainer Bidirectional",
    ("VolumeMount", "recursiveReadOnly"): "Disabled Enabled IfPossible",
}
# Fields without which the API server refuses an object.
REQUIRED: Mapping[str, str] = {
    "ConfigMapKeySelector": "name key",
    "ConfigMapVolumeSource": "name",
    "HTTPGetAction": "port",
    "HostPathVolumeSource": "path",
    "KeyToPath": "key path",
    "NFSVolumeSource": "server path",
    "NodeSelector": "nodeSelectorTerms",
    "NodeSelectorRequirement": "key operator",
    "ObjectFieldSelector": "fieldPath",
    "PersistentVolumeClaimVolumeSource": "claimName",
    "PodAffinityTerm": "topologyKey",
    "PreferredSchedulingTerm": "weight preference",
    "ResourceFieldSelector": "resource",
    "SecretKeySelector": "name key",
    "SecretVolumeSource": "secretName",
    "TCPSocketAction": "port",
    "WeightedPodAffinityTerm": "weight podAffinityTerm",
}


def pod_types() -> str:
    """Returns the table as JSON, with one type per line.

    A field's type is `string`, `boolean`, `int32`, `int64`, `number`, `quantity`, `intOrString`, `any` or another
    type's name; `[T name]` is a list of T whose items are identified by the fields after T; `{T}` maps names to T.
    """
    types = dict(sorted(_types().items()))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in types.items())
    return f'{{"release": "{RELEASE}", "types": {{\n{lines}\n}}}}\n'


def _types() -> dict[str, Any]:
    path = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{RELEASE}.0-local" / "_definitions.json"
    definitions = json.loads(path.read_text())["$defs"]
    found: dict[str, Any] = {}
    waiting = [_ROOT]
    while waiting:
        full = waiting.pop()
        name = full.rsplit(".", 1)[1]
        if name in found:
            continue
        properties = definitions[full].get("properties", {})
        kept = {field: schema for field, schema in properties.items() if (name, field) not in _LEFT_OUT}
        found[name] = {"fields": {field: _written(schema) for field, schema in kept.items()}}
        waiting += [reference for schema in kept.values() for reference in _references(schema)]
    for name, required in REQUIRED.items():
        found[name]["required"] = [field for field in required.split() if found[name]["fields"][field]]
    for (name, field), values in VALUES.items():
        if "string" not in found[name]["fields"][field]:
            raise ValueError(f"{name}.{field} isn't text in Kubernetes {RELEASE}")
        found[name].setdefault("values", {})[field] = values.split()
    return found


def _written(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        full = str(schema["$ref"]).rsplit("/", 1)[-1]
        return _SCALARS.get(full, full.rsplit(".", 1)[-1])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "array" in kinds:
        keys = schema.get("x-kubernetes-list-map-keys", ())
        return f"[{' '.join([_written(schema['items']), *keys])}]"
    if "object" in kinds:
        inner = schema.get("additionalProperties")
        return f"{{{_written(inner) if inner else 'any'}}}"
    return str(schema["format"]) if "integer" in kinds else str(kinds[0])


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    for part in (schema, schema.get("items"), schema.get("additionalProperties")):
        full = part.get("$ref", "").rsplit("/", 1)[-1] if isinstance(part, Mapping) else ""
        if full and full not in _SCALARS:
            yield full
