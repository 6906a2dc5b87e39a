"""Pod workers use their node and the API only through this protocol, so tests need neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainmaster_local.images import ImageTable
from trainmaster_local.kubelet.containers.environment import PodFacts

Object = Mapping[str, Any]


@dataclass(frozen=True)
class KubeletTimings:
    """The kubelet has these waiting times, in seconds; every default is Kubernetes' own.

    `backoff_scale` multiplies the crash and image back-off and the wait between failed starts. Tests shrink it;
    messages keep the real durations, so that order and words stay those of Kubernetes.
    """

    backoff_scale: float = 1.0
    retry_seconds: float = 10.0
    """The wait between two tries to start a container that can't be configured (`backOffPeriod`), before scaling."""
    waiting_shown_after: float = 1.0
    """The time from a container's end until its state is CrashLoopBackOff (the kubelet's next sync), before scaling."""
    minimum_grace_seconds: float = 2.0
    """The minimum time between SIGTERM and SIGKILL (`minimumGracePeriodInSeconds`)."""


class PodHost(Protocol):
    """A pod host is the node on which a pod runs."""

    node_name: str
    host_ip: str
    images: ImageTable
    timings: KubeletTimings
    memory_folder: Path

    def facts(self, pod: Object, pod_ip: str) -> PodFacts: ...

    def pod_folder(self, pod: Object) -> Path: ...

    def log_path(self, pod: Object, container: str, run: int) -> Path: ...

    def claim_folder(self, namespace: str, claim: str) -> Path | None: ...

    def base_environment(self) -> dict[str, str]:
        """Returns the variables of every image: PATH, LANG and the like."""

    def cluster_environment(self, pod: Object) -> dict[str, str]:
        """Returns the variables of Services, and the path of the hosts file."""

    def kubeconfig(self, pod: Object, token_file: Path) -> str:
        """Returns a kubeconfig's text for a pod with a service account's token."""

    async def token(self, pod: Object, audience: str, seconds: int) -> str: ...

    def admit(self, pod: Object) -> bool:
        """Assigns a pod's devices; returns False while it has to wait for them. Raises OutOfDevicesError."""

    def devices(self, pod: Object, container: str) -> Mapping[str, Sequence[str]]:
        """Returns a container's devices by each resource of the node."""

    def release_devices(self, pod: Object) -> None:
        """Releases the devices of a pod whose last process has ended."""

    def allocate_address(self) -> str: ...

    def release_address(self, address: str) -> None: ...

    def event(self, pod: Object, kind: str, reason: str, message: str, container: str = "", init: bool = False) -> None:
        """Records an event. `kind` is Normal or Warning; `container` becomes the event's fieldPath."""

    async def write_status(self, pod: Object, status: Mapping[str, Any]) -> Object | None:
        """Writes a pod's status; returns None if the pod is gone or another pod has its name."""

    def newest(self, pod: Object) -> Object | None:
        """Returns the pod's current object in the API; None if it is gone or another pod has its name."""

    async def delete(self, pod: Object) -> None:
        """Deletes a pod that has ended from the API (grace period 0, with its uid)."""


def container_ports(pod: Object) -> dict[str, int]:
    """Returns the named ports of all containers."""
    found: dict[str, int] = {}
    containers: Sequence[Object] = pod["spec"].get("containers") or []
    for container in containers:
        for port in container.get("ports") or []:
            if port.get("name"):
                found[str(port["name"])] = int(port["containerPort"])
    return found
