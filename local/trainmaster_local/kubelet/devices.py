"""The device manager assigns a node's devices to containers.

A pod gets its devices before any of its containers starts and keeps them until its last process has ended, however
often a container restarts (`pkg/kubelet/cm/devicemanager`). If a pod is deleted by force, its object disappears before
its processes have ended. The scheduler then gives its place to another pod, which waits here for the devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_local.quantities import parse_quantity
from trainmaster_local.scheduling.scheduler import pod_requests

Object = Mapping[str, Any]

# The positions of devices in a node's list, by container and resource.
_Given = Mapping[str, Mapping[str, Sequence[int]]]


class OutOfDevicesError(Exception):
    """A pod is bound to a node with too few devices left, which no scheduler does.

    The text is the kubelet's (`pkg/kubelet/lifecycle/predicate.go`).
    """

    def __init__(self, resource: str, requested: int, used: int, capacity: int) -> None:
        self.reason = f"OutOf{resource}"
        counts = f"requested: {requested}, used: {used}, capacity: {capacity}"
        super().__init__(f"Node didn't have enough resource: {resource}, {counts}")


@dataclass
class _Holder:
    """A holder is a pod with devices. If it is `leaving`, its object is deleted and it no longer uses capacity."""

    given: _Given
    leaving: bool = False

    def held(self, resource: str) -> set[int]:
        return {position for devices in self.given.values() for position in devices.get(resource, ())}


class DeviceManager:
    """The device manager assigns one node's devices.

    `devices` contains the devices' names by resource. Several pods share a device that is listed several times, as with
    the time-slicing of NVIDIA's device plugin.
    """

    def __init__(self, devices: Mapping[str, Sequence[str]]) -> None:
        self._devices = devices
        self._holders: dict[str, _Holder] = {}

    def admit(self, pod: Object) -> bool:
        """Assigns a pod's devices. Returns False while they are still in use; call it again after a `release`.

        Raises OutOfDevicesError if the node's other pods leave too few.
        """
        uid = pod["metadata"]["uid"]
        if uid in self._holders:
            return True
        requests = pod_requests(pod["spec"])
        wanted = {name: int(requests[name]) for name in self._devices if requests.get(name)}
        for name, count in wanted.items():
            staying = [holder for holder in self._holders.values() if not holder.leaving]
            used, capacity = sum(len(holder.held(name)) for holder in staying), len(self._devices[name])
            if count > capacity - used:
                raise OutOfDevicesError(name, count, used, capacity)
        free = {name: self._free(name) for name in wanted}
        if any(count > len(free[name]) for name, count in wanted.items()):
            return False
        given: dict[str, dict[str, Sequence[int]]] = {}
        for name, positions in free.items():
            for container, devices in _dealt(pod["spec"], name, positions).items():
                given.setdefault(container, {})[name] = devices
        self._holders[uid] = _Holder(given)
        return True

    def of(self, pod: Object, container: str) -> dict[str, tuple[str, ...]]:
        """Returns the devices of an admitted pod's container by each resource of the node."""
        holder = self._holders.get(pod["metadata"]["uid"])
        given = holder.given.get(container, {}) if holder else {}
        return {
            name: tuple(dict.fromkeys(devices[position] for position in sorted(given.get(name, ()))))
            for name, devices in self._devices.items()
        }

    def leave(self, uid: str) -> None:
        """Records that the pod's object is deleted; the pod keeps its devices while its processes run."""
        if uid in self._holders:
            self._holders[uid].leaving = True

    def release(self, uid: str) -> bool:
        """Releases a pod's devices after its last process has ended; returns whether it had any."""
        return self._holders.pop(uid, None) is not None

    def _free(self, name: str) -> list[int]:
        """Returns the positions that no pod uses, devices with the fewest sharers first."""
        devices = self._devices[name]
        taken = {position for holder in self._holders.values() for position in holder.held(name)}
        sharers = Counter(devices[position] for position in taken)
        ranked = []
        for position in (position for position in range(len(devices)) if position not in taken):
            ranked.append((sharers[devices[position]], position))
            sharers[devices[position]] += 1
        return [position for _, position in sorted(ranked)]


def _dealt(spec: Object, resource: str, free: Sequence[int]) -> dict[str, Sequence[int]]:
    """Deals positions to a pod's containers.

    Containers reuse the devices of earlier init containers, except those of sidecars, which keep running.
    """
    unused, again = list(free), list[int]()
    dealt: dict[str, Sequence[int]] = {}
    containers = [(container, True) for container in spec.get("initContainers") or []]
    containers += [(container, False) for container in spec["containers"]]
    for container, is_init in containers:
        count = _limit(container, resource)
        pool = again + unused
        dealt[container["name"]] = mine = pool[:count]
        unused = [position for position in unused if position not in mine]
        if is_init and container.get("restartPolicy") != "Always":
            again = list(dict.fromkeys([*again, *mine]))
        else:
            again = [position for position in again if position not in mine]
    return dealt


def _limit(container: Object, resource: str) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(parse_quantity(limits.get(resource, "0")))
