"""v1 Service of type ClusterIP; other types are refused, because the local cluster can't provide them.

A Service gets its own address, as from kube-apiserver's allocator, but the local cluster routes nothing to it: programs
here find pods by their stable names.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, FieldError, invalid
from trainmaster_local.apiserver.apimachinery.names import dns_label_problems
from trainmaster_local.apiserver.apimachinery.objectmeta import label_errors
from trainmaster_local.apiserver.resources import Admission, Column, ResourceType
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.columns import AGE, NAME, created, labels_text
from trainmaster_local.kinds.meta_validation import (
    NO_ADDRESS,
    invalid_all,
    is_address,
    port_name_problems,
    port_problems,
)

Json = dict[str, Any]

CLUSTER_NETWORK = ipaddress.ip_network("10.96.0.0/16")
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")


def _default_service(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec["type"] = spec.get("type") or "ClusterIP"
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    for port in spec.get("ports") or []:
        port["protocol"] = port.get("protocol") or "TCP"
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]
    if spec.get("publishNotReadyAddresses") is False:
        del spec["publishNotReadyAddresses"]
    spec.setdefault("internalTrafficPolicy", "Cluster")
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _families(spec: Json) -> None:
    """Sets single stack IPv4, as in a cluster with one network; a headless service without a selector claims both."""
    if spec.get("clusterIP") == "None" and not spec.get("selector"):
        spec.setdefault("ipFamilies", ["IPv4", "IPv6"])
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")


def _admit_service(obj: Json, old: Json | None, admission: Admission) -> None:
    """Assigns the service's address. Raises ApiError 422 for an address that is in use or out of range."""
    spec = obj["spec"]
    before = (old or {}).get("spec") or {}
    if admission.subresource:
        return
    for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if name not in spec and name in before:
            spec[name] = before[name]
    others = [s for s in admission.api.peek_all("services") if s["metadata"].get("uid") != obj["metadata"].get("uid")]
    taken = {s["spec"].get("clusterIP") for s in others}
    address = spec.get("clusterIP")
    if not address:
        spec["clusterIP"] = _free_address(taken)
    elif address != "None" and address != before.get("clusterIP"):
        problem = _address_problem(address, taken)
        if problem:
            error = FieldError.invalid("spec.clusterIPs", [address], problem)
            raise invalid("", "Service", obj["metadata"].get("name", ""), [error])
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    _families(spec)


def _free_address(taken: set[Any]) -> str:
    # The first 16 addresses are reserved for fixed ones (kubernetes.default is .1, DNS .10), like the static band.
    return next(str(address) for address in list(CLUSTER_NETWORK)[16:] if str(address) not in taken)


def _address_problem(address: str, taken: set[Any]) -> str:
    try:
        inside = ipaddress.ip_address(address) in CLUSTER_NETWORK
    except ValueError:
        return ""
    if not inside:
        return f"failed to allocate IP {address}: the provided network does not match the current range"
    return f"failed to allocate IP {address}: provided IP is already allocated" if address in taken else ""


def _service_errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
    ports = spec.get("ports") or []
    headless = spec.get("clusterIP") == "None"
    if not ports and not headless:
        errors.append(FieldError.required("spec.ports"))
    if spec["type"] not in _TYPES:
        errors.append(FieldError.not_supported("spec.type", spec["type"], _TYPES))
    elif spec["type"] != "ClusterIP":
        errors.append(FieldError.forbidden("spec.type", NOT_HERE))
    names: set[str] = set()
    pairs: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        errors += _port_errors(port, f"spec.ports[{index}]", len(ports) > 1, names)
        pair = (port.get("protocol"), port.get("port"))
        if pair in pairs:
            struct = (
                f'{{"Name":"","Protocol":"{pair[0]}","AppProtocol":null,"Port":{pair[1]},"TargetPort":0,"NodePort":0}}'
            )
            errors.append(FieldError(f"spec.ports[{index}]", "FieldValueDuplicate", f"Duplicate value: {struct}"))
        pairs.add(pair)
    errors += label_errors(spec.get("selector") or {}, "spec.selector")
    address = spec.get("clusterIP", "")
    if address and not headless and not is_address(address):
        errors.append(FieldError.invalid("spec.clusterIPs[0]", address, NO_ADDRESS))
    if spec["sessionAffinity"] not in ("ClientIP", "None"):
        errors.append(FieldError.not_supported("spec.sessionAffinity", spec["sessionAffinity"], ("ClientIP", "None")))
    elif spec["sessionAffinity"] != "None":
        errors.append(FieldError.forbidden("spec.sessionAffinity", NOT_HERE))
    return errors


def _port_errors(port: Json, field: str, must_be_named: bool, names: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    name = port.get("name", "")
    if must_be_named and not name:
        errors.append(FieldError.required(f"{field}.name"))
    elif name:
        errors += invalid_all(f"{field}.name", name, dns_label_problems(name))
        if name in names:
            errors.append(FieldError.duplicate(f"{field}.name", name))
        names.add(name)
    errors += invalid_all(f"{field}.port", port.get("port", 0), port_problems(port.get("port", 0)))
    if port["protocol"] not in _PROTOCOLS:
        errors.append(FieldError.not_supported(f"{field}.protocol", port["protocol"], _PROTOCOLS))
    target = port.get("targetPort", 0)
    problems = port_name_problems(target) if isinstance(target, str) else port_problems(target)
    return errors + invalid_all(f"{field}.targetPort", target, problems)


def _service_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    before, after = old["spec"].get("clusterIP"), new["spec"].get("clusterIP")
    if before and before != after:
        detail = "may not change once set"
        errors.append(FieldError.invalid("spec.clusterIPs[0]", [after] if after else [], detail))
    return errors + _service_errors(new)


def _prepare_service(obj: Json) -> None:
    obj["status"] = {"loadBalancer": {}}


def _ports_text(spec: Json) -> str:
    return ",".join(f"{port['port']}/{port['protocol']}" for port in spec.get("ports") or []) or "<none>"


def _service_row(obj: Json, now: float) -> list[Any]:
    spec = obj["spec"]
    return [
        obj["metadata"]["name"],
        spec["type"],
        spec.get("clusterIP") or "<none>",
        ",".join(spec.get("externalIPs") or []) or "<none>",
        _ports_text(spec),
        created(obj, now),
        labels_text(spec.get("selector")),
    ]


_SPEC = "io.k8s.api.core.v1.ServiceSpec"

SERVICE = ResourceType(
    group="",
    version="v1",
    kind="Service",
    plural="services",
    singular="service",
    namespaced=True,
    short_names=("svc",),
    categories=("all",),
    schema=definition("io.k8s.api.core.v1.Service"),
    zero={"metadata": {}, "spec": {}, "status": {"loadBalancer": {}}},
    has_status=True,
    default=_default_service,
    admit=_admit_service,
    prepare_create=_prepare_service,
    validate_create=_service_errors,
    validate_update=_service_update_errors,
    # Relaxed from DNS-1035 in 1.36 (KEP-5311), as the recordings show.
    name_rule=dns_label_problems,
    columns=(
        NAME,
        Column("Type", description=description(_SPEC, "type")),
        Column("Cluster-IP", description=description(_SPEC, "clusterIP")),
        Column("External-IP", description=description(_SPEC, "externalIPs")),
        Column("Port(s)", description=description(_SPEC, "ports")),
        AGE,
        Column("Selector", description=description(_SPEC, "selector"), priority=1),
    ),
    row=_service_row,
    selectable=("spec.clusterIP", "spec.type"),
    answers_deleted_object=True,
)
