"""Explains why a job waits in Kueue's queue (obstacle, position or eviction), or why its gang's PodGroup waits.

The patterns match messages of Kueue 0.10 to 0.18 (pkg/scheduler/flavorassigner, pkg/controller/core, pkg/workload).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trainmaster.client.diagnosis.capacity import read_exclusions, resource_noun
from trainmaster.client.diagnosis.scheduling import whole_job_finding
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import Object, at, condition, has_condition, items, joined, name_of, text
from trainmaster_operator.wire.values import whole

_MORE = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
# Before Kueue 0.13, "> maximum capacity" was followed by the borrowing limit or by no figures.
_NEVER = re.compile(
    r"insufficient quota for (\S+) in flavor (\S+?),? "
    r".*?(?:\+ current podset request \(([^)]*)\) )?> maximum capacity(?: \(([^)]*)\))?"
)
# Reasons of a flavor that waiting doesn't change. Kueue prints a taint as {key value effect time} or key=value:effect.
_TAINTED = re.compile(r"untolerated taint (?:\{(\S+) (\S*) (\w+)[^}]*\}|(\S+?)) in flavor ([\w.-]+)")
_UNSELECTED = re.compile(r"flavor ([\w.-]+) doesn't match node affinity")
_UNKNOWN = re.compile(r"resource (\S+) unavailable in ClusterQueue")
_NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) doesn't exist")
_INACTIVE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) is inactive")
_SCHEDULERS = {"volcano": "Volcano", "coscheduling": "the coscheduling plugin", "kueue": "Kueue"}
_SCHEDULERS |= {"kubernetes": "Workloads"}
_ORIGIN = re.compile(r"Origin reason is (.*)", re.DOTALL)


def queue_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on why Kueue doesn't start the job."""
    suspended = situation.condition("Suspended")
    if suspended is None or suspended.status != "True" or suspended.reason != "Queued" or situation.job.finished:
        return
    queue = text(situation.job.raw, "spec", "scheduling", "queue")
    workload = situation.workload
    if workload is None:
        evidence = (f"the operator: {suspended.message}",)
        if not _queue_exists(situation, queue):
            yield _missing(situation, "LocalQueue", queue, evidence)
            return
        look = Step("the queues and their workloads", f"kubectl get localqueues,workloads {situation.where}")
        yield Finding("Queued", f"it waits for its turn in Kueue's queue {queue}", evidence, (look,), False)
        return
    message = text(condition(workload, "QuotaReserved"), "message") or suspended.message
    yield _held(situation, workload, queue, message)


def _held(situation: Situation, workload: Object, queue: str, message: str) -> Finding:
    evidence = (f"Kueue: {message}",)
    look = Step("the whole Workload", f"kubectl describe workload {name_of(workload)} {situation.where}")
    evicted = condition(workload, "Evicted")
    if at(workload, "spec", "active") is False:
        return Finding("QueueStopped", "its Workload is deactivated (active: false)", evidence, (look,))
    if found := _NO_QUEUE.search(message):
        return _missing(situation, found[1], found[2], evidence, look)
    if not _queue_exists(situation, queue):
        return _missing(situation, "LocalQueue", queue, evidence, look)
    if found := _INACTIVE.search(message):
        return _inactive(situation, found[1], found[2], evidence, look)
    if has_condition(workload, "QuotaReserved"):
        return _checks(workload, evidence, look)
    if found := _NEVER.search(message):
        asked = f"{found[3]} {resource_noun(found[1], found[3])}" if found[3] else resource_noun(found[1])
        limit = f"the queue {queue} gives {found[4] or 'fewer'} at most (flavor {found[2].rstrip(',')})"
        clause = f"it never fits: it asks for {asked}, and {limit}"
        raised = Step("ask for less, or have the ClusterQueue's quota raised")
        return Finding("QueueTooSmall", clause, evidence, (raised, look))
    if found := _UNKNOWN.search(message):
        clause = f"the ClusterQueue of {queue} has no quota for {found[1]}, which the job asks for"
        return Finding("QueueTooSmall", clause, evidence, (Step(f"have {found[1]} added to the ClusterQueue"), look))
    if "insufficient" not in message and (unfit := _unfit(queue, message)):
        return replace(unfit, evidence=evidence, steps=(*unfit.steps, look))
    if has_condition(workload, "Evicted") or message.startswith("Preempted"):
        reason, said = text(evicted, "reason") or "Preempted", text(evicted, "message") or message
        return _evicted(situation, queue, reason, said, look)
    return _waits(situation, queue, message, look)


def _unfit(queue: str, message: str) -> Finding | None:
    """Returns the finding on a queue none of whose flavors has nodes for the job."""
    reasons = []
    for key, value, effect, whole_taint, flavor in _TAINTED.findall(message):
        taint = whole_taint or f"{key}{'=' if value else ''}{value}:{effect}"
        reasons.append(f"the nodes of flavor {flavor} have the taint {taint}, which the job doesn't tolerate")
    reasons += [f"the job's node selector rules out flavor {flavor}" for flavor in _UNSELECTED.findall(message)]
    if not reasons:
        return None
    change = "change spec.podTemplate.spec (tolerations, nodeSelector), or choose another queue; waiting can't help"
    return Finding("FlavorUnfit", f"no flavor of Kueue's queue {queue} fits it: {joined(reasons)}", (), (Step(change),))


def _queue_exists(situation: Situation, queue: str) -> bool:
    """Returns whether the LocalQueue exists. If LocalQueues couldn't be read, returns True."""
    return situation.local_queues is None or any(name_of(one) == queue for one in situation.local_queues)


def _missing(situation: Situation, kind: str, name: str, evidence: tuple[str, ...], *looks: Step) -> Finding:
    others = [name_of(one) for one in situation.local_queues or ()]
    is_local = kind == "LocalQueue"
    clause = f"Kueue has no {kind} {name}" + (" in the job's namespace" if is_local else "")
    clause += f"; it has {joined(others)}" if others and is_local else ""
    step = Step(f"create the {kind}, or correct spec.scheduling.queue", f"kubectl get localqueues {situation.where}")
    return Finding("QueueMissing", clause, evidence, (step, *looks))


def _inactive(situation: Situation, kind: str, name: str, evidence: tuple[str, ...], look: Step) -> Finding:
    policy = text(situation.cluster_queue, "spec", "stopPolicy")
    if policy in ("Hold", "HoldAndDrain"):
        clause = f"the {kind} {name} is stopped (stopPolicy {policy})"
    else:
        why = text(condition(situation.cluster_queue or {}, "Active"), "message").rstrip(".")
        clause = f"the {kind} {name} is stopped or not ready" + (f": {why}" if why else "")
    return Finding("QueueStopped", clause, evidence, (Step("ask the queue's administrator to open it again"), look))


def _checks(workload: Object, evidence: tuple[str, ...], look: Step) -> Finding:
    waiting = [one for one in items(workload, "status", "admissionChecks") if one.get("state") != "Ready"]
    if not waiting:
        return Finding("Queued", "Kueue has reserved its quota and is about to admit it", evidence, (look,))
    clause = f"Kueue has reserved its quota, and the admission check {text(waiting[0], 'name')} isn't ready"
    message = text(waiting[0], "message").rstrip(".")
    return Finding("AdmissionCheck", f"{clause}: {message}" if message else clause, evidence, (look,))


def _evicted(situation: Situation, queue: str, reason: str, message: str, look: Step) -> Finding:
    evidence = (f"Kueue: {message}", *_place(situation))
    if reason != "Preempted":
        return Finding("Evicted", f"Kueue evicted it ({reason}): {message.rstrip('.')}", evidence, (look,))
    winner = "one of higher priority" if "prioriti" in message else "another one, which has a right to the quota"
    clause = f"Kueue preempted it for {winner}; it waits in the queue {queue} and will resume from its checkpoint"
    return Finding("Preempted", clause, evidence, (Step("raise spec.scheduling.priorityClassName"), look))


def _waits(situation: Situation, queue: str, message: str, look: Step) -> Finding:
    amounts = [(found[3], resource_noun(found[1], found[3]), found[2]) for found in _MORE.finditer(message)]
    more = [f"{amount} more {noun} (flavor {flavor})" for amount, noun, flavor in amounts]
    are = "is" if [amount for amount, *_ in amounts] == ["1"] else "are"
    needs = f"until {joined(more)} {are} free" if more else "for its turn"
    before = _before(situation)
    places = {None: "", 0: "; it is the next one", 1: "; 1 workload comes first"}
    clause = f"it waits in Kueue's queue {queue} {needs}" + places.get(before, f"; {before} workloads come first")
    holds = Step("running and waiting workloads", f"kubectl get workloads {situation.where}")
    return Finding("Queued", clause, (f"Kueue: {message}", *_place(situation)), (holds, look))


def _place(situation: Situation) -> tuple[str, ...]:
    before = _before(situation)
    order = "" if situation.position is not None else ", by priority and age"
    return () if before is None else (f"place {before + 1} in its LocalQueue{order}",)


def _before(situation: Situation) -> int | None:
    """Returns how many Workloads are ahead in the queue, as reported by Kueue or else counted by priority and age."""
    if situation.position is not None:
        return situation.position
    if situation.pending is None or situation.workload is None:
        return None
    own = _order(situation.workload)
    return sum(1 for one in situation.pending if name_of(one) != own[2] and _order(one) < own)


def _order(workload: Object) -> tuple[int, str, str]:
    priority = whole(at(workload, "spec", "priority")) or 0
    return (-priority, text(workload, "metadata", "creationTimestamp"), name_of(workload))


def gang_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why a gang waits: its scheduler is missing, or the nodes can't hold the whole PodGroup at once."""
    if not situation.is_starting:
        return
    if situation.shown_reason == "NotInstalled":
        gang = text(situation.job.raw, "spec", "scheduling", "gang", "scheduler")
        name = _SCHEDULERS.get(gang, gang)
        clause = f"spec.scheduling.gang asks for {name}, which isn't installed in this cluster"
        step = Step(f"install {name}, or apply the job again without spec.scheduling.gang")
        yield Finding("GangNotInstalled", clause, (f"the operator: {situation.shown_message}",), (step,))
        return
    group = situation.pod_group or {}
    for one in items(group, "status", "conditions"):
        if (one.get("type"), one.get("status")) not in (("Unschedulable", "True"), ("PodGroupScheduled", "False")):
            continue
        message = text(one, "message")
        origin = _ORIGIN.search(message)
        parts = read_exclusions(origin[1] if origin else message) or ()
        lacking = sorted({resource_noun(part.about) for part in parts if part.kind == "resource"})
        scarce = f" (too few free {', '.join(lacking)})" if lacking else ""
        count = at(group, "spec", "minMember") or "all"
        pods = "1 pod" if count == 1 else f"{count} pods"
        clause = f"its gang needs nodes for {pods} at once, and there aren't enough{scarce}"
        evidence: tuple[str, ...] = (f"PodGroup {name_of(group)}: {message}",)
        steps: tuple[Step, ...] = (Step("wait for other jobs, ask for fewer workers, or for less per worker"),)
        if whole := whole_job_finding(situation):
            clause = f"its gang waits for nodes: {whole.clause}"
            evidence, steps = (*whole.evidence, *evidence), whole.steps
        look = Step("the gang", f"kubectl describe podgroup {name_of(group)} {situation.where}")
        yield Finding("GangWaits", clause, evidence, (*steps, look))
        return
