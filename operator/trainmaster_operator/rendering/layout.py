"""Computes a job's groups, names, ranks and first assignment, as pure functions of its spec.

Worker indexes are global. The first group uses 0 to n-1, and the next group starts at n. The index is the StatefulSet's
ordinal (`ordinals.start`), so pod names, the pod-index label and the rank order agree. A group's spares use the indexes
after its workers. A spare gets ranks only when it takes a worker's place.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.v1alpha1 import Accelerator, JobIdentity, JobSpec, Resources
from trainmaster_operator.api.v1alpha1.names import set_names
from trainmaster_operator.wire.assignment import Assignment, master_port


@dataclass(frozen=True)
class GroupLayout:
    """GroupLayout is a group of `count` workers with `processes` ranks each, and of `spares`.

    The indexes of its pods begin with `first_index`.
    """

    name: str
    set_name: str
    first_index: int
    count: int
    processes: int
    resources: Resources
    accelerator: Accelerator
    node_selector: tuple[tuple[str, str], ...] = ()
    spares: int = 0

    @property
    def pods(self) -> int:
        return self.count + self.spares

    @property
    def indexes(self) -> range:
        """Returns the indexes of the group's pods, including spares."""
        return range(self.first_index, self.first_index + self.pods)

    @property
    def first_workers(self) -> range:
        """Returns the indexes of the workers in the first attempt."""
        return range(self.first_index, self.first_index + self.count)


def worker_layout(job: JobIdentity, spec: JobSpec) -> tuple[GroupLayout, ...]:
    """Returns the job's groups in the order of their indexes. Each group becomes one StatefulSet."""
    groups = spec.groups
    layouts: list[GroupLayout] = []
    first = 0
    for group, name in zip(groups, set_names(job.name, [group.name for group in groups]), strict=True):
        layouts.append(
            GroupLayout(
                name=group.name,
                set_name=name,
                first_index=first,
                count=group.workers,
                processes=_processes(spec, group.resources),
                resources=group.resources,
                accelerator=group.accelerator or spec.accelerator,
                node_selector=tuple(sorted((group.node_selector or {}).items())),
                spares=group.spares or 0,
            )
        )
        first += layouts[-1].pods
    return tuple(layouts)


def has_spares(layout: tuple[GroupLayout, ...]) -> bool:
    """Returns whether a job has more pods than workers."""
    return any(group.spares for group in layout)


def _processes(spec: JobSpec, resources: Resources) -> int:
    """Returns the number of ranks in a worker. With the launcher exec, it is one regardless of the devices."""
    if spec.processes_per_worker != "auto":
        return spec.processes_per_worker
    return 1 if spec.launcher == "exec" else max(resources.gpus, 1)


def world_size(layout: tuple[GroupLayout, ...]) -> int:
    """Returns the number of ranks of the whole job."""
    return sum(group.count * group.processes for group in layout)


def stable_hosts(job: JobIdentity, spec: JobSpec) -> tuple[str, ...]:
    """Returns the stable DNS name of each pod, by global index."""
    return tuple(
        f"{group.set_name}-{index}.{job.name}.{job.namespace}.svc"
        for group in worker_layout(job, spec)
        for index in group.indexes
    )


def processes_by_worker(layout: tuple[GroupLayout, ...]) -> tuple[int, ...] | None:
    """Returns each pod's number of ranks by global index, or None if all numbers are equal."""
    if len({group.processes for group in layout if group.count}) <= 1:
        return None
    return tuple(group.processes for group in layout for _ in group.indexes)


def first_assignment(job: JobIdentity, spec: JobSpec) -> Assignment:
    """Returns the assignment of attempt 1 with all workers, but without uids, because the pods don't exist yet."""
    layout, hosts = worker_layout(job, spec), stable_hosts(job, spec)
    workers = tuple(index for group in layout for index in group.first_workers)
    processes = processes_by_worker(layout)
    return Assignment(
        job=job.uid,
        attempt=1,
        workers=workers,
        uids=None,
        hosts=tuple(hosts[worker] for worker in workers),
        port=master_port(job.uid, 1),
        processes=None if processes is None else tuple(processes[worker] for worker in workers),
        code=None if spec.code is None else spec.code.digest,
    )
