"""networking.k8s.io/v1 NetworkPolicy is validated as in kube-apiserver, stored, and not enforced."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.kinds.meta_validation import (
    invalid_all,
    label_selector_errors,
    port_name_problems,
    port_problems,
)

Json = dict[str, Any]

_TYPES = ("Ingress", "Egress")
_PROTOCOLS = ("TCP", "UDP", "SCTP")


def _default_network_policy(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if "policyTypes" not in spec:
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or []:
            for port in rule.get("ports") or []:
                port.setdefault("protocol", "TCP")


def _errors(obj: Json) -> list[FieldError]:
    spec = obj["spec"]
    errors = label_selector_errors(spec["podSelector"], "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(spec.get(direction) or []):
            here = f"spec.{direction}[{number}]"
            for index, port in enumerate(rule.get("ports") or []):
                errors += _port_errors(port, f"{here}.ports[{index}]")
            for index, peer in enumerate(rule.get(peers) or []):
                errors += _peer_errors(peer, f"{here}.{peers}[{index}]")
    types = spec["policyTypes"]
    if len(types) > len(_TYPES):
        return [*errors, FieldError.invalid("spec.policyTypes", types, "may not specify more than two policyTypes")]
    for index, kind in enumerate(types):
        if kind not in _TYPES:
            errors.append(FieldError.not_supported(f"spec.policyTypes[{index}]", kind, _TYPES))
    return errors


def _port_errors(entry: Json, path: str) -> Iterator[FieldError]:
    protocol, port, end = entry["protocol"], entry.get("port"), entry.get("endPort")
    if protocol not in _PROTOCOLS:
        yield FieldError.not_supported(f"{path}.protocol", protocol, _PROTOCOLS)
    if isinstance(port, int):
        yield from invalid_all(f"{path}.port", port, port_problems(port))
        if end is not None:
            if end < port:
                yield FieldError.invalid(f"{path}.endPort", port, "must be greater than or equal to `port`")
            yield from invalid_all(f"{path}.endPort", end, port_problems(end))
        return
    if end is not None:
        problem = "`port` is not specified" if port is None else "`port` is non-numeric"
        yield FieldError.invalid(f"{path}.endPort", end, f"may not be specified when {problem}")
    if port is not None:
        yield from invalid_all(f"{path}.port", port, port_name_problems(port))


def _peer_errors(peer: Json, path: str) -> Iterator[FieldError]:
    for name in ("podSelector", "namespaceSelector"):
        if peer.get(name) is not None:
            yield from label_selector_errors(peer[name], f"{path}.{name}")
    block = peer.get("ipBlock")
    if block is not None:
        yield from _block_errors(block, f"{path}.ipBlock")
    named = [name for name in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(name) is not None]
    if not named:
        yield FieldError.required(path, "must specify a peer")
    elif block is not None and len(named) > 1:
        yield FieldError.forbidden(path, "may not specify both ipBlock and another peer")


def _block_errors(block: Json, path: str) -> Iterator[FieldError]:
    if not block.get("cidr"):
        yield FieldError.required(f"{path}.cidr")
        return
    whole = _network(block["cidr"])
    if whole is None:
        yield FieldError.invalid(f"{path}.cidr", block["cidr"], _NO_CIDR)
    for index, text in enumerate(block.get("except") or []):
        part = _network(text)
        if part is None:
            yield FieldError.invalid(f"{path}.except[{index}]", text, _NO_CIDR)
        elif whole is not None and not (
            part.version == whole.version and part.prefixlen > whole.prefixlen and part.network_address in whole
        ):
            yield FieldError.invalid(f"{path}.except[{index}]", text, "must be a strict subset of `cidr`")


_NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Returns the network of a CIDR; None for an invalid one. Host bits may be set, as kube-apiserver allows."""
    if "/" not in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


NETWORK_POLICY = ResourceType(
    group="networking.k8s.io",
    version="v1",
    kind="NetworkPolicy",
    plural="networkpolicies",
    singular="networkpolicy",
    namespaced=True,
    short_names=("netpol",),
    schema=definition("io.k8s.api.networking.v1.NetworkPolicy"),
    zero={"metadata": {}, "spec": {"podSelector": {}}},
    default=_default_network_policy,
    validate_create=_errors,
    validate_update=lambda new, old: _errors(new),
    tracks_generation=True,
)
