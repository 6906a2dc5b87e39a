"""What nodes have free is what they can give (allocatable) less what the pods on them request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from trainmaster.client.diagnosis.objects import Object, condition, items, name_of, text
from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.wire.values import mapping

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Room:
    """Room is one node's: what it can give of a resource, and what is free of it (None: its pods weren't read)."""

    node: str
    allocatable: Decimal
    free: Decimal | None


def requests_of(pod: Object) -> Mapping[str, Decimal]:
    """Returns what a pod requests: its containers together, or its largest init container where that is more."""
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in items(pod, "spec", "containers"):
        for name, amount in _requests(container):
            total[name] = total.get(name, Decimal(0)) + amount
    for container in items(pod, "spec", "initContainers"):
        for name, amount in _requests(container):
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def rooms(nodes: Iterable[Object], pods: Iterable[Object] | None, resource: str) -> list[Room]:
    """Returns the nodes' room for a resource, the most free first."""
    used: dict[str, Decimal] = {}
    for pod in pods or ():
        host = text(pod, "spec", "nodeName")
        if host and text(pod, "status", "phase") not in _ENDED:
            used[host] = used.get(host, Decimal(0)) + requests_of(pod).get(resource, Decimal(0))
    found = []
    for node in nodes:
        name = name_of(node)
        amount = _amount(mapping(mapping(node.get("status")).get("allocatable")).get(resource))
        found.append(Room(name, amount, None if pods is None else amount - used.get(name, Decimal(0))))
    return sorted(found, key=lambda room: (-(room.allocatable if room.free is None else room.free), room.node))


def is_ready(node: Object) -> bool:
    """Returns whether the kubelet says so."""
    return text(condition(node, "Ready"), "status") == "True"


def shown(amount: Decimal, resource: str) -> str:
    """Returns an amount as a manifest has it: 8, 500m, 128Gi."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if abs(amount) >= size:
                return f"{float(amount / size):.4g}{suffix}"
    if amount == amount.to_integral_value():
        return str(int(amount))
    return f"{int(amount * 1000)}m"


def resource_noun(resource: str) -> str:
    """Returns what a person calls a resource."""
    known = {"cpu": "CPU", "memory": "memory", "ephemeral-storage": "local storage", "pods": "places for pods"}
    if resource in known:
        return known[resource]
    return "GPUs" if resource.endswith("/gpu") else resource


def too_little(resource: str) -> str:
    """Returns what a node lacks that can't hold a pod: too little memory, too few GPUs."""
    return f"too {'few' if is_counted(resource) else 'little'} {resource_noun(resource)}"


def is_counted(resource: str) -> bool:
    """Returns whether a person counts a resource, as GPUs, and doesn't measure it, as memory."""
    return resource not in ("cpu", "memory", "ephemeral-storage")


def _requests(container: Object) -> Iterable[tuple[str, Decimal]]:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return ((name, _amount(value)) for name, value in asked.items())


def _amount(value: object) -> Decimal:
    try:
        return quantity(value) if isinstance(value, int | str) else Decimal(0)
    except (ValueError, KeyError, ArithmeticError):
        return Decimal(0)
