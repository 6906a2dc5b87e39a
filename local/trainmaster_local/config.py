"""What a local cluster is made of. Every setting says its unit and its default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.http import auth
from trainmaster_local.auth import Authorizer
from trainmaster_local.images import Image
from trainmaster_local.kubelet.host import KubeletTimings

__all__ = ["ClusterConfig", "Image", "KubeletTimings", "NodeConfig", "NodeTimings", "Taint", "single_node"]


@dataclass(frozen=True)
class Taint:
    """A taint of a node; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


def _machine_cpu() -> str:
    return str(os.cpu_count() or 1)


def _machine_memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"


@dataclass(frozen=True)
class NodeConfig:
    """A node. `resources` are countable ones beside cpu, memory and pods: `{"nvidia.com/gpu": 8}`.

    `cpu` and `memory` are quantities, by default the machine's; nothing stops several nodes from offering the same
    machine. With `fake` all of its pods are faked (see `kubelet.containers.fake`).
    """

    name: str = "local"
    cpu: str = field(default_factory=_machine_cpu)
    memory: str = field(default_factory=_machine_memory)
    pods: int = 110
    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    fake: bool = False


@dataclass(frozen=True)
class NodeTimings:
    """Says how nodes are watched. Seconds; the defaults are kube-controller-manager's and the kubelet's."""

    lease_seconds: float = 10.0
    """Between two renewals of a node's Lease (a quarter of nodeLeaseDurationSeconds)."""
    monitor_grace_seconds: float = 50.0
    """Without a renewal for this long a node is NotReady (`--node-monitor-grace-period`)."""
    monitor_seconds: float = 5.0
    """Between two observations of all nodes (`--node-monitor-period`)."""
    orphan_seconds: float = 40.0
    """Until pods of a node that is gone are deleted (`pod-garbage-collector`'s quarantine)."""


@dataclass(frozen=True)
class ClusterConfig:
    """A local cluster. `port` 0 is any free one; `images` come before the built-in ones (`images.BUILTIN_IMAGES`);
    `hosts_variable` is the environment variable by which containers find their hosts file; `authorizer` makes what
    says who may do what, by default by the roles that are stored."""

    state_dir: Path
    nodes: Sequence[NodeConfig] = (NodeConfig(),)
    port: int = 0
    images: Sequence[Image] = ()
    hosts_variable: str = "HOSTS_FILE"
    kubelet: KubeletTimings = field(default_factory=KubeletTimings)
    node_timings: NodeTimings = field(default_factory=NodeTimings)
    authorizer: Callable[[Api], auth.Authorizer] = Authorizer


def single_node(gpus: int = 0, nodes: int = 1) -> tuple[NodeConfig, ...]:
    """`nodes` nodes with `gpus` (faked) GPUs each: `local`, or `local-0`, `local-1`, ..."""
    resources = {"nvidia.com/gpu": gpus} if gpus else {}
    if nodes == 1:
        return (NodeConfig(resources=resources),)
    return tuple(NodeConfig(name=f"local-{index}", resources=resources) for index in range(nodes))
