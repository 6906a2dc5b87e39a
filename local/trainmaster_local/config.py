"""The settings of a local cluster have their units and defaults here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.http import auth
from trainmaster_local.auth import Authorizer
from trainmaster_local.devices import NVIDIA, VARIABLES
from trainmaster_local.devices import found as devices_found
from trainmaster_local.images import Image
from trainmaster_local.kubelet.host import KubeletTimings

__all__ = ["ClusterConfig", "Image", "KubeletTimings", "NodeConfig", "NodeTimings", "Taint", "machine_nodes"]


@dataclass(frozen=True)
class Taint:
    """A node has taints; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


def _machine_cpu() -> str:
    return str(os.cpu_count() or 1)


def _machine_memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"


@dataclass(frozen=True)
class NodeConfig:
    """A node's `resources` are devices, by number or by name: `{"nvidia.com/gpu": 8}` means the devices 0 to 7.

    `{"nvidia.com/gpu": ()}` means that the machine has GPUs and the node none, so that its pods see none.

    `cpu` and `memory` are quantities, by default the machine's; several nodes may offer the same machine. With `fake`
    all of its pods are faked (see `kubelet.containers.fake`).
    """

    name: str = "local"
    cpu: str = field(default_factory=_machine_cpu)
    memory: str = field(default_factory=_machine_memory)
    pods: int = 110
    resources: Mapping[str, int | Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    fake: bool = False

    @property
    def devices(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of the node's devices by resource."""
        return {
            name: tuple(map(str, range(given))) if isinstance(given, int) else tuple(given)
            for name, given in self.resources.items()
        }


@dataclass(frozen=True)
class NodeTimings:
    """Nodes' health checks have these times [s]; the defaults are kube-controller-manager's and the kubelet's."""

    lease_seconds: float = 10.0
    """The time between two renewals of a node's Lease (a quarter of nodeLeaseDurationSeconds)."""
    monitor_grace_seconds: float = 50.0
    """A node without a renewal for this time is NotReady (`--node-monitor-grace-period`)."""
    monitor_seconds: float = 5.0
    """The time between two observations of all nodes (`--node-monitor-period`)."""
    orphan_seconds: float = 40.0
    """The time until the pods of a deleted node are deleted (`pod-garbage-collector`'s quarantine)."""


@dataclass(frozen=True)
class ClusterConfig:
    """A local cluster has this configuration.

    `port` 0 is any free port. `images` precede the built-in ones (`images.BUILTIN_IMAGES`). Containers find their hosts
    file by the environment variable `hosts_variable`. `authorizer` creates the cluster's authorizer, by default from
    the stored roles.
    """

    state_dir: Path
    nodes: Sequence[NodeConfig] = (NodeConfig(),)
    port: int = 0
    images: Sequence[Image] = ()
    hosts_variable: str = "HOSTS_FILE"
    kubelet: KubeletTimings = field(default_factory=KubeletTimings)
    node_timings: NodeTimings = field(default_factory=NodeTimings)
    authorizer: Callable[[Api], auth.Authorizer] = Authorizer


def machine_nodes(
    found: Mapping[str, Sequence[str]] | None = None, *, gpus: int | None = None, nodes: int = 1
) -> tuple[NodeConfig, ...]:
    """Returns the nodes of one machine with its devices, by default this one's: `local`, or `local-0`, `local-1`, ...

    Each device is on one node, unless `gpus` sets the number for each node. If the machine has fewer devices, a device
    is listed several times and so shared; if it has none, devices are only numbers. Raises ValueError if all are
    hidden.
    """
    found = devices_found(os.environ) if found is None else found
    parts = [
        {
            name: devices[index * len(devices) // nodes : (index + 1) * len(devices) // nodes]
            for name, devices in found.items()
        }
        for index in range(nodes)
    ]
    if gpus is not None:
        kind = next((name for name in found if found[name]), next(iter(found), NVIDIA))
        machine = found.get(kind, [str(number) for number in range(gpus * nodes)])
        if gpus and not machine:
            raise ValueError(
                f"--gpus {gpus}: the environment hides every {kind} of this machine; unset {VARIABLES[kind]}"
            )
        for index, part in enumerate(parts):
            part[kind] = [machine[number % len(machine)] for number in range(index * gpus, (index + 1) * gpus)]
    names = ["local"] if nodes == 1 else [f"local-{index}" for index in range(nodes)]
    return tuple(NodeConfig(name=name, resources=part) for name, part in zip(names, parts, strict=True))
