"""A worker's output is in the logs of its pod's containers: of the one that runs, and of the one before it.

Both are read, because an agent that reports by exiting leaves what its ranks printed in the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainmaster.client.job import worker_index


class Container(NamedTuple):
    """Container is one container of a worker: its log is one stream."""

    worker: int
    pod: str
    uid: str
    restarts: int

    @property
    def before(self) -> Container:
        """Returns the container that ran before it in its pod."""
        return self._replace(restarts=self.restarts - 1)


def container_of(pod: Mapping[str, Any]) -> Container:
    """Returns the container that a worker's pod has now."""
    metadata = pod["metadata"]
    restarts = (_worker_status(pod) or {}).get("restartCount")
    return Container(
        worker_index(pod), metadata["name"], str(metadata.get("uid")), restarts if isinstance(restarts, int) else 0
    )


def containers_of(pod: Mapping[str, Any]) -> list[Container]:
    """Returns the containers whose logs the kubelet may have, the older one first."""
    container = container_of(pod)
    # While the container waits for its next start, the log is the one of the container before.
    waits = "waiting" in ((_worker_status(pod) or {}).get("state") or {})
    return [container.before, container] if container.restarts > 0 and not waits else [container]


def has_started(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container has a log."""
    status = _worker_status(pod)
    if status is None:
        return bool((pod.get("status") or {}).get("phase") != "Pending")
    return "waiting" not in (status.get("state") or {}) or bool(status.get("restartCount"))


def runs(pod: Mapping[str, Any]) -> bool:
    """Returns whether the worker's container runs, and isn't to be stopped."""
    status = _worker_status(pod)
    return (
        status is not None and "running" in (status.get("state") or {}) and not pod["metadata"].get("deletionTimestamp")
    )


def _worker_status(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == "worker"), None)
