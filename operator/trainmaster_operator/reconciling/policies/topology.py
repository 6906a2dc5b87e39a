"""The ranks are in the topology's order (`scheduling.topology`): workers of the same domain are neighbours.

Rings and trees of collectives follow the ranks, so neighbours should be near. Where a worker runs is only known once
its pod has a node, so the ranks of such a job are held (attempt 0) until all pods have theirs and the nodes' labels
have been read, and then attempt 1 is published in its order. A node that can't be read, or has no such label, is in no
domain.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.observed.situation import Situation


def in_rank_order(situation: Situation, workers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the workers by domain: that of the lowest index first, in each by index, those without one at the end."""
    if situation.spec.scheduling.topology is None:
        return workers
    domains = {worker: _domain(situation, worker) for worker in workers}
    first: dict[str, int] = {}
    for worker in sorted(workers):
        domain = domains[worker]
        if domain is not None:
            first.setdefault(domain, worker)
    last = max(workers, default=0) + 1

    def place(worker: int) -> tuple[int, int]:
        domain = domains[worker]
        return (last if domain is None else first[domain], worker)

    return tuple(sorted(workers, key=place))


def is_unordered(situation: Situation) -> bool:
    """Returns whether the first attempt's order isn't known yet, so that its ranks are to wait."""
    status = situation.status
    return (
        situation.spec.scheduling.topology is not None
        and status.attempt <= 1
        and status.phase in (None, "Pending")
        and not situation.worker_uids
    )


def _domain(situation: Situation, worker: int) -> str | None:
    pod = situation.pods.get(worker)
    return None if pod is None or pod.node is None else situation.observed.domains.get(pod.node)
