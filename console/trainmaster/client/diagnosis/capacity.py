"""Compares pods with the nodes' free resources, and parses the scheduler's messages about pods that fit nowhere.

A node's free amount is its allocatable amount minus the requests of its pods. If a pod fits nowhere, kube-scheduler
1.25 to 1.36 writes (FitError in pkg/scheduler/framework):

    0/7 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {dedicated: infra},
    2 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 nodes are available: ...

Each part names a reason, after the number of nodes that are excluded for it. A node is counted only for the first
filter that it fails. If this filter checks resources, the node is counted for each resource that it lacks, so the sum
can exceed the number of nodes. A part without a number excludes every node. Newer schedulers don't name taints
("untolerated taint(s)"). Volcano writes "are unavailable".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from trainmaster.client.objects import Object, at, items, name_of, text
from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.wire.values import mapping

_ONE = {"GPUs": "GPU", "pods": "pod", "places for pods": "place for a pod"}
_NOUNS = {"cpu": "CPU", "memory": "memory", "ephemeral-storage": "local storage", "pods": "places for pods"}
_BEGINNING = re.compile(r"0/\d+ nodes are (?:un)?available: ")
# A dot ends a sentence if a space or nothing follows. Other dots belong to names of resources and taints.
_END = re.compile(r"\.(?= |$)")
_COUNT = re.compile(r"(\d+) ")
# Pairs of a kind and its message's pattern. The first match is used.
_KINDS = (
    ("claim missing", r'persistentvolumeclaim "([^"]+)" (?:not found|is being deleted)'),
    ("claim unbound", r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind|"
                      r"bound to non-existent pv|did not have enough free storage"),
    ("volume zone", r"volume node affinity conflict|didn't match PersistentVolume's node affinity|"
                    r"no available volume zone"),
    ("volume limit", r"exceed max volume count|max volume count"),
    ("resource", r"Insufficient (\S+)"),
    ("resource", r"(Too many pods)"),
    ("device", r"cannot allocate all claims|resourceclaim|claim .* not (?:found|available)|DeviceClass"),
    ("port", r"free ports for the requested pod ports"),
    ("spread", r"pod topology spread constraints"),
    ("pod affinity", r"pod (?:anti-)?affinity|pods anti-affinity"),
    ("cordoned", r"were unschedulable|taint \{node\.kubernetes\.io/unschedulable"),
    ("pressure", r"taint \{node\.kubernetes\.io/(disk-pressure|memory-pressure|pid-pressure)"),
    ("not ready", r"taint \{node\.kubernetes\.io/(?:not-ready|unreachable)|were not ready"),
    ("taint", r"untolerated taint(?: \{([^}]*)\})?|had taint \{([^}]*)\}"),
    ("selector", r"node affinity|node selector|didn't match the requested node name"),
)  # fmt: skip


@dataclass(frozen=True)
class Room:
    """Room is a node's allocatable and free amount of a resource. `free` is None if the pods weren't read."""

    node: str
    allocatable: Decimal
    free: Decimal | None


@dataclass(frozen=True)
class Exclusion:
    """Exclusion is a reason why nodes reject the pod, and the number of these nodes (0 if the message gives none).

    `about` names the resource, taint or claim.
    """

    kind: str
    nodes: int
    text: str
    about: str = ""


def requests_of(pod: Object) -> Mapping[str, Decimal]:
    """Returns a pod's request for each resource: the containers' sum, or an init container's request if larger."""
    total: dict[str, Decimal] = {"pods": Decimal(1)}
    for container in items(pod, "spec", "containers"):
        for name, amount in _requests(container):
            total[name] = total.get(name, Decimal(0)) + amount
    for container in items(pod, "spec", "initContainers"):
        for name, amount in _requests(container):
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def rooms(nodes: Iterable[Object], pods: Iterable[Object] | None, resource: str) -> list[Room]:
    """Returns how much of a resource each node has and has free. The node with the most free comes first."""
    used: dict[str, Decimal] = {}
    for pod in pods or ():
        host = text(pod, "spec", "nodeName")
        if host and text(pod, "status", "phase") not in ("Succeeded", "Failed"):
            used[host] = used.get(host, Decimal(0)) + requests_of(pod).get(resource, Decimal(0))
    found = []
    for node in nodes:
        name = name_of(node)
        amount = amount_of(at(node, "status", "allocatable", resource))
        found.append(Room(name, amount, None if pods is None else amount - used.get(name, Decimal(0))))
    return sorted(found, key=lambda room: (-(room.allocatable if room.free is None else room.free), room.node))


def shown(amount: Decimal, resource: str) -> str:
    """Formats an amount as in a manifest: 8, 500m, 128Gi."""
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if abs(amount) >= size:
                return f"{float(amount / size):.4g}{suffix}"
    return str(int(amount)) if amount == amount.to_integral_value() else f"{int(amount * 1000)}m"


def resource_noun(resource: str, amount: object = None) -> str:
    """Returns the usual word for a resource, or for this amount of it: 1 GPU, 2 GPUs."""
    noun = _NOUNS.get(resource) or ("GPUs" if resource.endswith("/gpu") else resource)
    return _ONE.get(noun, noun) if str(amount) == "1" else noun


def too_little(resource: str) -> str:
    """Names a node's shortage of a resource: too little memory, too few GPUs."""
    return f"too {'few' if is_counted(resource) else 'little'} {resource_noun(resource)}"


def is_counted(resource: str) -> bool:
    """Returns whether a resource is counted, like GPUs, rather than measured, like memory."""
    return resource not in ("cpu", "memory", "ephemeral-storage")


def _requests(container: Object) -> Iterable[tuple[str, Decimal]]:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return ((name, amount_of(value)) for name, value in asked.items())


def amount_of(value: object) -> Decimal:
    """Parses a quantity. Anything else counts as 0."""
    try:
        return quantity(value) if isinstance(value, int | str) else Decimal(0)
    except (ValueError, KeyError, ArithmeticError):
        return Decimal(0)


def read_exclusions(message: str) -> list[Exclusion] | None:
    """Parses a scheduler's message; returns None for any other message."""
    beginning = _BEGINNING.search(message)
    if beginning is None:
        return None
    rest = message[beginning.end() :]
    end = _END.search(rest)
    parts = re.split(r", (?=\d+ )", rest[: end.start()] if end else rest)
    return [_exclusion(part.strip()) for part in parts if part.strip()]


def _exclusion(part: str) -> Exclusion:
    count = _COUNT.match(part)
    nodes, words = (int(count[1]), part[count.end() :]) if count else (0, part)
    for kind, pattern in _KINDS:
        if match := re.search(pattern, words):
            about = next((group for group in match.groups() if group), "")
            return Exclusion(kind, nodes, words, "pods" if about == "Too many pods" else about)
    return Exclusion("other", nodes, words)
