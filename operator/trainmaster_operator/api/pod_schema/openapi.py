"""The CRD's schema of podTemplate.spec: types of what people write most, so that the API server refuses others at once.

A field that isn't written out here passes, and so do directives (`$patch`) and nulls, which merging takes: every
mapping keeps unknown fields. `fields` checks all of a pod, of which the whole schema would be too large for `kubectl
apply` to record. Quantities are free, because a schema has no type for `cpu: 0.5` beside `cpu: 500m`.
"""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.limits import MAX_ITEMS
from trainmaster_operator.api.pod_schema.types import ListOf, MappingOf, Scalar, Struct, Type, pod_spec

_WRITTEN_OUT = """
Capabilities ConfigMapEnvSource ConfigMapKeySelector ConfigMapVolumeSource Container ContainerPort EmptyDirVolumeSource
EnvFromSource EnvVar EnvVarSource HostAlias HostPathVolumeSource LocalObjectReference NFSVolumeSource
ObjectFieldSelector PersistentVolumeClaimVolumeSource PodSecurityContext PodSpec ResourceRequirements SeccompProfile
SecretEnvSource SecretKeySelector SecretVolumeSource SecurityContext Toleration TopologySpreadConstraint Volume
VolumeMount
"""
_TYPES_WRITTEN_OUT = frozenset(_WRITTEN_OUT.split())
# Of a volume's sources: the others have no driver in new clusters, or nobody writes them.
_VOLUMES = "name configMap csi emptyDir ephemeral hostPath nfs persistentVolumeClaim projected secret"
_FIELDS_OF_A_VOLUME = frozenset(_VOLUMES.split())
_TYPES = {"string": "string", "boolean": "boolean", "int32": "integer", "int64": "integer", "number": "number"}


def pod_spec_schema() -> dict[str, Any]:
    """Returns the structural schema of a partial PodSpec."""
    return _schema(pod_spec())


def _schema(kind: Type) -> dict[str, Any]:
    match kind:
        case Scalar():
            if kind.name in _TYPES:
                return {"type": _TYPES[kind.name]}
            return {"x-kubernetes-int-or-string": True} if kind.name == "intOrString" else _free()
        case ListOf():
            # Free, so that a mapping in its place is refused for its type and not for its unknown fields.
            return {"type": "array", "maxItems": MAX_ITEMS, "items": _schema(kind.item), **_free()}
        case MappingOf():
            return {"type": "object", "additionalProperties": _nullable(kind.value)}
        case Struct():
            schema = {"type": "object", **_free()}
            if kind.name in _TYPES_WRITTEN_OUT:
                left_out = set(kind.fields) - _FIELDS_OF_A_VOLUME if kind.name == "Volume" else set()
                schema["properties"] = {n: _nullable(one) for n, one in kind.fields.items() if n not in left_out}
            return schema


def _free() -> dict[str, Any]:
    return {"x-kubernetes-preserve-unknown-fields": True}


def _nullable(kind: Type) -> dict[str, Any]:
    schema = _schema(kind)
    return schema if schema == _free() else {**schema, "nullable": True}
