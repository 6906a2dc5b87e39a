"""Builds a container's environment as the kubelet does.

`kubelet_pods.go:makeEnvironmentVariables`: first `envFrom` in order, then `env` in order with `$(NAME)` expanded from
earlier variables, then the variables of Services, which never replace others.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trainmaster_local.quantities import parse_quantity

Object = Mapping[str, Any]

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ConfigError(Exception):
    """The container can't be configured yet; the text is that of CreateContainerConfigError."""


@dataclass(frozen=True)
class PodFacts:
    """A running pod's object may not show these facts yet."""

    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Mapping[str, str]
    config_map: Callable[[str], Object | None]
    secret: Callable[[str], Object | None]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by its value and `$$` by `$`; undefined names stay (`third_party/forked/golang/expansion`)."""

    def replace(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        name = match.group(1)
        return variables.get(name, match.group(0)) if name is not None else match.group(0)

    return _REFERENCE.sub(replace, text)


def field_value(pod: Object, path: str, facts: PodFacts) -> str:
    """Returns the value of a downward API `fieldRef`.

    For all labels or annotations, it consists of lines `key="value"`, as in volumes.
    """
    metadata = pod["metadata"]
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return str((metadata.get(subscript.group(1)) or {}).get(subscript.group(2), ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{_escape(str(value))}"' for key, value in sorted(values.items()))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(values[path])


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


def resource_value(pod: Object, reference: Object, container: str, allocatable: Mapping[str, str]) -> str:
    """Returns the value of a `resourceFieldRef`, in units of its divisor, rounded up. Without a limit: the node's."""
    name = reference.get("containerName") or container
    containers = [*pod["spec"].get("containers", []), *pod["spec"].get("initContainers", [])]
    resources = next((c.get("resources") or {} for c in containers if c["name"] == name), {})
    kind, _, resource = str(reference["resource"]).partition(".")
    value = (resources.get(kind) or {}).get(resource)
    if value is None:
        value = allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = parse_quantity(reference.get("divisor") or "1") or Fraction(1)
    return str(-(-parse_quantity(value) // divisor))


def environment(pod: Object, container: Object, facts: PodFacts, services: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in the manifest. Raises ConfigError with the kubelet's message."""
    result: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        prefix = source.get("prefix", "")
        data = _env_from(pod, source, facts)
        result.update({prefix + key: value for key, value in data.items() if _ENV_NAME.fullmatch(prefix + key)})
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        if source:
            value = _value_from(pod, container, source, facts)
            if value is not None:
                result[entry["name"]] = value
        else:
            result[entry["name"]] = expand(str(entry.get("value") or ""), {**services, **result})
    return {**services, **result}


def _env_from(pod: Object, source: Object, facts: PodFacts) -> dict[str, str]:
    for key, kind, find in (("configMapRef", "configmap", facts.config_map), ("secretRef", "secret", facts.secret)):
        reference = source.get(key)
        if reference:
            name = reference["name"]
            found = find(name)
            if found is None:
                if reference.get("optional"):
                    return {}
                raise ConfigError(f'{kind} "{name}" not found')
            return {str(k): str(v) for k, v in values_of(found).items()}
    return {}


def values_of(obj: Object) -> dict[str, str]:
    """Returns the text values of a ConfigMap or of a Secret."""
    if obj.get("kind") == "Secret":
        return {key: decode(value).decode(errors="replace") for key, value in (obj.get("data") or {}).items()}
    return {key: str(value) for key, value in (obj.get("data") or {}).items()}


def decode(value: str) -> bytes:
    """Decodes a value of a Secret or of binaryData."""
    return base64.b64decode(value)


def _value_from(pod: Object, container: Object, source: Object, facts: PodFacts) -> str | None:
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in source:
        return resource_value(pod, source["resourceFieldRef"], container["name"], facts.allocatable)
    namespace = pod["metadata"]["namespace"]
    for key, kind, title, find in (
        ("configMapKeyRef", "configmap", "ConfigMap", facts.config_map),
        ("secretKeyRef", "secret", "Secret", facts.secret),
    ):
        reference = source.get(key)
        if reference:
            found = find(reference["name"])
            values = values_of(found) if found is not None else {}
            if reference["key"] in values:
                return values[reference["key"]]
            if reference.get("optional"):
                return None
            if found is None:
                raise ConfigError(f'{kind} "{reference["name"]}" not found')
            raise ConfigError(f"couldn't find key {reference['key']} in {title} {namespace}/{reference['name']}")
    raise ConfigError("unsupported valueFrom")
