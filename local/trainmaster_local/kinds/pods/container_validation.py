"""Validates containers as in kubernetes `pkg/apis/core/validation/validation.go`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, FieldError
from trainmaster_local.apiserver.apimachinery.names import (
    dns_label_problems,
    dns_subdomain_problems,
    qualified_name_problems,
)
from trainmaster_local.kinds.meta_validation import (
    NOT_NEGATIVE,
    config_key_problems,
    invalid_all,
    not_negative,
    port_name_problems,
    port_problems,
)
from trainmaster_local.kinds.pods.security_validation import container_security_errors
from trainmaster_local.quantities import Quantity, parse

Json = dict[str, Any]

_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
# The kubelet supports these.
_PROBES, _HOOKS = ("exec", "httpGet"), ("exec", "sleep")
_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("FallbackToLogsOnError", "File")
_PAGES = "hugepages-"
_SIGNED_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_ENV_RESOURCES = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)


def container_list_errors(
    containers: list[Json], field: str, volumes: set[str], *, init: bool, taken: set[str]
) -> list[FieldError]:
    """Validates all containers of one list, and adds their names to `taken`, the pod's container names so far."""
    errors: list[FieldError] = []
    for index, container in enumerate(containers):
        here = f"{field}[{index}]"
        errors += _container_errors(container, here, volumes)
        name = container.get("name", "")
        if name and name in taken:
            errors.append(FieldError.duplicate(f"{here}.name", name))
        taken.add(name)
        sidecar = init and container.get("restartPolicy") == "Always"
        if init and not sidecar:
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if probe in container:
                    detail = "may not be set for init containers without restartPolicy=Always"
                    errors.append(FieldError.forbidden(f"{here}.{probe}", detail))
            if "lifecycle" in container:
                detail = "may not be set for init containers without restartPolicy=Always"
                errors.append(FieldError.forbidden(f"{here}.lifecycle", detail))
            continue
        for hook, action in sorted((container.get("lifecycle") or {}).items()):
            if isinstance(action, dict):
                errors += _handler_errors(action, f"{here}.lifecycle.{hook}", _HOOKS)
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in container:
                errors += _probe_errors(container[probe], f"{here}.{probe}", once=probe != "readinessProbe")
    return errors


def _container_errors(container: Json, field: str, volumes: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    name = container.get("name", "")
    if name:
        errors += invalid_all(f"{field}.name", name, dns_label_problems(name))
    else:
        errors.append(FieldError.required(f"{field}.name"))
    image = container.get("image", "")
    if not image:
        errors.append(FieldError.required(f"{field}.image"))
    policy = container.get("terminationMessagePolicy", "")
    if policy not in _MESSAGE_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.terminationMessagePolicy", policy, _MESSAGE_POLICIES))
    errors += _port_errors(container.get("ports") or [], f"{field}.ports")
    errors += _env_errors(container.get("env") or [], f"{field}.env")
    errors += _env_from_errors(container.get("envFrom") or [], f"{field}.envFrom")
    privileged = bool((container.get("securityContext") or {}).get("privileged"))
    errors += _mount_errors(container.get("volumeMounts") or [], f"{field}.volumeMounts", volumes, privileged)
    policy = container.get("imagePullPolicy", "")
    if policy not in _PULL_POLICIES:
        errors.append(FieldError.not_supported(f"{field}.imagePullPolicy", policy, _PULL_POLICIES))
    errors += resource_errors(container.get("resources") or {}, f"{field}.resources")
    errors += container_security_errors(container.get("securityContext") or {}, f"{field}.securityContext")
    return errors


def _port_errors(ports: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"{field}[{index}]"
        if name := port.get("name"):
            if problems := port_name_problems(name):
                errors += invalid_all(f"{here}.name", name, problems)
            elif name in names:
                errors.append(FieldError.duplicate(f"{here}.name", name))
            names.add(name)
        number = port.get("containerPort", 0)
        if number == 0:
            errors.append(FieldError.required(f"{here}.containerPort"))
        else:
            errors += invalid_all(f"{here}.containerPort", number, port_problems(number))
        if host := port.get("hostPort"):
            errors += invalid_all(f"{here}.hostPort", host, port_problems(host))
        protocol = port.get("protocol", "")
        if protocol not in _PROTOCOLS:
            errors.append(FieldError.not_supported(f"{here}.protocol", protocol, _PROTOCOLS))
    return errors


def env_name_problems(name: str) -> list[str]:
    """Checks a variable's name, as relaxed since Kubernetes 1.32 (`IsRelaxedEnvVarName`)."""
    if re.fullmatch(r"[ -<>-~]+", name):
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def _env_errors(env: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, variable in enumerate(env):
        here = f"{field}[{index}]"
        name = variable.get("name", "")
        if name:
            errors += invalid_all(f"{here}.name", name, env_name_problems(name))
        else:
            errors.append(FieldError.required(f"{here}.name"))
        if "valueFrom" in variable:
            errors += _env_source_errors(variable, f"{here}.valueFrom")
    return errors


def _env_source_errors(variable: Json, field: str) -> list[FieldError]:
    source = variable["valueFrom"]
    given = [name for name in _ENV_SOURCES if name in source]
    errors: list[FieldError] = []
    if "fieldRef" in source:
        errors += field_ref_errors(
            source["fieldRef"], f"{field}.fieldRef", _ENV_FIELDS, quoted=("annotations", "labels")
        )
    if "resourceFieldRef" in source:
        errors += _resource_ref_errors(source["resourceFieldRef"], f"{field}.resourceFieldRef")
    for name in ("configMapKeyRef", "secretKeyRef"):
        if name in source:
            referred = source[name].get("name", "")
            errors += invalid_all(f"{field}.{name}.name", referred, dns_subdomain_problems(referred))
            errors += _key_ref_errors(source[name], f"{field}.{name}")
    if variable.get("value"):
        if given:
            errors.append(FieldError.invalid(field, "", "may not be specified when `value` is not empty"))
    elif not given:
        detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        errors.append(FieldError.invalid(field, "", detail))
    elif len(given) > 1:
        errors.append(FieldError.invalid(field, "", "may not have more than one field specified at a time"))
    return errors


def _key_ref_errors(reference: Json, field: str) -> list[FieldError]:
    if key := reference.get("key"):
        return invalid_all(f"{field}.key", key, config_key_problems(key))
    return [FieldError.required(f"{field}.key")]


def field_ref_errors(
    reference: Json, field: str, supported: Iterable[str], quoted: tuple[str, ...] = ()
) -> list[FieldError]:
    """Validates a downward-API field: one of `supported`, or a key of a map in `quoted` (`metadata.labels['app']`)."""
    path = reference.get("fieldPath", "")
    if reference.get("apiVersion", "v1") != "v1":
        return [FieldError.not_supported(f"{field}.apiVersion", reference["apiVersion"], ("v1",))]
    if not path:
        return [FieldError.required(f"{field}.fieldPath")]
    if match := re.fullmatch(r"metadata\.(annotations|labels)\['(.*)'\]", path):
        kind, key = match.groups()
        problems = qualified_name_problems(key.lower() if kind == "annotations" else key)
        return invalid_all(f"{field}.fieldPath", key, problems) if kind in quoted else []
    if path in ("metadata.annotations", "metadata.labels", "status.phase") and path not in supported:
        return [FieldError.not_supported(f"{field}.fieldPath", path, sorted(supported))]
    if path not in supported:
        detail = f"error converting fieldPath: field label not supported: {path}"
        return [FieldError.invalid(f"{field}.fieldPath", path, detail)]
    return []


def _resource_ref_errors(reference: Json, field: str) -> list[FieldError]:
    resource = reference.get("resource", "")
    if not resource:
        return [FieldError.required(f"{field}.resource")]
    if resource not in _ENV_RESOURCES and not re.match(r"(limits|requests)\.hugepages-", resource):
        return [FieldError.not_supported(f"{field}.resource", resource, _ENV_RESOURCES)]
    return []


def _env_from_errors(sources: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, source in enumerate(sources):
        here = f"{field}[{index}]"
        if prefix := source.get("prefix"):
            errors += invalid_all(f"{here}.prefix", prefix, env_name_problems(prefix))
        given = [name for name in ("configMapRef", "secretRef") if name in source]
        for name in given:
            if not source[name].get("name"):
                errors.append(FieldError.required(f"{here}.{name}.name"))
        if not given:
            errors.append(FieldError.invalid(here, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(given) > 1:
            errors.append(FieldError.invalid(here, "", "may not have more than one field specified at a time"))
    return errors


def _mount_errors(mounts: list[Json], field: str, volumes: set[str], privileged: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        here = f"{field}[{index}]"
        name, path = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(FieldError.required(f"{here}.name"))
        elif name not in volumes:
            errors.append(FieldError.not_found(f"{here}.name", name))
        if not path:
            errors.append(FieldError.required(f"{here}.mountPath"))
        if path in paths:
            errors.append(FieldError.invalid(f"{here}.mountPath", path, "must be unique"))
        paths.add(path)
        for part in ("subPath", "subPathExpr"):
            if part in mount:
                # Kubernetes omits the index in these.
                errors += relative_path_errors(mount[part], f"{field}.{part}")
        propagation = mount.get("mountPropagation", "None")
        if propagation not in _PROPAGATIONS:
            errors.append(FieldError.not_supported(f"{field}.mountPropagation", propagation, _PROPAGATIONS))
        elif propagation == "Bidirectional" and not privileged:
            detail = "Bidirectional mount propagation is available only to privileged containers"
            errors.append(FieldError.forbidden(f"{field}.mountPropagation", detail))
        if mount.get("subPath") and mount.get("subPathExpr"):
            value = mount["subPathExpr"]
            errors.append(
                FieldError.invalid(f"{here}.subPathExpr", value, "subPathExpr and subPath are mutually exclusive")
            )
    return errors


def relative_path_errors(path: str, field: str) -> list[FieldError]:
    """Validates a path below a volume's root: relative, and without `..`."""
    errors = []
    if path.startswith("/"):
        errors.append(FieldError.invalid(field, path, "must be a relative path"))
    if ".." in path.split("/"):
        errors.append(FieldError.invalid(field, path, "must not contain '..'"))
    return errors


def resource_errors(resources: Json, field: str) -> list[FieldError]:
    """Validates limits and requests of a container (`ValidateContainerResourceRequirements`)."""
    errors: list[FieldError] = []
    limits = {name: parse(value) for name, value in (resources.get("limits") or {}).items()}
    requests = {name: parse(value) for name, value in (resources.get("requests") or {}).items()}
    for name, quantity in sorted(limits.items()):
        errors += _quantity_errors(name, quantity, f"{field}.limits[{name}]")
    for name, quantity in sorted(requests.items()):
        here = f"{field}.requests"
        errors += _quantity_errors(name, quantity, f"{here}[{name}]")
        limit = limits.get(name)
        if limit is not None:
            if quantity.value != limit.value and not is_overcommit_allowed(name):
                detail = f"must be equal to {name} limit of {limit}"
                errors.append(FieldError.invalid(here, str(quantity), detail))
            elif quantity.value > limit.value:
                detail = f"must be less than or equal to {name} limit of {limit}"
                errors.append(FieldError.invalid(here, str(quantity), detail))
        elif not is_overcommit_allowed(name):
            detail = "Limit must be set for non overcommitable resources"
            errors.append(FieldError.required(f"{field}.limits", detail))
    named = limits.keys() | requests.keys()
    if any(name.startswith(_PAGES) for name in named) and not named & {"cpu", "memory"}:
        errors.append(FieldError.forbidden(field, "HugePages require cpu or memory"))
    for kind, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            if name.startswith(_PAGES) and quantity.value % parse(name.removeprefix(_PAGES)).value:
                detail = f"{quantity} is not positive integer multiple of {name}"
                errors.append(FieldError.invalid(f"{field}.{kind}[{name}]", str(quantity), detail))
    return errors


def is_overcommit_allowed(name: str) -> bool:
    """Returns whether the resource may be overcommitted:

    CPU, memory and the like, but not huge pages or extended resources.
    """
    return is_native_resource(name) and not name.startswith("hugepages-")


def is_native_resource(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def resource_name_errors(name: str, field: str) -> list[FieldError]:
    """Validates a container's resource name: `cpu`, or one with a domain."""
    errors = invalid_all(field, name, qualified_name_problems(name))
    if not errors and "/" not in name and name not in _SIGNED_RESOURCES and not name.startswith("hugepages-"):
        errors.append(FieldError.invalid(field, name, "must be a standard resource type or fully qualified"))
        errors.append(FieldError.invalid(field, name, "must be a standard resource for containers"))
    return errors


def _quantity_errors(name: str, quantity: Quantity, field: str) -> list[FieldError]:
    errors = resource_name_errors(name, field)
    if quantity.value < 0:
        errors.append(FieldError.invalid(field, str(quantity), NOT_NEGATIVE))
    if not is_native_resource(name) and not quantity.is_integer:
        errors.append(FieldError.invalid(field, str(quantity), "must be an integer"))
    return errors


def _probe_errors(probe: Json, field: str, *, once: bool) -> list[FieldError]:
    errors = _handler_errors(probe, field, _PROBES)
    for name in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        errors += not_negative(probe, name, field)
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        detail = "must be greater than 0"
        errors.append(FieldError.invalid(f"{field}.terminationGracePeriodSeconds", grace, detail))
    if once and probe["successThreshold"] != 1:
        errors.append(FieldError.invalid(f"{field}.successThreshold", probe["successThreshold"], "must be 1"))
    return errors


def _handler_errors(handler: Json, field: str, known: Iterable[str]) -> list[FieldError]:
    given = [name for name in _HANDLERS if name in handler]
    errors = [FieldError.forbidden(f"{field}.{name}", "may not specify more than 1 handler type") for name in given[1:]]
    if not given:
        return [FieldError.required(field, "must specify a handler type")]
    name = given[0]
    action, here = handler[name], f"{field}.{name}"
    if name not in known:
        errors.append(FieldError.forbidden(here, NOT_HERE))
    elif name == "exec" and not action.get("command"):
        errors.append(FieldError.required(f"{here}.command"))
    elif name == "httpGet":
        if not action.get("path"):
            errors.append(FieldError.required(f"{here}.path"))
        port = action.get("port", 0)
        problems = port_problems(port) if isinstance(port, int) else port_name_problems(port)
        errors += invalid_all(f"{here}.port", port, problems)
        if action.get("scheme") not in ("HTTP", "HTTPS"):
            errors.append(FieldError.not_supported(f"{here}.scheme", action.get("scheme", ""), ("HTTP", "HTTPS")))
    return errors
