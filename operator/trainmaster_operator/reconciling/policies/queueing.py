"""Under Kueue (`scheduling.gang.scheduler: kueue`) the job is held like a suspended job until its Workload is admitted.

The operator does what Kueue's own integrations do for a Job (pkg/controller/jobframework):

- It creates the Workload, starts the job after its admission, and reports when all pods are ready and when the
  job ends.
- After an eviction (preemption, a stopped queue, `spec.active: false`) it suspends the job, which saves a checkpoint.
  After the last pod is gone, it releases the quota, and Kueue queues the Workload again.
- If the number of requested workers changes, it creates a new Workload, because a Workload with quota can't be changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster_operator.reconciling.actions.children import scaled_to_zero, workload_manifest
from trainmaster_operator.reconciling.decision import Action, Apply, DeleteChild, ReportWorkload, WorkloadCondition
from trainmaster_operator.reconciling.observed import gangs
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import ChildView, WorkloadView
from trainmaster_operator.reconciling.policies.lifecycle import suspended
from trainmaster_operator.reconciling.transition import Transition
from trainmaster_operator.rendering import scheduler_of

# Evictions after which the Workload returns to its queue at once. For all others, Kueue reads the reason in the
# `Requeued` condition, and waits until its own back-off is over (AdmissionCheck, PodsReadyTimeout), the queue is open
# again, or the Workload is active again (Kueue 0.15 to 0.18: pkg/controller/jobframework/reconciler.go,
# pkg/controller/core).
_QUEUED_AGAIN = frozenset({"Preempted", "NodeFailures"})


def queued(situation: Situation) -> Transition | None:
    """Holds the job while Kueue hasn't admitted it."""
    if scheduler_of(situation.spec) != "kueue" or situation.job.spec is None:
        return None
    workload = gangs.admission(situation.job, situation.job.spec, situation.observed)
    started = situation.status.attempt > 0 and not situation.suspended
    if workload is not None and (started or not gangs.missing_flavors(workload, situation.observed)):
        return None
    is_seen = gangs.workload_child(situation.job, situation.observed) is not None
    if workload is None and started and not is_seen and gangs.WORKLOAD_KIND not in situation.observed.listed:
        # Workloads haven't been listed, or can't be. That is no reason to stop training.
        return None
    return suspended(situation, "Queued", _why(situation, workload))


def workload_actions(situation: Situation) -> Iterator[Action]:
    """Returns the actions on the job's Workload."""
    asked = situation.job.spec
    if scheduler_of(situation.spec) != "kueue" or asked is None:
        return
    child = gangs.workload_child(situation.job, situation.observed)
    gone = not situation.observed.pods
    if child is None:
        if not situation.terminal and not situation.spec.run_policy.suspend:
            yield from _made(situation)
        return
    workload = child.workload
    if child.deleting or workload is None:
        return
    if situation.terminal:
        if not workload.finished and (gone or not scaled_to_zero(situation)):
            phase = situation.status.phase or ""
            yield _report(child, WorkloadCondition("Finished", True, phase, f"the job has {phase.lower()}"))
        return
    if situation.spec.run_policy.suspend or not gangs.is_as_asked(situation.job, asked, workload):
        # A deactivated Workload isn't replaced, because the new one would be active. Only a user or Kueue may
        # activate it.
        if gone and workload.active:
            yield DeleteChild(child.kind, child.name, child.uid)
        if workload.active:
            return
    if workload.evicted:
        if workload.reserved and gone:
            again = workload.evicted in _QUEUED_AGAIN
            requeued = WorkloadCondition("Requeued", again, workload.evicted, workload.message)
            yield _report(child, requeued, release=workload.message or "the job has stopped")
        return
    if not workload.active:
        return
    if not workload.reserved:
        yield from _made(situation, child.rendered_hash)
        return
    ready = _are_ready(situation)
    if ready and workload.pods_ready is not True:
        yield _report(child, WorkloadCondition("PodsReady", True, "Started", "all pods are ready"))
    elif not ready and workload.pods_ready:
        yield _report(child, WorkloadCondition("PodsReady", False, "WaitForRecovery", "not all pods are ready"))


def _made(situation: Situation, present_hash: str | None = None) -> Iterator[Apply]:
    priority = situation.spec.scheduling.priority_class_name
    if priority is not None and priority not in situation.observed.priorities:
        # The class hasn't been read yet.
        return
    manifest = workload_manifest(situation)
    if manifest is not None and manifest.rendered_hash != present_hash:
        yield Apply(manifest.body)


def _report(child: ChildView, condition: WorkloadCondition, release: str | None = None) -> ReportWorkload:
    return ReportWorkload(child.name, child.uid, condition, release)


def _are_ready(situation: Situation) -> bool:
    if situation.suspended:
        return False
    pods = [situation.living.get(worker) for worker in situation.members.present]
    return bool(pods) and all(pod is not None and pod.ready for pod in pods)


def _why(situation: Situation, workload: WorkloadView | None) -> str:
    queue = situation.spec.scheduling.queue
    if workload is not None:
        missing = ", ".join(gangs.missing_flavors(workload, situation.observed))
        return f"admitted; waiting to read the ResourceFlavors {missing}"
    child = gangs.workload_child(situation.job, situation.observed)
    known = (child.workload if child is not None else None) or WorkloadView()
    if not known.active:
        why = f": {known.message}" if known.evicted else ""
        return f"its Workload is deactivated (spec.active is false){why}"
    if known.evicted:
        return f"evicted by Kueue ({known.evicted}): {known.message}"
    waits = f": {known.message}" if known.message else ""
    return f"waiting for its turn in the queue {queue} of Kueue{waits}"
