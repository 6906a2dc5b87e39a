"""Compares a whole job with the nodes that it may use, because all its workers have to find a node at once.

The scheduler's message is about one pod. With four workers of four GPUs on three nodes of four, it says that the fourth
pod finds no GPU free, although no other job uses one: the cluster can't ever run the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from trainmaster.client.diagnosis.capacity import amount_of, requests_of, resource_noun, shown
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import Object, at, items, joined, name_of, text
from trainmaster.client.view import plural
from trainmaster_operator.wire.names import JOB_NAME_LABEL

# Every real node has these. If a node object doesn't show one, it isn't what the job lacks.
_ORDINARY = ("cpu", "memory", "ephemeral-storage", "pods")
_UNLIMITED = Decimal(10**18)


@dataclass(frozen=True)
class Place:
    """Place is a node that the job may use: its allocatable resources, and what other jobs' pods request of them.

    `others` is None if the pods couldn't be read.
    """

    node: str
    allocatable: Mapping[str, Decimal]
    others: Mapping[str, Decimal] | None

    def free(self, resource: str) -> Decimal:
        """Returns the amount that this job could use if it had no pods there. Without the pods, returns all."""
        return max(self.allocatable[resource] - (self.others or {}).get(resource, Decimal(0)), Decimal(0))

    def workers(self, asked: Mapping[str, Decimal], *, empty: bool) -> int:
        """Returns how many workers fit, on the empty node or beside the other jobs."""
        counts = [
            int((self.allocatable[name] if empty else self.free(name)) // amount)
            for name, amount in asked.items()
            if amount > 0
        ]
        return min(counts, default=0)


@dataclass(frozen=True)
class Gang:
    """Gang is a job's number of workers, what each requests, and the nodes that they may use."""

    workers: int
    asked: Mapping[str, Decimal]
    places: Sequence[Place]
    # Whether nodes that have the resource are left out, because the job may not use them.
    is_part: bool

    def need(self, resource: str) -> Decimal:
        return self.workers * self.asked[resource]

    def total(self, resource: str) -> Decimal:
        return sum((place.allocatable[resource] for place in self.places), Decimal(0))

    def fitting(self, *, empty: bool) -> int:
        """Returns how many workers the nodes hold at once."""
        return sum(place.workers(self.asked, empty=empty) for place in self.places)

    def scarce(self, *, empty: bool) -> str:
        """Returns the resource of which the fewest workers fit. Accelerators come before CPU and memory."""
        names = [name for name, amount in self.asked.items() if amount > 0]

        def fits(name: str) -> int:
            return sum(place.workers({name: self.asked[name]}, empty=empty) for place in self.places)

        return min(names, key=lambda name: (fits(name), name in _ORDINARY, name))


def gang_of(situation: Situation, asked: Mapping[str, Decimal], nodes: Sequence[Object]) -> Gang | None:
    """Returns the whole job beside the nodes that it may use. None if its workers differ or their number is unknown."""
    spec = situation.job.raw.get("spec")
    workers = at(spec, "elastic", "minWorkers") or situation.job.status.workers.desired or at(spec, "workers")
    if not isinstance(workers, int) or workers < 1 or len(items(spec, "workerGroups")) > 1:
        return None
    used = _used_by_others(situation)
    everywhere = {name: amount for name, amount in asked.items() if amount > 0}
    places = [
        Place(name_of(node), _allocatable(node, everywhere), None if used is None else used.get(name_of(node), {}))
        for node in nodes
    ]
    others = [node for node in situation.nodes or () if not any(node is one for one in nodes)]
    devices = [name for name in everywhere if name not in _ORDINARY]
    is_part = any(_allocatable(node, everywhere)[name] > 0 for node in others for name in devices or everywhere)
    return Gang(workers, everywhere, places, is_part)


def gang_finding(situation: Situation, gang: Gang) -> Finding | None:
    """Returns why the nodes can't hold all workers at once, or None if they can, or if a single worker is too large."""
    could = gang.fitting(empty=True)
    if could >= gang.workers:
        return _in_use(situation, gang)
    if could == 0:
        return None
    resource = gang.scarce(empty=True)
    needs, have = _needs(gang, resource), _have(gang)
    total = gang.total(resource)
    if total < gang.need(resource):
        clause = f"{needs}, and {have} {shown(total, resource)}"
    else:
        held = f"holds only {could} of its {plural(gang.workers, 'worker')}"
        clause = f"{needs}, and {have} {shown(total, resource)}, but split over nodes in a way that {held}"
    fewer = f"use at most {plural(could, 'worker')} of this size (spec.workers), or smaller ones"
    elastic = "" if at(situation.job.raw, "spec", "elastic") else ", or let it run with fewer (spec.elastic)"
    steps = (Step(f"{fewer}{elastic}; waiting can't help, unless nodes are added"), _NODES)
    return Finding("InsufficientResources", clause, _lines(gang, resource), steps)


_NODES = Step("the nodes", "kubectl get nodes")


def _in_use(situation: Situation, gang: Gang) -> Finding | None:
    """Returns the finding on nodes that are large enough and used by others."""
    now = gang.fitting(empty=False)
    if situation.pods_on_nodes is None or now >= gang.workers or now == 0:
        return None
    resource = gang.scarce(empty=False)
    free = sum((place.free(resource) for place in gang.places), Decimal(0))
    total = gang.total(resource)
    noun = resource_noun(resource, shown(total, resource))
    users = users_of(situation, gang, resource)
    are = "is" if free == 1 else "are"
    beside = f"{shown(free, resource)} of {shown(total, resource)} {noun} {are} free beside "
    beside += joined(users, 2) or "others"
    if free < gang.need(resource):
        clause = f"{_needs(gang, resource)}, and {beside}"
    else:
        clause = f"{_needs(gang, resource)}; {beside}, but split over nodes: only {now} of its workers fit"
    wait = Step(f"wait for them, or use at most {plural(now, 'worker')} of this size (spec.workers)")
    evidence = (*(f"in use by {user}" for user in users[:5]), *_lines(gang, resource))
    return Finding("InsufficientResources", clause, evidence, (wait, _NODES))


def users_of(situation: Situation, gang: Gang, resource: str) -> list[str]:
    """Returns the jobs and pods of others that use the resource on these nodes, with their amounts, largest first."""
    nodes, amounts = {place.node for place in gang.places}, dict[str, Decimal]()
    for pod in situation.pods_on_nodes or ():
        if text(pod, "spec", "nodeName") not in nodes or is_own(situation, pod) or has_ended(pod):
            continue
        job, namespace = text(pod, "metadata", "labels", JOB_NAME_LABEL), text(pod, "metadata", "namespace")
        who = f"job {namespace}/{job}" if job else f"pod {namespace}/{name_of(pod)}"
        amounts[who] = amounts.get(who, Decimal(0)) + requests_of(pod).get(resource, Decimal(0))
    ordered = sorted(
        ((amount, who) for who, amount in amounts.items() if amount > 0), key=lambda one: (-one[0], one[1])
    )
    return [f"{who} ({shown(amount, resource)})" for amount, who in ordered]


def is_own(situation: Situation, pod: Object) -> bool:
    """Returns whether a pod belongs to the job itself."""
    namespace, job = text(pod, "metadata", "namespace"), text(pod, "metadata", "labels", JOB_NAME_LABEL)
    return (namespace, job) == (situation.job.namespace, situation.job.name)


def has_ended(pod: Object) -> bool:
    """Returns whether a pod holds no resources any more."""
    return text(pod, "status", "phase") in ("Succeeded", "Failed")


def _needs(gang: Gang, resource: str) -> str:
    each = f"{plural(gang.workers, 'worker')} of {shown(gang.asked[resource], resource)}"
    need = shown(gang.need(resource), resource)
    return f"the job needs {need} {resource_noun(resource, need)} at once ({each} each)"


def _have(gang: Gang) -> str:
    number = plural(len(gang.places), "node")
    has = "has" if len(gang.places) == 1 else "have"
    return f"the {number} that it may use {has}" if gang.is_part else "the cluster has"


def _lines(gang: Gang, resource: str) -> tuple[str, ...]:
    lines = []
    for place in sorted(gang.places, key=lambda one: (-one.allocatable[resource], one.node))[:5]:
        total = shown(place.allocatable[resource], resource)
        line = f"node {place.node} has {total} {resource_noun(resource, total)}"
        if place.others is not None:
            used = place.allocatable[resource] - place.free(resource)
            line += f", {shown(used, resource)} of them in use by other jobs" if used else ", none in use by other jobs"
        lines.append(line)
    return tuple(lines)


def _allocatable(node: Object, asked: Mapping[str, Decimal]) -> dict[str, Decimal]:
    given = at(node, "status", "allocatable") or {}
    return {
        name: _UNLIMITED if name in _ORDINARY and name not in given else amount_of(given.get(name)) for name in asked
    }


def _used_by_others(situation: Situation) -> dict[str, dict[str, Decimal]] | None:
    if situation.pods_on_nodes is None:
        return None
    used: dict[str, dict[str, Decimal]] = {}
    for pod in situation.pods_on_nodes:
        if is_own(situation, pod) or has_ended(pod):
            continue
        node = used.setdefault(text(pod, "spec", "nodeName"), {})
        for name, amount in requests_of(pod).items():
            node[name] = node.get(name, Decimal(0)) + amount
    return used
