"""Lookups read the objects that a decision needs and that don't belong to the job, only when a job needs them.

A `Lookup` declares a job's questions, how to answer them, where to record the answers, and how long answers are fresh.
`Lookups` runs all of them in each pass over a job.

| lookup | question |
|---|---|
| `UNSEEN_PODS` | do pods that the status names, but that no watch has shown, exist? |
| `MISSING_PODS` | why don't a StatefulSet's pods exist (a quota, a webhook)? |
| `KILLED_CONTAINERS` | why did the kubelet kill a worker's container (a probe)? |
| `NODE_DOMAINS` | in which rack or zone is a node? |
| `PRIORITIES`, `FLAVORS` | what do a priority class and a resource flavor of Kueue mean? |
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.controller.apiserver.cluster import (
    EVENTS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    STATEFUL_SETS,
    Cluster,
    RawObject,
    Resource,
)
from trainmaster_operator.controller.apiserver.errors import ClusterError, Forbidden, NotFound
from trainmaster_operator.controller.cache.records import JobKey, LookupResults, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import event_time, string_pairs
from trainmaster_operator.reconciling.observed.gangs import workload_child
from trainmaster_operator.reconciling.observed.situation import CLOCK_SLACK, RUN_PHASES
from trainmaster_operator.reconciling.observed.snapshot import ContainerEnd, PodView, RefusedWrite
from trainmaster_operator.rendering import Placement, scheduler_of
from trainmaster_operator.wire.names import JOB_NAME_LABEL, TRIED_QUOTA_ANNOTATION
from trainmaster_operator.wire.report import EXIT_KILLED, EXIT_TERMINATED
from trainmaster_operator.wire.values import mapping, mappings, text

logger = logging.getLogger(__name__)
Question = TypeVar("Question")
Answer = TypeVar("Answer")
# Limit on the objects that are read at the same time.
CONCURRENT_READS = 16
# `Uids` are the unseen pods' uids; `Listed` contains all StatefulSets and pods with the job's label.
Uids = frozenset[str]
Listed = tuple[tuple[Resource, RawObject], ...]
# The phases in which a lost pod counts against its attempt.
ATTEMPT_PHASES = RUN_PHASES | {"Restarting"}
# Many clients may create Events with any text, so the pattern only accepts a valid object name.
_EXCEEDED_QUOTA = re.compile(r"exceeded quota: ([a-z0-9][-a-z0-9.]{0,252}), ")
# Limit in seconds on the decision's wait for the reason. The job recovers even without the reason.
PATIENCE = 5.0


@dataclass(frozen=True)
class Lookup(Generic[Question, Answer]):
    """Declares one kind of question.

    `read` returns the answer to each question (None if there is no answer), and omits questions that can't be answered
    now. It raises ClusterError only if no decision may be made without an answer.
    """

    name: str
    # The job's open questions.
    needed: Callable[[Snapshot], Collection[Question]]
    read: Callable[[Cluster, JobKey, Collection[Question]], Awaitable[Mapping[Question, Answer | None]]]
    record: Callable[[Store, JobKey, Mapping[Question, Answer | None]], None]
    # Whether the pass waits for the answers before it decides.
    before_decision: bool = False
    # Seconds until a question without an answer is asked again.
    retry_seconds: float = 5.0
    # Whether None counts as a final answer. If not, the question is asked again.
    none_is_final: bool = True
    # Seconds after which an answer that is still needed is read again. If None, an answer stays valid while the job
    # exists; otherwise an answer that is no longer needed is recorded as None.
    fresh_seconds: float | None = None
    # Seconds for which an answer must be needed before it is read; only for answers that expire.
    patience_seconds: float = 0.0


@dataclass
class _Asked(Generic[Question]):
    """Holds when a job began to need such answers, when they were last read, and which questions were answered."""

    since: float
    at: float = float("-inf")
    answered: set[Question] = field(default_factory=set)


@dataclass(eq=False)
class Lookups:
    """Runs lookups for all jobs. `clock` is in seconds."""

    cluster: Cluster
    store: Store
    lookups: Sequence[Lookup[Any, Any]]
    clock: Callable[[], float] = time.monotonic
    # By the job's uid and the lookup's name, for answers that expire.
    _asked: dict[str, dict[str, _Asked[Any]]] = field(default_factory=dict, init=False)

    def forget(self, uid: str) -> None:
        """Forget a deleted job."""
        self._asked.pop(uid, None)

    async def before_decision(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Read the answers that the decision needs first; returns whether anything was recorded."""
        recorded = False
        for lookup in self.lookups:
            questions = lookup.needed(snapshot) if lookup.before_decision else ()
            if questions:
                lookup.record(self.store, key, await lookup.read(self.cluster, key, questions))
                recorded = True
        return recorded

    async def after_decision(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Read answers for a later decision; returns the seconds until the next read, None without one."""
        waits = [await self._run(lookup, key, snapshot) for lookup in self.lookups if not lookup.before_decision]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _run(self, lookup: Lookup[Any, Any], key: JobKey, snapshot: Snapshot) -> float | None:
        questions = lookup.needed(snapshot)
        if lookup.fresh_seconds is not None:
            return await self._keep_fresh(lookup, lookup.fresh_seconds, key, snapshot, questions)
        if not questions:
            return None
        answers = await lookup.read(self.cluster, key, questions)
        if answers:
            lookup.record(self.store, key, answers)
        final = {question for question, answer in answers.items() if answer is not None or lookup.none_is_final}
        return None if final.issuperset(questions) else lookup.retry_seconds

    async def _keep_fresh(
        self, lookup: Lookup[Any, Any], seconds: float, key: JobKey, snapshot: Snapshot, questions: Collection[Any]
    ) -> float | None:
        uid = snapshot.job.uid
        asked = self._asked.get(uid, {}).get(lookup.name)
        if asked is not None and (settled := asked.answered.difference(questions)):
            asked.answered -= settled
            lookup.record(self.store, key, dict.fromkeys(settled))
        if not questions:
            if asked is not None:
                del self._asked[uid][lookup.name]
            return None
        now = self.clock()
        if asked is None:
            asked = self._asked.setdefault(uid, {})[lookup.name] = _Asked(now)
        due = max(asked.since + lookup.patience_seconds, asked.at + seconds)
        if now < due:
            return due - now
        asked.at = now
        answers = await lookup.read(self.cluster, key, questions)
        asked.answered.update(answers)
        lookup.record(self.store, key, answers)
        return seconds


def get_each(
    resource: Resource, name: Callable[[Question], str], answer: Callable[[Question, RawObject], Answer | None]
) -> Callable[[Cluster, JobKey, Collection[Question]], Awaitable[Mapping[Question, Answer | None]]]:
    """Returns the `read` of a lookup that answers each question by one cluster-scoped object.

    The answer is None if the object doesn't exist or may not be read.
    """

    async def read(cluster: Cluster, key: JobKey, questions: Collection[Question]) -> Mapping[Question, Answer | None]:
        slots = asyncio.Semaphore(CONCURRENT_READS)
        answers: dict[Question, Answer | None] = {}

        async def get(question: Question) -> None:
            async with slots:
                try:
                    answers[question] = answer(question, await cluster.get(resource, "", name(question)))
                except (NotFound, Forbidden) as error:
                    logger.info("%s: %s %s can't be read: %s", key, resource.kind, name(question), error.message)
                    answers[question] = None
                except ClusterError as error:
                    logger.warning("%s: %s %s can't be read now: %s", key, resource.kind, name(question), error)

        await asyncio.gather(*(get(question) for question in questions))
        return answers

    return read


def recorded_as(
    results: Callable[[Mapping[Question, Answer | None]], LookupResults],
) -> Callable[[Store, JobKey, Mapping[Question, Answer | None]], None]:
    """Returns the `record` of a lookup; `results` converts the answers to the results that are stored."""
    return lambda store, key, answers: store.record_lookups(key, results(answers))


async def list_events(cluster: Cluster, namespace: str, field_selector: str) -> list[RawObject]:
    """Returns the Events of a namespace that match a selector. Raises ClusterError."""
    return [event async for page in cluster.pages(EVENTS, namespace, field_selector=field_selector) for event in page]


def _unseen_pods(snapshot: Snapshot) -> Collection[Uids]:
    status, observed = snapshot.job.status, snapshot.observed
    if status.phase not in ATTEMPT_PHASES:
        return ()
    seen = {*observed.listed_pods, *observed.gone, *(pod.uid for pod in observed.pods)}
    unseen = frozenset(filter(None, status.pod_uids)) - seen
    return (unseen,) if unseen else ()


async def _list_pods(cluster: Cluster, key: JobKey, unseen: Collection[Uids]) -> Mapping[Uids, Listed]:
    selector = f"{JOB_NAME_LABEL}={key.name}"
    listed = [
        (resource, raw)
        for resource in (STATEFUL_SETS, PODS)
        async for page in cluster.pages(resource, key.namespace, label_selector=selector)
        for raw in page
    ]
    return dict.fromkeys(unseen, tuple(listed))


def _record_listed(store: Store, key: JobKey, answers: Mapping[Uids, Listed | None]) -> None:
    for uids, listed in answers.items():
        for resource, raw in listed or ():
            store.upsert(resource, raw)
        store.record_lookups(key, LookupResults(listed_pods=set(uids)))


UNSEEN_PODS = Lookup("unseen pods", _unseen_pods, _list_pods, _record_listed, before_decision=True)


class LackingSet(NamedTuple):
    """Names a StatefulSet that has fewer pods than it should have."""

    name: str
    uid: str


def _lacking_sets(snapshot: Snapshot) -> Collection[LackingSet]:
    sets = [
        child
        for child in snapshot.observed.children
        if child.kind == STATEFUL_SETS.kind and child.owner_uid == snapshot.job.uid and not child.deleting
    ]
    present = dict.fromkeys((child.name for child in sets), 0)
    for pod in snapshot.observed.pods:
        if pod.set_name in present:
            present[pod.set_name] += 1
    return [LackingSet(child.name, child.uid) for child in sets if present[child.name] < (child.replicas or 0)]


async def _read_pod_refusals(
    cluster: Cluster, key: JobKey, sets: Collection[LackingSet]
) -> Mapping[LackingSet, RefusedWrite]:
    problems: dict[LackingSet, RefusedWrite] = {}
    for lacking in sets:
        about = f"involvedObject.kind={STATEFUL_SETS.kind},involvedObject.name={lacking.name}"
        try:
            events = await list_events(cluster, key.namespace, f"{about},reason=FailedCreate")
        except ClusterError as error:
            logger.info("%s: the events of StatefulSet %s can't be read: %s", key, lacking.name, error)
            continue
        its = [event for event in events if mapping(event.get("involvedObject")).get("uid") == lacking.uid]
        if its:
            newest = max(its, key=event_time)
            message = text(newest.get("message"))
            if quota := _EXCEEDED_QUOTA.search(message):
                await _touch(cluster, key, lacking, quota[1])
            problems[lacking] = RefusedWrite(_pods_action(lacking), "FailedCreate", message, event_time(newest))
    return problems


async def _touch(cluster: Cluster, key: JobKey, lacking: LackingSet, quota: str) -> None:
    """Changes a StatefulSet so that its controller tries again, if the quota has changed since its refusal."""
    try:
        found = await cluster.get(RESOURCE_QUOTAS, key.namespace, quota)
        tried_with = f"{quota} {text(mapping(found.get('metadata')).get('resourceVersion'))}"
        body = {"metadata": {"uid": lacking.uid, "annotations": {TRIED_QUOTA_ANNOTATION: tried_with}}}
        await cluster.patch(STATEFUL_SETS, key.namespace, lacking.name, body)
    except ClusterError as error:
        logger.info("%s: StatefulSet %s isn't touched for quota %s: %s", key, lacking.name, quota, error)


def _record_pod_refusals(store: Store, key: JobKey, answers: Mapping[LackingSet, RefusedWrite | None]) -> None:
    for lacking, problem in answers.items():
        if problem is None:
            store.clear_refusal(key, _pods_action(lacking))
        else:
            store.record_refusal(key, problem, 0.0)


def _pods_action(lacking: LackingSet) -> str:
    return f"create the pods of StatefulSet {lacking.name}"


# The controller needs three seconds to make a few hundred pods.
MISSING_PODS = Lookup(
    "missing pods", _lacking_sets, _read_pod_refusals, _record_pod_refusals, patience_seconds=3.0, fresh_seconds=5.0
)


class KilledContainer(NamedTuple):
    """Identifies the end of a worker's container that a signal killed (in seconds since the epoch)."""

    pod_uid: str
    started_at: float
    finished_at: float


def _kills_needed(snapshot: Snapshot) -> Collection[KilledContainer]:
    if snapshot.job.status.completion_time is not None:
        return ()
    return [
        KilledContainer(pod.uid, end.started_at or 0.0, end.finished_at)
        for pod in snapshot.observed.pods
        if (end := _end_to_explain(pod)) is not None
        and end.finished_at is not None
        and (pod.uid, end.finished_at) not in snapshot.observed.kills
    ]


def _end_to_explain(pod: PodView) -> ContainerEnd | None:
    container = pod.worker_container
    end = (container.end or container.last_end) if container is not None else None
    if end is None or pod.deleting or end.exit_code not in (EXIT_KILLED, EXIT_TERMINATED) or end.reason == "OOMKilled":
        return None
    return end if end.report is None or end.report.state == "Stopped" else None


async def _read_kills(
    cluster: Cluster, key: JobKey, kills: Collection[KilledContainer]
) -> Mapping[KilledContainer, str | None]:
    """Reads the kubelets' events about killed containers: one pod's events, or the namespace's for several pods."""
    uids = [kill.pod_uid for kill in kills]
    about = f"involvedObject.uid={uids[0]}" if len(uids) == 1 else "involvedObject.kind=Pod"
    try:
        async with asyncio.timeout(PATIENCE):
            events = await list_events(cluster, key.namespace, f"{about},reason=Killing")
    except (ClusterError, TimeoutError) as error:
        problem = str(error) or "no answer in time"
        logger.info("%s: why %d containers were killed can't be read: %s", key, len(uids), problem)
        events = []
    return {kill: _kill_reason(events, kill) for kill in kills}


def _kill_reason(events: list[RawObject], kill: KilledContainer) -> str | None:
    newest = max((event for event in events if _is_about(event, kill)), key=event_time, default=None)
    return None if newest is None else f"the kubelet: {text(newest.get('message'), 300)}"


def _is_about(event: Mapping[str, Any], kill: KilledContainer) -> bool:
    """Returns whether an event reports that a probe failed and caused this end, not that the pod was stopped."""
    involved = mapping(event.get("involvedObject"))
    container = (kill.pod_uid, f"spec.containers{{{WORKER_CONTAINER}}}")
    if (involved.get("uid"), involved.get("fieldPath")) != container or "probe" not in text(event.get("message")):
        return False
    return kill.started_at - CLOCK_SLACK <= event_time(event) <= kill.finished_at + CLOCK_SLACK


KILLED_CONTAINERS = Lookup(
    "killed containers",
    _kills_needed,
    _read_kills,
    recorded_as(
        lambda found: LookupResults(kills={(kill.pod_uid, kill.finished_at): why for kill, why in found.items()})
    ),
    before_decision=True,
)


class NodeLabel(NamedTuple):
    """Names a node, and the topology key that a job uses."""

    node: str
    label: str


def _domains_needed(snapshot: Snapshot) -> Collection[NodeLabel]:
    spec = snapshot.job.spec
    topology = spec.scheduling.topology if spec is not None else None
    if topology is None:
        return ()
    nodes = {pod.node for pod in snapshot.observed.pods if pod.node} - snapshot.observed.domains.keys()
    return [NodeLabel(node, topology.key) for node in nodes]


def _domain(asked: NodeLabel, node: RawObject) -> str | None:
    domain = mapping(mapping(node.get("metadata")).get("labels")).get(asked.label)
    return domain if isinstance(domain, str) else None


NODE_DOMAINS = Lookup(
    "node domains",
    _domains_needed,
    get_each(NODES, lambda asked: asked.node, _domain),
    recorded_as(lambda found: LookupResults(domains={asked.node: domain for asked, domain in found.items()})),
    retry_seconds=2.0,
)


def _priority_class_needed(snapshot: Snapshot) -> Collection[str]:
    spec = snapshot.job.spec
    if spec is None or scheduler_of(spec) != "kueue":
        return ()
    name = spec.scheduling.priority_class_name
    return (name,) if name is not None and name not in snapshot.observed.priorities else ()


def _priority(name: str, raw: RawObject) -> int | None:
    """Returns an int32."""
    del name
    value = raw.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def _flavors_needed(snapshot: Snapshot) -> Collection[str]:
    job, observed = snapshot.job, snapshot.observed
    if job.spec is None or scheduler_of(job.spec) != "kueue":
        return ()
    child = workload_child(job, observed)
    workload = child.workload if child is not None else None
    named = {flavor for part in workload.pod_sets for flavor in part.flavors} if workload is not None else set()
    return [flavor for flavor in sorted(named) if observed.flavors.get(flavor) is None]


def _flavor(name: str, raw: RawObject) -> Placement:
    del name
    spec = mapping(raw.get("spec"))
    return Placement(string_pairs(spec.get("nodeLabels")), tuple(mappings(spec.get("tolerations"))))


PRIORITIES = Lookup(
    "priority classes",
    _priority_class_needed,
    get_each(PRIORITY_CLASSES, str, _priority),
    recorded_as(lambda found: LookupResults(priorities=dict(found))),
)
# A job can't start without its flavors, so a missing one is looked up again.
FLAVORS = Lookup(
    "flavors",
    _flavors_needed,
    get_each(RESOURCE_FLAVORS, str, _flavor),
    recorded_as(lambda found: LookupResults(flavors=dict(found))),
    none_is_final=False,
)
LOOKUPS: Sequence[Lookup[Any, Any]] = (UNSEEN_PODS, KILLED_CONTAINERS, MISSING_PODS, NODE_DOMAINS, PRIORITIES, FLAVORS)
