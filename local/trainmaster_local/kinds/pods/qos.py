"""The quality-of-service class of a pod (kubernetes `pkg/apis/core/helper/qos`)."""

from __future__ import annotations

from typing import Any

from trainmaster_local.kinds.pods.defaults import containers_of
from trainmaster_local.quantities import parse_quantity

_COUNTED = ("cpu", "memory")


def qos_class(spec: dict[str, Any]) -> str:
    """Returns the class of a pod.

    `BestEffort`: no container requests CPU or memory. `Guaranteed`: every container limits both and requests the same
    amounts. `Burstable`: all other pods.
    """
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    guaranteed = True
    for _, container in containers_of(spec):
        resources = container.get("resources") or {}
        for total, name in ((requests, "requests"), (limits, "limits")):
            for resource, quantity in (resources.get(name) or {}).items():
                if resource in _COUNTED and parse_quantity(quantity) > 0:
                    total[resource] = total.get(resource, 0) + parse_quantity(quantity)
        limited = {name for name in _COUNTED if parse_quantity((resources.get("limits") or {}).get(name)) > 0}
        guaranteed = guaranteed and limited == set(_COUNTED)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"
