"""Nodes and their use: v1 Node, scheduling.k8s.io/v1 PriorityClass, coordination.k8s.io/v1 Lease."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import qualified_name_problems
from trainmaster_local.apiserver.resources import Column, ResourceType
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.meta_validation import invalid_all
from trainmaster_local.kinds.pods.defaults import canonical_quantities

Json = dict[str, Any]

_ROLE = "node-role.kubernetes.io/"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_UNKNOWN = "<unknown>"


def _default_node(node: Json) -> None:
    node.setdefault("spec", {})
    status = node.setdefault("status", {})
    for name in ("capacity", "allocatable"):
        canonical_quantities(status.get(name), "Node", "v1")
    if "allocatable" not in status and status.get("capacity"):
        status["allocatable"] = dict(status["capacity"])


def _node_errors(node: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(node["spec"].get("taints") or []):
        here = f"spec.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += invalid_all(f"{here}.key", key, qualified_name_problems(key))
        if not effect:
            errors.append(FieldError.required(f"{here}.effect", "must be non-empty"))
        elif effect not in _EFFECTS:
            errors.append(FieldError.not_supported(f"{here}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            errors.append(FieldError.duplicate(here, taint))
        seen.add((key, effect))
    return errors


def _roles(labels: Json) -> str:
    roles = {key[len(_ROLE) :] for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(roles)) or "<none>"


def _node_status(node: Json) -> str:
    conditions = {c["type"]: c.get("status") for c in (node.get("status") or {}).get("conditions") or []}
    words = []
    if "Ready" in conditions:
        words.append("Ready" if conditions["Ready"] == "True" else "NotReady")
    else:
        words.append("Unknown")
    if node["spec"].get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_row(node: Json, now: float) -> list[Any]:
    status = node.get("status") or {}
    info = status.get("nodeInfo") or {}
    addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or [])}
    return [
        node["metadata"]["name"],
        _node_status(node),
        _roles(node["metadata"].get("labels") or {}),
        created(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or _UNKNOWN,
        info.get("kernelVersion") or _UNKNOWN,
        info.get("containerRuntimeVersion") or _UNKNOWN,
    ]


_INFO = "io.k8s.api.core.v1.NodeSystemInfo"
_ADDRESSES = description("io.k8s.api.core.v1.NodeStatus", "addresses")
_ZERO_INFO = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "",
)

NODE = ResourceType(
    group="",
    version="v1",
    kind="Node",
    plural="nodes",
    singular="node",
    namespaced=False,
    short_names=("no",),
    schema=definition("io.k8s.api.core.v1.Node"),
    zero={
        "metadata": {},
        "spec": {},
        "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": _ZERO_INFO},
    },
    has_status=True,
    default=_default_node,
    validate_create=_node_errors,
    validate_update=lambda new, old: _node_errors(new),
    columns=(
        NAME,
        Column("Status", description="The status of the node"),
        Column("Roles", description="The roles of the node"),
        AGE,
        Column("Version", description=description(_INFO, "kubeletVersion")),
        Column("Internal-IP", description=_ADDRESSES, priority=1),
        Column("External-IP", description=_ADDRESSES, priority=1),
        Column("OS-Image", description=description(_INFO, "osImage"), priority=1),
        Column("Kernel-Version", description=description(_INFO, "kernelVersion"), priority=1),
        Column("Container-Runtime", description=description(_INFO, "containerRuntimeVersion"), priority=1),
    ),
    row=_node_row,
    selectable=("spec.unschedulable",),
    selectable_values=lambda node: {"spec.unschedulable": str(bool(node["spec"].get("unschedulable"))).lower()},
)


def _default_priority(obj: Json) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def _priority_errors(obj: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    name, value = obj["metadata"].get("name", ""), obj["value"]
    if name.startswith("system-"):
        detail = "priority class names with 'system-' prefix are reserved for system use only. error: " + (
            f"{name} is not a known system priority class"
        )
        errors.append(FieldError.forbidden("metadata.name", detail))
    if value > 1000000000:
        detail = "maximum allowed value of a user defined priority is 1000000000"
        errors.append(FieldError.forbidden("value", detail))
    if obj["preemptionPolicy"] not in ("Never", "PreemptLowerPriority"):
        supported = ("PreemptLowerPriority", "Never")
        errors.append(FieldError.not_supported("preemptionPolicy", obj["preemptionPolicy"], supported))
    return errors


def _priority_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    if new["value"] != old["value"]:
        errors.append(FieldError.forbidden("value", "may not be changed in an update."))
    if new["preemptionPolicy"] != old["preemptionPolicy"]:
        errors.append(FieldError.invalid("preemptionPolicy", new["preemptionPolicy"], "field is immutable"))
    return errors


_PRIORITY = "io.k8s.api.scheduling.v1.PriorityClass"

PRIORITY_CLASS = ResourceType(
    group="scheduling.k8s.io",
    version="v1",
    kind="PriorityClass",
    plural="priorityclasses",
    singular="priorityclass",
    namespaced=False,
    short_names=("pc",),
    schema=definition(_PRIORITY),
    zero={"metadata": {}, "value": 0},
    default=_default_priority,
    validate_create=_priority_errors,
    validate_update=_priority_update_errors,
    tracks_generation=True,
)


def _lease_errors(obj: Json) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        errors.append(FieldError.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    transitions = spec.get("leaseTransitions")
    if transitions is not None and transitions < 0:
        errors.append(FieldError.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    return errors


def _default_lease(obj: Json) -> None:
    obj.setdefault("spec", {})


LEASE = ResourceType(
    group="coordination.k8s.io",
    version="v1",
    kind="Lease",
    plural="leases",
    singular="lease",
    namespaced=True,
    schema=definition("io.k8s.api.coordination.v1.Lease"),
    zero={"metadata": {}, "spec": {}},
    default=_default_lease,
    validate_create=_lease_errors,
    validate_update=lambda new, old: _lease_errors(new),
    create_on_update=True,
)

NODE_TYPES = (NODE, PRIORITY_CLASS, LEASE)
