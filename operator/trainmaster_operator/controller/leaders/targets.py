"""The snapshot says which agents of a job are watched, and which workers and ranks they may report on.

All that is kept of what a leader sends is bounded by a target: the spec's workers and their ranks, and pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES, JobStatus
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.leaders.reach import AgentAddress
from trainmaster_operator.rendering import worker_layout


@dataclass(frozen=True)
class StreamTarget:
    """Names the agents of a job that may lead, and what they may report on.

    `candidates` are reachable agents in the order in which they lead. `processes` has how many ranks each worker has
    that the job can have, whether or not its pod is there now; `ranks` which these are in the attempt `assigned`, the
    newest whose workers are known.
    """

    key: JobKey
    uid: str
    attempt: int
    candidates: tuple[AgentAddress, ...]
    processes: Mapping[int, int]
    assigned: int = 0
    ranks: Mapping[int, range] = field(default_factory=dict)

    @property
    def workers(self) -> Collection[int]:
        """Returns the workers that the job can have."""
        return self.processes.keys()

    @property
    def world(self) -> int:
        """Returns the number of ranks that the job can have."""
        return sum(self.processes.values())

    def has_ranks(self, attempt: int, worker: int, ranks: Collection[int]) -> bool:
        """Returns whether a worker can have these ranks: exactly its own where the attempt's workers are known."""
        if attempt == self.assigned:
            own = self.ranks.get(worker, range(0))
            return all(rank in own for rank in ranks)
        return len(ranks) <= self.processes.get(worker, 0) and all(rank < self.world for rank in ranks)


def stream_target(snapshot: Snapshot, status: JobStatus) -> StreamTarget | None:
    """Returns which agents to watch, by the newest assignment that stands anywhere; None when there are none."""
    job, observed = snapshot.job, snapshot.observed
    if job.deleting or job.unreadable is not None or status.phase in TERMINAL_PHASES or status.phase == "Suspended":
        return None
    assignments = [child.assignment for child in observed.children] + [pod.assignment for pod in observed.pods]
    newest = max((a for a in assignments if a is not None), key=lambda a: a.attempt, default=None)
    if newest is None:
        return None
    pods = {pod.worker: pod for pod in observed.pods}
    candidates = []
    for worker in newest.workers:
        pod = pods.get(worker)
        if pod is None or pod.deleting or pod.worker_container is None or pod.worker_container.state != "running":
            continue
        candidates.append(AgentAddress(job.namespace, pod.name, pod.uid, worker, pod.ip))
    if not candidates:
        return None
    key = JobKey(job.namespace, job.name)
    # A worker whose pod is being replaced too: it may have joined and finished before the next plan.
    layout = worker_layout(job.identity, job.spec) if job.spec is not None else ()
    processes = {worker: group.processes for group in layout for worker in group.indexes}
    # Who was scaled away may still run. Only jobs of one group are resized.
    most = max(processes.values(), default=0)
    processes = {worker: processes.get(worker, most) for worker in (*processes, *pods)}
    return StreamTarget(
        key=key,
        uid=job.uid,
        attempt=max(status.attempt, newest.attempt),
        candidates=tuple(candidates),
        processes=processes,
        assigned=newest.attempt,
        ranks=_ranks(newest.workers, processes),
    )


def _ranks(workers: Iterable[int], processes: Mapping[int, int]) -> dict[int, range]:
    """Returns the ranks of each worker: they follow each other in the order of the assignment.

    How many a worker has can't be changed once the job exists, so it isn't read from an annotation.
    """
    ranks, first = {}, 0
    for worker in workers:
        count = processes.get(worker, 0)
        ranks[worker] = range(first, first + count)
        first += count
    return ranks
