"""Containers, volumes, tolerations and labels of a pod are checked as Kubernetes' validation does.

Only what is wrong whatever is merged with it is said here: an item that Trainmaster renders too may be whole without
the field that the user's lacks. (kubernetes: pkg/apis/core/validation/validation.go)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.api.labels import check_labels, keyed, label_key_problem
from trainmaster_operator.api.merge import DIRECTIVE
from trainmaster_operator.api.nearest import VERY_SIMILAR, nearest
from trainmaster_operator.api.pod_schema.by_type import check_by_type
from trainmaster_operator.api.pod_schema.fields import POD
from trainmaster_operator.api.pod_schema.resources import WorkerResources, check_resources
from trainmaster_operator.api.pod_schema.types import pod_spec, pod_types
from trainmaster_operator.api.pod_schema.values import (
    dns_label_problem,
    port_name_problem,
    port_problem,
    subdomain_problem,
    variable_name_problem,
)
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import show
from trainmaster_operator.wire.names import AGENT_PORT

WORKER_CONTAINER = "worker"
AGENT_CONTAINER = "trainmaster-agent"
# Volumes that may be rendered, so that a container of the user's can mount them too.
RENDERED_VOLUMES = frozenset(
    f"trainmaster-{name}" for name in ("podinfo", "state", "agent", "tmp", "training", "shm", "checkpoint")
)
_AGENT_PORT_NAME = "agent"
# What the container that trains is called elsewhere: PyTorchJob, TrainJob, examples.
_OTHERS_WORKERS = frozenset({"main", "master", "node", "pytorch", "trainer", "training"})
# Longer names aren't like "worker", and comparing all of a large pod's takes time.
_LONGEST_LIKE = 8
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_MOST_USER = 2**31 - 1


def check_relations(pod: Mapping[str, Any], worker: WorkerResources) -> Iterator[Problem]:
    """Yields what is wrong with a partial PodSpec whose fields have their types. `worker`: what the job's own fields
    ask for."""
    volumes = _named(pod.get("volumes"))
    known = {name for name, _, item in volumes if name and item.get(DIRECTIVE) != "delete"}
    for position, volume in _items(pod.get("volumes")):
        yield from _volume(f"{POD}.volumes[{position}]", volume)
    yield from _containers(pod, known | RENDERED_VOLUMES, worker)
    for position, toleration in _items(pod.get("tolerations")):
        yield from _toleration(f"{POD}.tolerations[{position}]", toleration)
    yield from check_labels(f"{POD}.nodeSelector", pod.get("nodeSelector"))
    for field in ("serviceAccountName", "runtimeClassName"):
        yield from _text(f"{POD}.{field}", pod.get(field), subdomain_problem)
    yield from _user(f"{POD}.securityContext", pod.get("securityContext"))
    yield from _devices(f"{POD}.resources", pod.get("resources"))
    yield from check_by_type(pod_spec(), pod, POD)


def _devices(path: str, resources: Any) -> Iterator[Problem]:
    for kind in ("requests", "limits") if isinstance(resources, Mapping) else ():
        amounts = resources.get(kind)
        for name in amounts if isinstance(amounts, Mapping) else ():
            if "/" in str(name):
                message = "devices belong to a container, not to the pod; set spec.resources.gpus"
                yield Problem(keyed(f"{path}.{kind}", str(name)), amounts[name], message)


def _containers(pod: Mapping[str, Any], volumes: set[str], worker: WorkerResources) -> Iterator[Problem]:
    taken = {WORKER_CONTAINER: "containers", AGENT_CONTAINER: "initContainers"}
    has_worker = any(name == WORKER_CONTAINER for name, _, _ in _named(pod.get("containers")))
    for field in ("containers", "initContainers"):
        for name, position, container in _named(pod.get(field)):
            path = f"{POD}.{field}[{position}]"
            if container.get(DIRECTIVE) == "delete":
                continue
            yield from _text(f"{path}.name", name, dns_label_problem)
            if name and taken.setdefault(name, field) != field:
                message = f"{show(name)} is the name of another container; give each its own"
                yield Problem(f"{path}.name", name, message)
            is_worker = field == "containers" and name == WORKER_CONTAINER
            if not is_worker and name != AGENT_CONTAINER:
                yield from _sidecar(path, field, name, container, has_worker=has_worker)
            yield from _container(path, container, volumes, is_worker=is_worker)
            yield from _claims(f"{path}.resources.claims", container.get("resources"), pod)
            asked = worker if is_worker else WorkerResources()
            yield from check_resources(f"{path}.resources", container.get("resources"), asked)


def _claims(path: str, resources: Any, pod: Mapping[str, Any]) -> Iterator[Problem]:
    known = [name for name, _, _ in _named(pod.get("resourceClaims")) if name]
    for name, position, _ in _named(resources.get("claims") if isinstance(resources, Mapping) else None):
        if name is not None and name not in known:
            meant = nearest(name, known, VERY_SIMILAR)
            remedy = f"did you mean {meant}?" if meant else f"add it to {POD}.resourceClaims"
            yield Problem(f"{path}[{position}].name", name, f"{show(name)} is the name of no claim; {remedy}")


def _sidecar(
    path: str, field: str, name: str | None, container: Mapping[str, Any], *, has_worker: bool
) -> Iterator[Problem]:
    in_place = field == "containers" and not has_worker and name is not None
    is_like = in_place and len(str(name)) <= _LONGEST_LIKE and nearest(str(name), [WORKER_CONTAINER], VERY_SIMILAR)
    if is_like or (in_place and name in _OTHERS_WORKERS):
        message = f"{show(name)} would run beside the worker; call it worker, or give a sidecar another name"
        yield Problem(f"{path}.name", name, message)
    elif name is not None and not container.get("image"):
        remedy = "; the worker's container is called worker" if in_place else ""
        yield Problem(f"{path}.image", None, f"is missing, and {show(name)} is a container of its own{remedy}; set it")


def _container(path: str, container: Mapping[str, Any], volumes: set[str], *, is_worker: bool) -> Iterator[Problem]:
    for position, variable in _items(container.get("env")):
        yield from _variable(f"{path}.env[{position}]", variable)
    for position, source in _items(container.get("envFrom")):
        given = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        if len(given) != 1 and not _has_unknown("EnvFromSource", source):
            message = f"names {'both' if given else 'neither'}; give one of configMapRef and secretRef"
            yield Problem(f"{path}.envFrom[{position}]", None, message)
    yield from _ports(f"{path}.ports", container.get("ports"), is_worker=is_worker)
    for position, mount in _items(container.get("volumeMounts")):
        here = f"{path}.volumeMounts[{position}]"
        name = mount.get("name")
        if isinstance(name, str) and name not in volumes and mount.get(DIRECTIVE) != "delete":
            meant = nearest(name, volumes - RENDERED_VOLUMES, VERY_SIMILAR)
            remedy = f"did you mean {meant}?" if meant else f"add it to {POD}.volumes"
            yield Problem(f"{here}.name", name, f"{show(name)} is the name of no volume; {remedy}")
    for field in ("readinessProbe", "startupProbe"):
        yield from _probe(f"{path}.{field}", container.get(field))
    own = container.get("securityContext")
    context: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
    yield from _user(f"{path}.securityContext", context)
    may_not_escalate = is_worker and context.get("allowPrivilegeEscalation", False) is False
    if context.get("privileged") is True and may_not_escalate:
        message = "needs allowPrivilegeEscalation: true, which the worker has as false; set it beside"
        yield Problem(f"{path}.securityContext.privileged", True, message)


def _variable(path: str, variable: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _text(f"{path}.name", variable.get("name"), variable_name_problem)
    source = variable.get("valueFrom")
    if not isinstance(source, Mapping) or variable.get(DIRECTIVE) == "delete" or DIRECTIVE in source:
        return
    if variable.get("value"):
        yield Problem(f"{path}.valueFrom", None, "is given beside value; keep one of them")
    given = [name for name in pod_types()["EnvVarSource"].fields if source.get(name) is not None]
    if len(given) != 1 and not _has_unknown("EnvVarSource", source):
        what = " and ".join(given) if given else "no source"
        message = f"names {what}; give one, such as secretKeyRef or configMapKeyRef"
        yield Problem(f"{path}.valueFrom", None, message)


def _ports(path: str, ports: Any, *, is_worker: bool) -> Iterator[Problem]:
    names: dict[str, Any] = {_AGENT_PORT_NAME: AGENT_PORT} if is_worker else {}
    for position, port in _items(ports):
        here = f"{path}[{position}]"
        for field in ("containerPort", "hostPort"):
            if (message := port_problem(port.get(field))) is not None and (field, port[field]) != ("hostPort", 0):
                yield Problem(f"{here}.{field}", port[field], message)
        name = port.get("name")
        yield from _text(f"{here}.name", name, port_name_problem)
        number = port.get("containerPort")
        if isinstance(name, str) and names.setdefault(name, number) != number:
            yield Problem(f"{here}.name", name, f"{show(name)} is the name of another port; give each its own")


def _volume(path: str, volume: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _text(f"{path}.name", volume.get("name"), dns_label_problem)
    sources = [name for name in pod_types()["Volume"].fields if name != "name" and volume.get(name) is not None]
    if len(sources) > 1:
        message = f"names {' and '.join(sources)}; a volume has one of them"
        yield Problem(f"{path}.{sources[1]}", None, message)
    host_path = volume.get("hostPath")
    folder = host_path.get("path") if isinstance(host_path, Mapping) else None
    if isinstance(folder, str) and ".." in folder.split("/"):
        yield Problem(f"{path}.hostPath.path", folder, f"{show(folder)} goes up with '..'; use the path itself")


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
    yield from _text(f"{path}.key", key or None, label_key_problem)


def _probe(path: str, probe: Any) -> Iterator[Problem]:
    if not isinstance(probe, Mapping) or DIRECTIVE in probe:
        return
    given = [name for name in _HANDLERS if probe.get(name) is not None]
    if len(given) != 1 and not _has_unknown("Probe", probe):
        what = " and ".join(given) if given else "no way to ask"
        yield Problem(path, None, f"names {what}; give one of {', '.join(_HANDLERS)}")


def _user(path: str, context: Any) -> Iterator[Problem]:
    for field in ("runAsUser", "runAsGroup", "fsGroup") if isinstance(context, Mapping) else ():
        value = context.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value <= _MOST_USER:
            yield Problem(f"{path}.{field}", value, f"{show(value)} is no id; use 0 to {_MOST_USER}")
    if isinstance(context, Mapping) and context.get("runAsNonRoot") is True and context.get("runAsUser") == 0:
        message = "0 is root, and runAsNonRoot is true; give another user, or remove one of the two"
        yield Problem(f"{path}.runAsUser", 0, message)


def _text(path: str, value: Any, check: Any) -> Iterator[Problem]:
    if isinstance(value, str) and (message := check(value)) is not None:
        yield Problem(path, value, message)


def _has_unknown(name: str, value: Mapping[str, Any]) -> bool:
    """Returns whether there is a field that a newer Kubernetes may have, or a directive."""
    return any(field not in pod_types()[name].fields for field in value)


def _items(value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if isinstance(value, list):
        yield from ((position, item) for position, item in enumerate(value) if isinstance(item, Mapping))


def _named(value: Any) -> list[tuple[str | None, int, Mapping[str, Any]]]:
    found = []
    for position, item in _items(value):
        name = item.get("name")
        found.append((name if isinstance(name, str) else None, position, item))
    return found
