"""A gang is scheduled by a PodGroup (`scheduling.gang`), for whose nodes the job waits for a limited time.

The PodGroup stands before the first pod and goes after the last one, so it reserves nothing for a job that is
suspended, waiting or over. A gang that finds no room is no failure: `startupSeconds` begins when its pods have nodes,
and only `gang.timeoutSeconds` limits the wait before that.
"""

from __future__ import annotations

from trainmaster_operator.reconciling.decision import DeleteChild
from trainmaster_operator.reconciling.observed.situation import Situation, is_alive
from trainmaster_operator.reconciling.observed.snapshot import ChildView
from trainmaster_operator.rendering import GANG_APIS, has_pod_group, scheduler_of


def pod_group_kind(situation: Situation) -> str | None:
    """Returns the kind of the job's PodGroup among its children; None for a job without one."""
    scheduler = scheduler_of(situation.spec)
    if scheduler is None or not has_pod_group(situation.spec):
        return None
    api = GANG_APIS[scheduler]
    return f"{api.kind}.{api.group}"


def pod_group(situation: Situation) -> ChildView | None:
    """Returns the job's own PodGroup."""
    kind = pod_group_kind(situation)
    return next(
        (
            child
            for child in situation.observed.children
            if child.kind == kind and child.owner_uid == situation.job.uid and child.name == situation.job.name
        ),
        None,
    )


def lacks_pod_group(situation: Situation) -> bool:
    """Returns whether pods must wait, because what makes a gang of them isn't there."""
    if pod_group_kind(situation) is None:
        return False
    group = pod_group(situation)
    return group is None or group.deleting


def delete_pod_group(situation: Situation) -> DeleteChild | None:
    """Returns the deletion of the PodGroup of a job that shall have no pods, so that it reserves nothing."""
    group = pod_group(situation)
    if group is None or group.deleting or situation.observed.pods:
        return None
    return DeleteChild(group.kind, group.name, group.uid)


def waits_for_nodes(situation: Situation) -> bool:
    """Returns whether the gang as a whole has no node yet, and nothing but the scheduler stands in the way."""
    if situation.spec.scheduling.gang is None or situation.observed.refused_writes:
        return False
    return not any(is_alive(pod) and pod.node is not None for pod in situation.pods.values())


def scheduled_at(situation: Situation) -> float | None:
    """Returns when the last of the gang's pods got its node."""
    if situation.spec.scheduling.gang is None:
        return None
    pods = (situation.pods.get(worker) for worker in situation.workers)
    times = [pod.scheduled_at for pod in pods if pod is not None and is_alive(pod)]
    return max((at for at in times if at is not None and at <= situation.now), default=None)
