"""The lineup lists the training pods of each group, in the order of their ranks. The other pods are spares.

Any index can become a spare. When a spare takes a lost worker's place, the new pod with the lost worker's index becomes
a spare. A spare replaces only workers of its own group, because other groups use other machines.
"""

from __future__ import annotations

from collections.abc import Collection

from trainmaster_operator.api.times import since
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.rendering import GroupLayout, rank_grace_seconds
from trainmaster_operator.wire.limits import ALONE_SECONDS, UNSEEN_SECONDS

# Reasons of the DisruptionTarget condition if the kubelet doesn't answer (`policies.attribution` lists all reasons).
NODE_LOST = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})


def desired_workers(situation: Situation) -> tuple[int, ...]:
    """Returns the workers that the spec requests, in rank order, including lost workers.

    They are the current attempt's workers, unless an elastic job was resized. If workers are added, spares that could
    start at once come first, then the others by index.
    """
    if not situation.has_spares:
        return tuple(index for group in situation.layout for index in group.indexes)
    kept: set[int] = set()
    more: list[int] = []
    for group in situation.layout:
        current = _asked_for(situation, group)
        missing = group.count - len(current)
        kept.update(current)
        if missing:
            able = ready_spares(situation)
            free = sorted(set(group.indexes) - set(current), key=lambda index: (index not in able, index))
            more += free[:missing]
    return (*(worker for worker in situation.workers if worker in kept), *more)


def ready_spares(situation: Situation) -> tuple[int, ...]:
    """Returns the spares that could start at once, best first.

    Spares on nodes that aren't avoided come first. Among equals, spares with a connected agent come first.
    """
    asked_for = {worker for group in situation.layout for worker in _asked_for(situation, group)}
    busy = asked_for | {*situation.members.present}
    spares = (index for group in situation.layout for index in group.indexes if index not in busy)
    pods = [situation.living[index] for index in spares if index in situation.living]
    ready = [pod for pod in pods if pod.container_runs and pod.uid not in situation.status.replacing_pod_uids]
    avoided, joined = situation.status.avoided_nodes, situation.joined_agents
    ready.sort(key=lambda pod: (pod.node in avoided, pod.uid not in joined, pod.worker))
    return tuple(pod.worker for pod in ready)


def next_workers(situation: Situation, without: frozenset[str] = frozenset()) -> tuple[int, ...]:
    """Returns the desired workers for the next attempt, where ready spares replace lost workers.

    `without` contains the uids of further pods that count as lost.
    """
    desired = desired_workers(situation)
    if not situation.has_spares:
        return desired
    lost = [worker for worker in desired if _is_lost(situation, worker, without)]
    # Workers without a new pod come first, so that the attempt opens sooner.
    lost.sort(key=lambda worker: worker in situation.living)
    return _with_stand_ins(situation, desired, lost, without)


def continued_workers(
    situation: Situation, absent: Collection[int], without: frozenset[str] = frozenset()
) -> tuple[int, ...]:
    """Returns the lineup of a continued attempt.

    It is the current lineup, because ranks keep their numbers. Ready spares replace only those `absent` workers whose
    container doesn't run. `without` contains the uids of further lost pods.
    """
    if not situation.has_spares:
        return situation.workers
    lost = [worker for worker in situation.workers if worker in absent and not _runs(situation, worker, without)]
    return _with_stand_ins(situation, situation.workers, lost, without)


def can_open(situation: Situation, workers: tuple[int, ...], without: frozenset[str] = frozenset()) -> bool:
    """Returns whether an attempt can be opened, which requires a pod of each of these workers that won't be replaced.

    Three kinds of jobs also wait until all pods have nodes: elastic jobs, because they can train without workers that
    get no node; jobs with a topology, because the nodes decide the order of the ranks; and jobs that gave up their
    nodes before, because they may not get them again. `without` contains the uids of pods that will be replaced.
    """
    if situation.lacks_domains or alone_until(situation) is not None:
        return False
    # Starting a spare now would interrupt the checkpoint that all ranks save together.
    is_saving = saves_until(situation) is not None and not all(_has_left(situation, each) for each in situation.workers)
    if is_saving and {*workers} != {*desired_workers(situation)}:
        return False
    spec = situation.spec
    ordered = spec.elastic is not None or spec.scheduling.topology is not None
    needs_node = ordered or situation.status.scheduling_backoffs > 0
    pods = [situation.healthy_pod(worker, without) for worker in workers]
    return all(pod is not None and (pod.node or not needs_node) for pod in pods)


def alone_until(situation: Situation) -> float | None:
    """Returns the time by which the ranks of a lost worker that trained alone have certainly stopped, or None.

    Such ranks need no peers, so a broken network doesn't stop them. Their agent stops them after it has been unwatched
    for a while. None means that they have stopped, or that their agent will learn of the next attempt.
    """
    status, failure, members = situation.status, situation.last_failure, situation.members
    if status.continues is None or not members.absent_ranks or len(members.present) != 1:
        return None
    (worker,) = members.present
    if _has_left(situation, worker) or situation.healthy_pod(worker) is not None:
        return None
    held = failure is not None and failure.attempt == status.attempt
    since_loss = since(situation.now, failure.failed_at) if held and failure is not None else 0.0
    left = ALONE_SECONDS + UNSEEN_SECONDS + rank_grace_seconds(situation.spec) - since_loss
    return situation.now + left if left > 0 else None


def saves_until(situation: Situation) -> float | None:
    """Returns when the grace period of the attempt's terminating or deleted pods ends, or None.

    The peers of such pods were stopped later and may still be saving. Pods on lost nodes don't count.
    """
    views = [*situation.pods.values(), *situation.observed.gone.values()]
    uids = frozenset(situation.worker_uids.values())
    ending = [pod for pod in views if pod.deleting and pod.uid in uids and pod.disruption not in NODE_LOST]
    deadlines = [pod.deadline for pod in ending if pod.deadline is not None]
    return max((deadline for deadline in deadlines if deadline > situation.now), default=None)


def _asked_for(situation: Situation, group: GroupLayout) -> list[int]:
    """Returns the workers of a group in the current attempt, limited to the number that the spec now requests.

    Training workers are kept first, then workers that could join.
    """

    def place(worker: int) -> tuple[bool, bool]:
        is_absent = worker in situation.members.absent
        return is_absent, is_absent and not _runs(situation, worker)

    current = [worker for worker in situation.workers if worker in group.indexes]
    return sorted(current, key=place)[: group.count]


def _has_left(situation: Situation, worker: int) -> bool:
    """Returns whether a worker's ranks have ended, as far as is known."""
    report, pod = situation.reports.get(worker), situation.pods.get(worker)
    if (report is not None and report.ended) or pod is None or pod.uid != situation.worker_uids.get(worker):
        return True
    return not pod.container_runs


def _runs(situation: Situation, worker: int, without: frozenset[str] = frozenset()) -> bool:
    pod = situation.healthy_pod(worker, without)
    return pod is not None and pod.container_runs


def _is_lost(situation: Situation, worker: int, without: frozenset[str]) -> bool:
    """Returns whether a worker's pod is lost, or was replaced by a pod that doesn't run yet."""
    pod = situation.healthy_pod(worker, without)
    return pod is None or (pod.uid != situation.worker_uids.get(worker, pod.uid) and not pod.container_runs)


def _with_stand_ins(
    situation: Situation, workers: tuple[int, ...], lost: list[int], without: frozenset[str]
) -> tuple[int, ...]:
    """Returns the workers after the best ready spares of their groups have replaced the lost workers."""
    # A spare that grows the group is in `workers` already.
    spares = (spare for spare in ready_spares(situation) if spare not in workers)
    free = [spare for spare in spares if situation.pods[spare].uid not in without]
    instead: dict[int, int] = {}
    for worker in lost:
        group = next((group.indexes for group in situation.layout if worker in group.indexes), ())
        spare = next((index for index in free if index in group), None)
        if spare is not None:
            free.remove(spare)
            instead[worker] = spare
    return tuple(instead.get(worker, worker) for worker in workers)
