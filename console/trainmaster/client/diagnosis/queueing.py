"""Kueue: what the job's Workload waits for, in which place of its queue, and why it was evicted.

The messages are those of Kueue 0.10 to 0.18 (pkg/scheduler/flavorassigner, pkg/controller/core, pkg/workload).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, at, condition, items, joined, name_of, plural, text
from trainmaster.client.diagnosis.room import resource_noun
from trainmaster.client.diagnosis.situation import Situation
from trainmaster_operator.wire.values import whole

_MORE = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
# Before 0.13: "> maximum capacity" stood without figures, or the limit of borrowing was named.
_NEVER = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+?),? "
    r".*?(?:\+ current podset request \(([^)]*)\) )?> maximum capacity(?: \(([^)]*)\))?"
)
_UNKNOWN = re.compile(r"resource (\S+) unavailable in ClusterQueue")
_NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) doesn't exist")
_INACTIVE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) is inactive")
_READY_CHECKS = ("Ready",)


def queue_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why Kueue holds the job."""
    suspended = next((each for each in situation.job.status.conditions if each.type == "Suspended"), None)
    if suspended is None or suspended.status != "True" or suspended.reason != "Queued" or situation.job.finished:
        return
    queue = text(situation.job.raw, "spec", "scheduling", "queue")
    workload = situation.workload
    if workload is None:
        yield _without_workload(situation, queue, suspended.message)
        return
    reserved = condition(workload, "QuotaReserved")
    message = text(reserved, "message") or suspended.message
    evicted = condition(workload, "Evicted")
    looks = (Step("all that Kueue says", f"kubectl describe workload {name_of(workload)} {situation.where}"),)
    evidence = (f"Kueue: {message}",)
    if at(workload, "spec", "active") is False:
        clause = "its Workload is deactivated (spec.active is false)"
        yield Finding("QueueStopped", clause, evidence, looks)
    elif found := _NO_QUEUE.search(message):
        yield _missing(situation, found[1], found[2], evidence, looks)
    elif not queue_exists(situation, queue):
        yield _missing(situation, "LocalQueue", queue, evidence, looks)
    elif found := _INACTIVE.search(message):
        yield _inactive(situation, found[1], found[2], evidence, looks)
    elif reserved.get("status") == "True":
        yield _checks(workload, evidence, looks)
    elif found := _NEVER.search(message):
        asked = f" {found[3]}" if found[3] else ""
        limit = f" {found[4]}" if found[4] else " fewer"
        noun, flavor = resource_noun(found[1]), found[2].rstrip(",")
        clause = (
            f"it never fits: it asks for{asked} {noun}, and the queue {queue} can give{limit} at most (flavor {flavor})"
        )
        yield Finding(
            "QueueTooSmall", clause, evidence, (Step("ask for less, or have the ClusterQueue's quota raised"), *looks)
        )
    elif found := _UNKNOWN.search(message):
        clause = f"the ClusterQueue of {queue} has no quota for {found[1]}, which the job asks for"
        yield Finding("QueueTooSmall", clause, evidence, (Step(f"have {found[1]} added to the ClusterQueue"), *looks))
    elif evicted.get("status") == "True" or message.startswith("Preempted"):
        yield _evicted(
            situation, queue, text(evicted, "reason") or "Preempted", text(evicted, "message") or message, looks
        )
    else:
        yield _waits(situation, queue, message, evidence, looks)


def queue_exists(situation: Situation, queue: str) -> bool:
    """Returns whether the LocalQueue is there, or couldn't be looked for."""
    return situation.local_queues is None or any(name_of(one) == queue for one in situation.local_queues)


def _without_workload(situation: Situation, queue: str, message: str) -> Finding:
    if not queue_exists(situation, queue):
        return _missing(situation, "LocalQueue", queue, (f"the operator: {message}",), ())
    look = Step("the queues and what waits in them", f"kubectl get localqueues,workloads {situation.where}")
    return Finding(
        "Queued", f"it waits for its turn in Kueue's queue {queue}", (f"the operator: {message}",), (look,), False
    )


def _missing(situation: Situation, kind: str, name: str, evidence: tuple[str, ...], looks: tuple[Step, ...]) -> Finding:
    there = [name_of(one) for one in situation.local_queues or ()]
    where = " in the job's namespace" if kind == "LocalQueue" else ""
    has = f"; there is {joined(there)}" if there and kind == "LocalQueue" else ""
    step = Step(f"make the {kind}, or correct spec.scheduling.queue", f"kubectl get localqueues {situation.where}")
    return Finding("QueueMissing", f"Kueue has no {kind} {name}{where}{has}", evidence, (step, *looks))


def _inactive(
    situation: Situation, kind: str, name: str, evidence: tuple[str, ...], looks: tuple[Step, ...]
) -> Finding:
    queue = situation.cluster_queue or {}
    policy = text(queue, "spec", "stopPolicy")
    said = text(condition(queue, "Active"), "message")
    if policy in ("Hold", "HoldAndDrain"):
        clause = f"the {kind} {name} is stopped (stopPolicy {policy})"
    else:
        clause = f"the {kind} {name} is stopped or not ready" + (f": {said.rstrip('.')}" if said else "")
    return Finding("QueueStopped", clause, evidence, (Step("who runs the queue can open it again"), *looks))


def _checks(workload: Object, evidence: tuple[str, ...], looks: tuple[Step, ...]) -> Finding:
    open_checks = [one for one in items(workload, "status", "admissionChecks") if one.get("state") not in _READY_CHECKS]
    if not open_checks:
        return Finding("Queued", "Kueue has reserved its quota and is about to admit it", evidence, looks)
    first = open_checks[0]
    said = text(first, "message").rstrip(".")
    clause = f"Kueue has reserved its quota, and the admission check {text(first, 'name')} isn't ready"
    return Finding("AdmissionCheck", f"{clause}: {said}" if said else clause, evidence, looks)


def _evicted(situation: Situation, queue: str, reason: str, message: str, looks: tuple[Step, ...]) -> Finding:
    evidence = (f"Kueue: {message}", *_place(situation))
    if reason == "Preempted":
        priority = "one of higher priority" if "prioriti" in message else "another one, which has a right to the quota"
        clause = f"Kueue preempted it for {priority}; it waits in the queue {queue} and goes on from its checkpoint"
        return Finding(
            "Preempted", clause, evidence, (Step("give it a higher spec.scheduling.priorityClassName"), *looks)
        )
    return Finding("Evicted", f"Kueue evicted it ({reason}): {message.rstrip('.')}", evidence, looks)


def _waits(
    situation: Situation, queue: str, message: str, evidence: tuple[str, ...], looks: tuple[Step, ...]
) -> Finding:
    more = [f"{found[3]} more {resource_noun(found[1])} (flavor {found[2]})" for found in _MORE.finditer(message)]
    needs = f"until {joined(more)} are free" if more else "for its turn"
    before = _before(situation)
    place = (
        "" if before is None else (f"; {plural(before, 'workload')} come first" if before else "; it is the next one")
    )
    if before == 1:
        place = "; 1 workload comes first"
    holds = Step("who holds and who waits", f"kubectl get workloads {situation.where}")
    return Finding(
        "Queued", f"it waits in Kueue's queue {queue} {needs}{place}", (*evidence, *_place(situation)), (holds, *looks)
    )


def _place(situation: Situation) -> tuple[str, ...]:
    before = _before(situation)
    if before is None:
        return ()
    return (f"place {before + 1} in its LocalQueue{'' if situation.position is not None else ', by priority and age'}",)


def _before(situation: Situation) -> int | None:
    """Returns how many Workloads of the queue come first: as Kueue says, else by priority and then by age."""
    if situation.position is not None:
        return situation.position
    workload = situation.workload
    if situation.pending is None or workload is None:
        return None
    own = _order(workload)
    return sum(1 for one in situation.pending if name_of(one) != name_of(workload) and _order(one) < own)


def _order(workload: Object) -> tuple[int, str, str]:
    priority = whole(at(workload, "spec", "priority")) or 0
    return (-priority, text(workload, "metadata", "creationTimestamp"), name_of(workload))
