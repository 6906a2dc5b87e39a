"""Checks values in a pod, and how containers, volumes, ports and tolerations fit together, as Kubernetes does.

Only mistakes that every version of Kubernetes refuses are reported. The rendered pod may contain fields that the user's
template lacks, so mistakes that merging may repair are ignored. (kubernetes: pkg/apis/core/validation/validation.go)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeGuard

from trainmaster_operator.api.kubernetes_syntax import (
    check_labels,
    dns_label_problem,
    keyed,
    label_key_problem,
    port_name_problem,
    subdomain_problem,
    variable_name_problem,
)
from trainmaster_operator.api.merge import DIRECTIVE
from trainmaster_operator.api.pod_schema.fields import POD, ListOf, Struct, Type, pod_types
from trainmaster_operator.api.pod_schema.resources import STANDARD, Amounts, check_resources
from trainmaster_operator.api.problems import VERY_SIMILAR, Problem, did_you_mean, either, nearest
from trainmaster_operator.api.values import show
from trainmaster_operator.wire.names import AGENT_PORT
from trainmaster_operator.wire.values import mapping

WORKER_CONTAINER = "worker"
AGENT_CONTAINER = "trainmaster-agent"
# Volumes that may be rendered. The user's containers can mount them too.
RENDERED_VOLUMES = frozenset(
    f"trainmaster-{name}" for name in ("podinfo", "state", "agent", "tmp", "training", "shm", "checkpoint")
)
# Names of the training container in other APIs (PyTorchJob, TrainJob) and in examples.
_OTHERS_WORKERS = frozenset({"main", "master", "node", "pytorch", "trainer", "training"})
# Longer names aren't compared with "worker", because they don't resemble it and comparisons take time.
_LONGEST_LIKE = 8
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_MOST_USER = 2**31 - 1


def check_relations(pod: Mapping[str, Any], worker: Amounts) -> Iterator[Problem]:
    """Yields problems with a partial PodSpec of valid types. `worker` contains the requests from the job's fields."""
    volumes = {name for name, _, item in _named(pod.get("volumes")) if name and item.get(DIRECTIVE) != "delete"}
    yield from _containers(pod, volumes | RENDERED_VOLUMES, worker)
    yield from check_labels(f"{POD}.nodeSelector", pod.get("nodeSelector"))
    yield from _devices(f"{POD}.resources", pod.get("resources"))
    yield from check_by_type(pod_types()["PodSpec"], pod, POD)


def _devices(path: str, resources: Any) -> Iterator[Problem]:
    for kind in ("requests", "limits"):
        for name, amount in mapping(mapping(resources).get(kind)).items():
            if "/" in str(name):
                message = "devices belong to a container, not to the pod; set spec.resources.gpus"
                yield Problem(keyed(f"{path}.{kind}", str(name)), amount, message)


def _containers(pod: Mapping[str, Any], volumes: set[str], worker: Amounts) -> Iterator[Problem]:
    taken = {WORKER_CONTAINER: "containers", AGENT_CONTAINER: "initContainers"}
    has_worker = any(name == WORKER_CONTAINER for name, _, _ in _named(pod.get("containers")))
    for field in ("containers", "initContainers"):
        for name, position, container in _named(pod.get(field)):
            path = f"{POD}.{field}[{position}]"
            if container.get(DIRECTIVE) == "delete":
                continue
            if name and taken.setdefault(name, field) != field:
                message = f"{show(name)} is already the name of another container; use another name"
                yield Problem(f"{path}.name", name, message)
            is_worker = field == "containers" and name == WORKER_CONTAINER
            if not is_worker and name != AGENT_CONTAINER:
                yield from _sidecar(path, field, name, container, has_worker=has_worker)
            yield from _container(path, container, volumes, is_worker=is_worker)
            yield from _claims(f"{path}.resources.claims", container.get("resources"), pod)
            asked = worker if is_worker else [({}, {})]
            yield from check_resources(f"{path}.resources", container.get("resources"), asked)


def _claims(path: str, resources: Any, pod: Mapping[str, Any]) -> Iterator[Problem]:
    known = [name for name, _, _ in _named(pod.get("resourceClaims")) if name]
    for name, position, _ in _named(mapping(resources).get("claims")):
        if name is not None and name not in known:
            remedy = did_you_mean(name, known, f"add it to {POD}.resourceClaims")
            yield Problem(f"{path}[{position}].name", name, f"{show(name)} is not the name of a claim; {remedy}")


def _sidecar(
    path: str, field: str, name: str | None, container: Mapping[str, Any], *, has_worker: bool
) -> Iterator[Problem]:
    in_place = field == "containers" and not has_worker and name is not None
    is_like = in_place and len(str(name)) <= _LONGEST_LIKE and nearest(str(name), [WORKER_CONTAINER], VERY_SIMILAR)
    if is_like or (in_place and name in _OTHERS_WORKERS):
        message = f"{show(name)} would run as a sidecar of the worker; call it worker, or give a sidecar another name"
        yield Problem(f"{path}.name", name, message)
    elif name is not None and not container.get("image"):
        remedy = "; the worker's container is called worker" if in_place else ""
        yield Problem(f"{path}.image", None, f"is missing, and {show(name)} is a container of its own{remedy}; set it")


def _container(path: str, container: Mapping[str, Any], volumes: set[str], *, is_worker: bool) -> Iterator[Problem]:
    yield from _ports(f"{path}.ports", container.get("ports"), is_worker=is_worker)
    for position, mount in mapping_items(container.get("volumeMounts")):
        here = f"{path}.volumeMounts[{position}]"
        name = mount.get("name")
        if isinstance(name, str) and name not in volumes and mount.get(DIRECTIVE) != "delete":
            remedy = did_you_mean(name, volumes - RENDERED_VOLUMES, f"add it to {POD}.volumes")
            yield Problem(f"{here}.name", name, f"{show(name)} is not the name of a volume; {remedy}")
    context = mapping(container.get("securityContext"))
    may_not_escalate = is_worker and context.get("allowPrivilegeEscalation", False) is False
    if context.get("privileged") is True and may_not_escalate:
        message = "needs allowPrivilegeEscalation: true, which is false for the worker; set it too"
        yield Problem(f"{path}.securityContext.privileged", True, message)


def _variable(path: str, variable: Mapping[str, Any]) -> Iterator[Problem]:
    if variable.get("value") and isinstance(variable.get("valueFrom"), Mapping):
        yield Problem(f"{path}.valueFrom", None, "is given beside value; keep one of them")


def _one_of(path: str, value: Mapping[str, Any], kind: str, names: tuple[str, ...]) -> Iterator[Problem]:
    """Checks that a value has exactly one of the fields, unless a directive or an unknown (newer) field replaces it."""
    given = [name for name in names if value.get(name) is not None]
    if len(given) != 1 and set(value) <= set(pod_types()[kind].fields):
        yield Problem(path, None, f"names {' and '.join(given) or 'none'}; give one of {', '.join(names)}")


def _ports(path: str, ports: Any, *, is_worker: bool) -> Iterator[Problem]:
    names: dict[str, Any] = {"agent": AGENT_PORT} if is_worker else {}
    for position, port in mapping_items(ports):
        here = f"{path}[{position}]"
        name, number = port.get("name"), port.get("containerPort")
        if isinstance(name, str) and names.setdefault(name, number) != number:
            yield Problem(f"{here}.name", name, f"{show(name)} is already the name of another port; use another name")


def _volume(path: str, volume: Mapping[str, Any]) -> Iterator[Problem]:
    sources = [name for name in pod_types()["Volume"].fields if name != "name" and volume.get(name) is not None]
    if len(sources) > 1:
        message = f"names {' and '.join(sources)}; a volume has one of them"
        yield Problem(f"{path}.{sources[1]}", None, message)
    folder = mapping(volume.get("hostPath")).get("path")
    if isinstance(folder, str) and ".." in folder.split("/"):
        yield Problem(f"{path}.hostPath.path", folder, f"{show(folder)} contains '..'; use a path without it")


def _toleration(path: str, toleration: Mapping[str, Any]) -> Iterator[Problem]:
    if DIRECTIVE in toleration:
        return
    operator, key, effect = (toleration.get(name) for name in ("operator", "key", "effect"))
    if not key and operator not in (None, "Exists"):
        yield Problem(f"{path}.key", None, "is missing; set it, or operator: Exists for every taint")
    if operator == "Exists" and toleration.get("value"):
        message = f"{show(toleration['value'])} is given beside operator: Exists, which has none; remove one of the two"
        yield Problem(f"{path}.value", toleration["value"], message)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        message = "is only for effect: NoExecute; set that effect, or remove it"
        yield Problem(f"{path}.tolerationSeconds", toleration["tolerationSeconds"], message)
    if isinstance(key, str) and key and (wrong := label_key_problem(key)) is not None:
        yield Problem(f"{path}.key", key, wrong)


def _user(path: str, context: Mapping[str, Any]) -> Iterator[Problem]:
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        value = context.get(field)
        if _is_integer(value) and not 0 <= value <= _MOST_USER:
            yield Problem(f"{path}.{field}", value, f"{show(value)} is not a user or group id; use 0 to {_MOST_USER}")
    if context.get("runAsNonRoot") is True and context.get("runAsUser") == 0:
        message = "0 is root, and runAsNonRoot is true; give another user, or remove one of the two"
        yield Problem(f"{path}.runAsUser", 0, message)


def mapping_items(value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the items of a list that are mappings, with their positions."""
    if isinstance(value, list):
        yield from ((position, item) for position, item in enumerate(value) if isinstance(item, Mapping))


def _named(value: Any) -> Iterator[tuple[str | None, int, Mapping[str, Any]]]:
    for position, item in mapping_items(value):
        name = item.get("name")
        yield name if isinstance(name, str) else None, position, item


# Minimum and maximum of integers. In a probe, 0 selects the default.
_RANGES: Mapping[str, Mapping[str, tuple[int, int | None]]] = {
    "ContainerPort": {"containerPort": (1, 65_535), "hostPort": (0, 65_535)},
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
# Fields that contain the permissions of a volume's files.
_MODES: Mapping[str, str] = {
    **dict.fromkeys(("DownwardAPIVolumeFile", "KeyToPath"), "mode"),
    **dict.fromkeys(("ConfigMapVolumeSource", "DownwardAPIVolumeSource", "ProjectedVolumeSource"), "defaultMode"),
    "SecretVolumeSource": "defaultMode",
}
# Fields of a pod that both environment variables and files in volumes can expose.
_FIELDS_OF_BOTH = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels['…']")
_FIELDS_OF_VARIABLES = (
    *(*_FIELDS_OF_BOTH, "metadata.annotations['…']", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_FIELDS_OF_FILES = (*_FIELDS_OF_BOTH, "metadata.labels", "metadata.annotations['…']", "metadata.annotations")
_ONE_OF_A_MAPPING = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
_RESOURCES = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in STANDARD)
_OF_A_REQUIREMENT = frozenset(pod_types()["NodeSelectorRequirement"].fields)
_HUGE_PAGES = re.compile(r"(limits|requests)\.hugepages-.+")


def check_by_type(kind: Type, value: Any, path: str) -> Iterator[Problem]:
    """Yields problems with a value of the type `kind` at `path`. Another check covers types."""
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
    if _is_integer(mode) and not 0 <= mode <= 0o777:
        remedy = "write it in octal from 0000 to 0777, such as 0400"
        yield Problem(f"{path}.{_MODES[kind]}", mode, f"{mode} is not a file mode; {remedy}")
    for field, check in _TEXTS.get(kind, {}).items():
        text = value.get(field)
        if isinstance(text, str) and (message := check(text)) is not None:
            yield Problem(f"{path}.{field}", text, message)
    if kind in _TOGETHER:
        yield from _TOGETHER[kind](path, value)


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _address_problem(value: str) -> str | None:
    # Old releases accept leading zeros.
    text = re.sub(r"(^|\.)0+(?=[0-9])", r"\1", value)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{show(value)} is not an IP address; use one, such as 10.0.0.7, and put names into hostnames"
    return None


def _none_empty(remedy: str) -> Callable[[str], str | None]:
    return lambda value: None if value else f"is empty; use {remedy}"


def _relative_problem(value: str) -> str | None:
    if value.startswith("/"):
        return f"{show(value)} is absolute; use a path relative to the volume's root"
    return f"{show(value)} contains '..'; use a path without it" if ".." in value.split("/") else None


def _resource_problem(value: str) -> str | None:
    if value in _RESOURCES or _HUGE_PAGES.fullmatch(value):
        return None
    remedy = did_you_mean(value, _RESOURCES, f"use {either(_RESOURCES)}")
    return f"{show(value)} can't be given to a container; {remedy}"


def _requirement(path: str, value: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks the number of values of a match expression."""
    operator, values = value.get("operator"), value.get("values")
    if not isinstance(values, list) and values is not None:
        return
    count = len(values or ())
    # An unknown field may be a misspelling of `values`, and is reported with its own message.
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
    # The worker's livenessProbe is rendered.
    if not path.endswith(".livenessProbe"):
        yield from _one_of(path, probe, "Probe", _HANDLERS)
    threshold = probe.get("successThreshold")
    if _is_integer(threshold) and threshold > 1 and not path.endswith(".readinessProbe"):
        message = f"{threshold} is only for a readinessProbe; use 1, or remove it"
        yield Problem(f"{path}.successThreshold", threshold, message)


def _variable_source(path: str, source: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _one_of(path, source, "EnvVarSource", tuple(pod_types()["EnvVarSource"].fields))
    yield from _field_of_a_pod(path, source, _FIELDS_OF_VARIABLES)


def _field_of_a_pod(path: str, source: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[Problem]:
    field = mapping(source.get("fieldRef")).get("fieldPath")
    if not isinstance(field, str) or (field in known and "…" not in field):
        return
    found, message = _ONE_OF_A_MAPPING.fullmatch(field), None
    if found is not None:
        message = label_key_problem(found[2].lower() if found[1] == "annotations" else found[2])
    elif not _may_be_new(field, known):
        remedy = did_you_mean(field, known, f"use {either(known)}")
        message = f"{show(field)} is not a field that Kubernetes gives to containers; {remedy}"
    if message is not None:
        yield Problem(f"{path}.fieldRef.fieldPath", field, message)


def _may_be_new(field: str, known: tuple[str, ...]) -> bool:
    """Returns whether a later release may support a field here, although this release doesn't."""
    place, _, name = field.partition(".")
    is_odd = not re.fullmatch(r"[a-z][A-Za-z]+", name) or nearest(field, known, VERY_SIMILAR) is not None
    return not is_odd and (place == "status" or (place == "spec" and name not in pod_types()["PodSpec"].fields))


_TEXTS: Mapping[str, Mapping[str, Callable[[str], str | None]]] = {
    "Container": {"name": dns_label_problem},
    "ContainerPort": {"name": port_name_problem},
    "DownwardAPIVolumeFile": {"path": _relative_problem},
    "EnvVar": {"name": variable_name_problem},
    "HostAlias": {"ip": _address_problem},
    "KeyToPath": {"path": _relative_problem},
    "LabelSelectorRequirement": {"key": label_key_problem},
    "NodeSelectorRequirement": {"key": label_key_problem},
    "PodAffinityTerm": {"topologyKey": label_key_problem},
    "PodSpec": {"serviceAccountName": subdomain_problem, "runtimeClassName": subdomain_problem},
    "ResourceFieldSelector": {"resource": _resource_problem},
    "TopologySpreadConstraint": {"topologyKey": _none_empty("a label of the nodes, such as kubernetes.io/hostname")},
    "Volume": {"name": dns_label_problem},
    "VolumeMount": {
        "mountPath": _none_empty("an absolute path, such as /data"),
        "subPath": _relative_problem,
        "subPathExpr": _relative_problem,
    },
}
_TOGETHER: Mapping[str, Callable[[str, Mapping[str, Any]], Iterator[Problem]]] = {
    "DownwardAPIVolumeFile": partial(_field_of_a_pod, known=_FIELDS_OF_FILES),
    "EnvFromSource": partial(_one_of, kind="EnvFromSource", names=("configMapRef", "secretRef")),
    "EnvVar": _variable,
    "EnvVarSource": _variable_source,
    "LabelSelectorRequirement": _requirement,
    "NodeSelectorRequirement": _requirement,
    "PodSecurityContext": _user,
    "PodSpec": _dns,
    "Probe": _probe,
    "SecurityContext": _user,
    "Toleration": _toleration,
    "Volume": _volume,
}
