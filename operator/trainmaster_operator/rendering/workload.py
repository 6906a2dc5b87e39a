"""The template of a Workload gets what a job asks of Kueue.

github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2 (served since 0.15; the older v1beta1 names the priority class in
other fields). A pod set is a worker group with its spares; of an elastic job Kueue may admit fewer (`minCount`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.api.v1alpha1 import JobSpec

# Quota and flavors are reckoned from these fields of a PodSpec. The rest would only differ between versions of the
# operator, and a Workload that holds quota can't be changed.
_POD_FIELDS = ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "overhead", "restartPolicy")
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")


@dataclass(frozen=True)
class PodSetContext:
    """PodSetContext is one worker group in the context of the Workload's template."""

    name: str
    count: int
    min_count: int | None
    pod: Mapping[str, Any]


@dataclass(frozen=True)
class WorkloadContext:
    """WorkloadContext is what the Workload's template gets."""

    queue: str
    priority: int | None
    priority_class_name: str | None
    pod_sets: tuple[PodSetContext, ...]


def workload_context(
    spec: JobSpec, groups: Iterable[tuple[str, int, Mapping[str, Any]]], priority: int | None
) -> WorkloadContext:
    """Returns the context of the Workload. `groups`: name, pods asked for and PodSpec of each; `priority`: its
    value."""
    smallest = spec.elastic.min_workers + (spec.spares or 0) if spec.elastic is not None else None
    return WorkloadContext(
        queue=spec.scheduling.queue or "",
        priority=priority if spec.scheduling.priority_class_name is not None else None,
        priority_class_name=spec.scheduling.priority_class_name,
        pod_sets=tuple(
            PodSetContext(name, count, smallest if smallest is not None and smallest < count else None, _reduced(pod))
            for name, count, pod in groups
        ),
    )


def _reduced(pod: Mapping[str, Any]) -> dict[str, Any]:
    reduced = {name: pod[name] for name in _POD_FIELDS if pod.get(name)}
    affinity = (pod.get("affinity") or {}).get("nodeAffinity")
    if affinity:
        reduced["affinity"] = {"nodeAffinity": affinity}
    for field in ("initContainers", "containers"):
        if pod.get(field):
            reduced[field] = [
                {name: container[name] for name in _CONTAINER_FIELDS if name in container} for container in pod[field]
            ]
    return reduced
