"""Reads the admission of a job by Kueue.

Kueue records an admission in the status of the job's Workload. It can admit an elastic job with fewer workers than
requested. Pods need the node labels and tolerations of the admission's flavors, so the operator reads the flavors
before it creates a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.reconciling.observed.snapshot import ChildView, Job, Observed, PodSetAdmission, WorkloadView
from trainmaster_operator.rendering import GANG_APIS, Placement, scheduler_of, worker_layout

WORKLOAD_KIND = GANG_APIS["kueue"].child_kind


def workload_child(job: Job, observed: Observed) -> ChildView | None:
    """Returns the job's own Workload among its children."""
    return own_child(job, observed, WORKLOAD_KIND)


def own_child(job: Job, observed: Observed, kind: str | None) -> ChildView | None:
    """Returns the child of this kind that the job owns and that has the job's name, or None."""
    children = (child for child in observed.children if (child.kind, child.name) == (kind, job.name))
    return next((child for child in children if child.owner_uid == job.uid), None)


def is_as_asked(job: Job, spec: JobSpec, workload: WorkloadView) -> bool:
    """Returns whether a Workload requests the number of pods that the job requires now."""
    layout = worker_layout(job.identity, spec)
    return dict(workload.counts) == {group.name: group.pods for group in layout}


def admission(job: Job, spec: JobSpec, observed: Observed) -> WorkloadView | None:
    """Returns the Workload while it is admitted, or None. `spec` is the user's original spec."""
    child = workload_child(job, observed)
    workload = child.workload if child is not None and not child.deleting else None
    if workload is None or not workload.admitted or not workload.active or workload.evicted:
        return None
    return workload if is_as_asked(job, spec, workload) else None


def admitted_spec(job: Job, spec: JobSpec, observed: Observed) -> JobSpec:
    """Returns the spec with the admitted number of workers."""
    if scheduler_of(spec) != "kueue" or spec.elastic is None:
        return spec
    workload = admission(job, spec, observed)
    pods = [part.count for part in workload.pod_sets if part.count is not None] if workload is not None else []
    counts = [count - (spec.spares or 0) for count in pods]
    if len(counts) != 1 or not spec.elastic.min_workers <= counts[0] < (spec.workers or 0):
        return spec
    return spec.model_copy(update={"workers": counts[0]})


def missing_flavors(workload: WorkloadView, observed: Observed) -> list[str]:
    """Returns the names of an admission's ResourceFlavors that haven't been read or can't be read."""
    named = {flavor for part in workload.pod_sets for flavor in part.flavors}
    return sorted(name for name in named if observed.flavors.get(name) is None)


def lacks_placement(job: Job, observed: Observed) -> bool:
    """Returns whether the StatefulSets can't be rendered yet, because the admission or a flavor isn't known."""
    if job.spec is None or scheduler_of(job.spec) != "kueue":
        return False
    workload = admission(job, job.spec, observed)
    return workload is None or bool(missing_flavors(workload, observed))


def placements(workload: WorkloadView, observed: Observed) -> dict[str, Placement]:
    """Returns the labels and tolerations that an admission's known flavors add to each group's pods."""
    return {part.name: _placement(part, observed) for part in workload.pod_sets}


def _placement(part: PodSetAdmission, observed: Observed) -> Placement:
    selector = dict[str, str]()
    tolerations = list[Mapping[str, Any]]()
    for placement in (*(observed.flavors.get(name) for name in sorted(part.flavors)), part.placement):
        if placement is not None:
            selector.update(placement.node_selector)
            tolerations += [item for item in placement.tolerations if item not in tolerations]
    return replace(part.placement, node_selector=tuple(sorted(selector.items())), tolerations=tuple(tolerations))
