"""Opens an attempt and records its workers, their pods, and how often each pod's container has already ended.

With a topology (`scheduling.topology`), workers of the same domain get neighbouring ranks, because the rings and trees
of collectives follow the ranks. The ranks of such a job are held (attempt 0) until all pods have nodes and the nodes'
labels have been read. A node that can't be read or lacks the label belongs to no domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Phase
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.spares import desired_workers
from trainmaster_operator.reconciling.transition import NO_CHANGE, StatusChange, Transition
from trainmaster_operator.rendering import rank_grace_seconds


def open_attempt(
    situation: Situation, workers: tuple[int, ...], reason: str, more: StatusChange = NO_CHANGE
) -> Transition:
    """Returns the transition that opens the next attempt with these workers."""
    message = f"attempt {situation.status.attempt + 1} opens with {count_workers(len(workers))}"
    message += "".join(f"; {sentence}" for sentence in stand_ins(situation, workers))
    return Transition(opening_phase(situation, workers), reason, message, status_change(situation, workers) | more)


def status_change(situation: Situation, workers: tuple[int, ...], going: frozenset[str] = frozenset()) -> StatusChange:
    """Returns the change that opens the next attempt. Pods that spares displace are replaced."""
    replaced = situation.leaving | situation.unresponsive | going if situation.has_spares else frozenset[str]()
    left_out = [pod.uid for worker, pod in situation.living.items() if worker not in workers]
    workers = in_rank_order(situation, workers)
    return pods_recorded(situation, workers) | StatusChange(
        attempt=situation.status.attempt + 1,
        continues=None,
        absent_ranks=[],
        training_with=None,
        attempt_start_time=to_text(situation.now),
        next_attempt_time=None,
        resizing=None,
        stopping=None,
        code_digest=situation.code_digest,
        unproven_since=_unproven_since(situation),
        restart_request=situation.job.restart_request,
        replacing_pod_uids=[uid for uid in left_out if uid in replaced],
    )


def _unproven_since(situation: Situation) -> int | None:
    """Returns the first attempt since the code changed, or since the user requested a restart of unproven code."""
    status, request = situation.status, situation.job.restart_request
    is_new = situation.code_digest != status.code_digest
    is_tried_again = status.unproven_since is not None and request != status.restart_request
    return status.attempt + 1 if is_new or is_tried_again else status.unproven_since


def opening_phase(situation: Situation, workers: Iterable[int]) -> Phase:
    """Returns the phase in which an attempt opens, which is Pending if a pod still waits for a node."""
    return "Starting" if have_nodes(situation, workers) else "Pending"


def have_nodes(situation: Situation, workers: Iterable[int]) -> bool:
    """Returns whether each of these workers has a living pod on a node."""
    pods = [situation.living.get(worker) for worker in workers]
    return all(pod is not None and pod.node is not None for pod in pods)


def planned_stop(situation: Situation, reason: str, why: str, change: StatusChange) -> Transition:
    """Returns the transition that stops all ranks and gives them their full grace period to save a checkpoint."""
    until = to_text(situation.now + rank_grace_seconds(situation.spec))
    message = f"{why}; the ranks save a checkpoint and stop"
    return Transition("Restarting", reason, message, change | StatusChange(next_attempt_time=until))


def has_stopped(situation: Situation) -> bool:
    """Returns whether no present worker runs ranks: its ranks ended or never started, or its agent doesn't run."""
    pods = [situation.pods.get(worker) for worker in situation.members.present]
    reports = [situation.reports.get(worker) for worker in situation.members.present]
    return all(
        (report is not None and (report.ended or report.state == "Waiting")) or pod is None or not pod.container_runs
        for report, pod in zip(reports, pods, strict=True)
    )


def worker_order(situation: Situation, workers: tuple[int, ...]) -> list[int]:
    """Returns the order of the workers for the status, or an empty list if it always equals the order of the pods."""
    spec = situation.spec
    ordered = spec.elastic is not None or spec.scheduling.topology is not None or situation.has_spares
    return list(workers) if ordered else []


def pods_recorded(situation: Situation, workers: tuple[int, ...]) -> StatusChange:
    """Returns the change that records the attempt's workers, their pods, and how often each container has ended."""
    pods = [situation.pods[worker] for worker in workers]
    first = situation.status.attempt == 1 and situation.running and not situation.worker_uids
    ends = [pod.ends for pod in pods]
    return StatusChange(
        worker_order=worker_order(situation, workers),
        pod_uids=[pod.uid for pod in pods],
        pod_restart_counts=[0] * len(pods) if first else ends,
    )


def stand_ins(situation: Situation, workers: tuple[int, ...]) -> Iterator[str]:
    """Yields a sentence for each spare that takes a worker's place."""
    for before, worker in zip(desired_workers(situation), workers, strict=False):
        if before != worker and worker not in desired_workers(situation):
            yield f"spare {worker} takes the place of worker {before}"


def count_workers(workers: int) -> str:
    """Returns text such as `1 worker` or `4 workers`."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def in_rank_order(situation: Situation, workers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the workers grouped by domain, and by index within a domain. Workers without a domain come last."""
    if situation.spec.scheduling.topology is None:
        return workers
    nodes = {worker: pod.node or "" for worker, pod in situation.pods.items()}
    domains = {worker: situation.observed.domains.get(nodes.get(worker, "")) for worker in workers}
    first = {domain: worker for worker, domain in sorted(domains.items(), reverse=True)}
    return tuple(sorted(workers, key=lambda worker: (domains[worker] is None, first[domains[worker]], worker)))


def is_unordered(situation: Situation) -> bool:
    """Returns whether the order of the first attempt's ranks isn't known yet, so that these must wait."""
    if situation.spec.scheduling.topology is None or situation.worker_uids:
        return False
    return situation.status.attempt <= 1 and situation.status.phase in (None, "Pending")
