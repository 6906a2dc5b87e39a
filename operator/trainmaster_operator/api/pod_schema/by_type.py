"""Mappings of a pod are checked by their type, wherever they stand: the values that their fields may have.

Only what every Kubernetes refuses is said here, and only of fields that are given, because what is missing may be
rendered. (kubernetes: pkg/apis/core/validation/validation.go)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from trainmaster_operator.api.labels import label_key_problem
from trainmaster_operator.api.merge import DIRECTIVE
from trainmaster_operator.api.nearest import VERY_SIMILAR, nearest
from trainmaster_operator.api.pod_schema.types import ListOf, Struct, Type, pod_spec, pod_types
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import show

# Least and most of whole numbers. Kubernetes takes a probe's 0 for its default.
_RANGES: Mapping[str, Mapping[str, tuple[int, int | None]]] = {
    "Probe": {
        "initialDelaySeconds": (0, None),
        "timeoutSeconds": (0, None),
        "periodSeconds": (0, None),
        "successThreshold": (0, None),
        "failureThreshold": (0, None),
        "terminationGracePeriodSeconds": (1, None),
    },
    "PreferredSchedulingTerm": {"weight": (1, 100)},
    "WeightedPodAffinityTerm": {"weight": (1, 100)},
    "TopologySpreadConstraint": {"maxSkew": (1, None), "minDomains": (1, None)},
}
# Fields with the permissions of a volume's files.
_MODES: Mapping[str, str] = {
    "ConfigMapVolumeSource": "defaultMode",
    "DownwardAPIVolumeFile": "mode",
    "DownwardAPIVolumeSource": "defaultMode",
    "KeyToPath": "mode",
    "ProjectedVolumeSource": "defaultMode",
    "SecretVolumeSource": "defaultMode",
}
_MOST_MODE = 0o777
_SYSTEMS = ("linux", "windows")
# Fields of a pod that its variables, and files of its volumes, can have.
_FIELDS_OF_BOTH = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['…']")
_FIELDS_OF_VARIABLES = (
    *_FIELDS_OF_BOTH,
    "metadata.annotations['…']",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_FIELDS_OF_FILES = (*_FIELDS_OF_BOTH, "metadata.labels", "metadata.annotations['…']", "metadata.annotations")
_ONE_OF_A_MAPPING = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
_RESOURCES = tuple(
    f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_OF_A_REQUIREMENT = frozenset(pod_types()["NodeSelectorRequirement"].fields)
_HUGE_PAGES = re.compile(r"(limits|requests)\.hugepages-.+")


def check_by_type(kind: Type, value: Any, path: str) -> Iterator[Problem]:
    """Yields what is wrong in a value of the type `kind` that stands at `path`; types are another check's."""
    match kind:
        case Struct() if isinstance(value, Mapping) and value.get(DIRECTIVE) != "delete":
            yield from _check(kind.name, value, path)
            for name, one in kind.fields.items():
                if name in value:
                    yield from check_by_type(one, value[name], f"{path}.{name}")
        case ListOf() if isinstance(value, list) and isinstance(kind.item, Struct):
            for position, item in enumerate(value):
                yield from check_by_type(kind.item, item, f"{path}[{position}]")


def _check(kind: str, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for field, (least, most) in _RANGES.get(kind, {}).items():
        number = value.get(field)
        if _is_integer(number) and not least <= number <= (number if most is None else most):
            remedy = f"use {least} or more" if most is None else f"use {least} to {most}"
            yield Problem(f"{path}.{field}", number, f"{show(number)} is out of range; {remedy}")
    mode = value.get(_MODES.get(kind, ""))
    if _is_integer(mode) and not 0 <= mode <= _MOST_MODE:
        remedy = "write it in octal from 0000 to 0777, such as 0400"
        yield Problem(f"{path}.{_MODES[kind]}", mode, f"{mode} is no file mode; {remedy}")
    for field, check in _TEXTS.get(kind, {}).items():
        text = value.get(field)
        if isinstance(text, str) and (message := check(text)) is not None:
            yield Problem(f"{path}.{field}", text, message)
    together = _TOGETHER.get(kind)
    if together is not None:
        yield from together(path, value)


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _system_problem(value: str) -> str | None:
    return None if value in _SYSTEMS else f"{show(value)} is no system of a pod; use {' or '.join(_SYSTEMS)}"


def _address_problem(value: str) -> str | None:
    # Old releases take numbers with leading zeros.
    text = re.sub(r"(^|\.)0+(?=[0-9])", r"\1", value)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{show(value)} is no IP address; use one, such as 10.0.0.7, and put names into hostnames"
    return None


def _mount_problem(value: str) -> str | None:
    return None if value else "is empty; use an absolute path, such as /data"


def _topology_problem(value: str) -> str | None:
    return None if value else "is empty; use a label of the nodes, such as kubernetes.io/hostname"


def _relative_problem(value: str) -> str | None:
    if value.startswith("/"):
        return f"{show(value)} is absolute; use a path relative to the volume's root"
    return f"{show(value)} goes up with '..'; use the path itself" if ".." in value.split("/") else None


def _resource_problem(value: str) -> str | None:
    if value in _RESOURCES or _HUGE_PAGES.fullmatch(value):
        return None
    meant = nearest(value, _RESOURCES, VERY_SIMILAR)
    return f"{show(value)} can't be given to a container; " + (
        f"did you mean {meant}?" if meant else _one_of(_RESOURCES)
    )


def _requirement(path: str, value: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks one of matchExpressions: how many values its operator has."""
    operator, values = value.get("operator"), value.get("values")
    if not isinstance(values, list) and values is not None:
        return
    count = len(values or ())
    # An unknown field may stand for the values, and has its own sentence.
    if operator in ("In", "NotIn") and not count and set(value) <= _OF_A_REQUIREMENT:
        yield Problem(
            f"{path}.values", None, f"is missing, and {operator} compares with values; set them, or use Exists"
        )
    elif operator in ("Exists", "DoesNotExist") and count:
        yield Problem(
            f"{path}.values", values, f"is given beside {operator}, which has no values; remove it, or use In"
        )
    elif operator in ("Gt", "Lt") and count != 1:
        yield Problem(f"{path}.values", values, f"has {count} items, and {operator} compares with one; give one")


def _dns(path: str, pod: Mapping[str, Any]) -> Iterator[Problem]:
    config = pod.get("dnsConfig")
    servers = config.get("nameservers") if isinstance(config, Mapping) else config
    if pod.get("dnsPolicy") == "None" and (servers is None or servers == []):
        yield Problem(f"{path}.dnsConfig.nameservers", None, "is missing, and dnsPolicy None has no others; set it")


def _probe(path: str, probe: Mapping[str, Any]) -> Iterator[Problem]:
    threshold = probe.get("successThreshold")
    if _is_integer(threshold) and threshold > 1 and not path.endswith(".readinessProbe"):
        message = f"{threshold} is only for a readinessProbe; use 1, or remove it"
        yield Problem(f"{path}.successThreshold", threshold, message)


def _variable(path: str, source: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _field_of_a_pod(path, source, _FIELDS_OF_VARIABLES)


def _file(path: str, file: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _field_of_a_pod(path, file, _FIELDS_OF_FILES)


def _field_of_a_pod(path: str, source: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[Problem]:
    reference = source.get("fieldRef")
    field = reference.get("fieldPath") if isinstance(reference, Mapping) else None
    if not isinstance(field, str) or (field in known and "…" not in field):
        return
    found = _ONE_OF_A_MAPPING.fullmatch(field)
    message: str | None
    if found is not None:
        message = label_key_problem(found[2].lower() if found[1] == "annotations" else found[2])
    elif _may_be_new(field, known):
        return
    else:
        meant = nearest(field, known, VERY_SIMILAR)
        remedy = f"did you mean {meant}?" if meant else _one_of(known)
        message = f"{show(field)} is no field that Kubernetes gives to a container; {remedy}"
    if message is not None:
        yield Problem(f"{path}.fieldRef.fieldPath", field, message)


def _may_be_new(field: str, known: tuple[str, ...]) -> bool:
    """Returns whether a later release may give a field to variables: it is none of a pod's that this one has."""
    place, _, name = field.partition(".")
    is_odd = not re.fullmatch(r"[a-z][A-Za-z]+", name) or nearest(field, known, VERY_SIMILAR) is not None
    return not is_odd and (place == "status" or (place == "spec" and name not in pod_spec().fields))


def _one_of(values: tuple[str, ...]) -> str:
    return f"use {', '.join(values[:-1])} or {values[-1]}"


_TEXTS: Mapping[str, Mapping[str, Callable[[str], str | None]]] = {
    "DownwardAPIVolumeFile": {"path": _relative_problem},
    "HostAlias": {"ip": _address_problem},
    "KeyToPath": {"path": _relative_problem},
    "LabelSelectorRequirement": {"key": label_key_problem},
    "NodeSelectorRequirement": {"key": label_key_problem},
    "PodAffinityTerm": {"topologyKey": label_key_problem},
    "PodOS": {"name": _system_problem},
    "ResourceFieldSelector": {"resource": _resource_problem},
    "TopologySpreadConstraint": {"topologyKey": _topology_problem},
    "VolumeMount": {"mountPath": _mount_problem, "subPath": _relative_problem, "subPathExpr": _relative_problem},
}
_TOGETHER: Mapping[str, Callable[[str, Mapping[str, Any]], Iterator[Problem]]] = {
    "DownwardAPIVolumeFile": _file,
    "EnvVarSource": _variable,
    "LabelSelectorRequirement": _requirement,
    "NodeSelectorRequirement": _requirement,
    "PodSpec": _dns,
    "Probe": _probe,
}
