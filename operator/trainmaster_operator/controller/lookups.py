"""Lookups read objects that a decision needs but no watch shows, such as nodes, and only for jobs that need them.

| question | read |
|---|---|
| Do pods that the status names, but that no watch has shown, exist? | before the decision |
| Why did the kubelet kill a worker's container (a probe)? | before the decision |
| What did a failed init container print? | before the decision |
| Why don't a StatefulSet's pods exist (a quota, a webhook)? | after the decision, repeatedly |
| In which rack or zone is a node? | after the decision, once |
| What do a priority class and a resource flavor of Kueue mean? | after the decision, once |
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from trainmaster_operator.api.kept_logs import stamped_line
from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.api.printable import printable
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
from trainmaster_operator.controller.cache.views import event_time, int32, string_pairs
from trainmaster_operator.reconciling.observed.gangs import workload_child
from trainmaster_operator.reconciling.observed.situation import CLOCK_SLACK, RUN_PHASES
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView, RefusedWrite, failed_init
from trainmaster_operator.rendering import Placement, scheduler_of
from trainmaster_operator.wire.names import JOB_NAME_LABEL, TRIED_QUOTA_ANNOTATION
from trainmaster_operator.wire.report import EXIT_KILLED, EXIT_TERMINATED
from trainmaster_operator.wire.values import mapping, mappings, text

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
# Limit on the objects that are read at the same time.
CONCURRENT_READS = 16
# The phases in which a lost pod counts against its attempt.
ATTEMPT_PHASES = RUN_PHASES | {"Restarting"}
# Many clients may create Events with any text, so the pattern only accepts a valid object name.
_EXCEEDED_QUOTA = re.compile(r"exceeded quota: ([a-z0-9][-a-z0-9.]{0,252}), ")
# Limit on the seconds that a decision waits for the reason of a kill. The job recovers even without the reason.
KILLS_SECONDS = 5.0
# Limits on the quoted output of a failed init container, and on the seconds that a decision waits for it.
INIT_LINES, INIT_BYTES, INIT_CHARACTERS, INIT_SECONDS = 3, 16 * 1024, 600, 5.0
# The reason for missing pods is first read after this many seconds, and then at this interval. The StatefulSet
# controller needs three seconds to create a few hundred pods.
MISSING_SECONDS, REREAD_SECONDS = 3.0, 5.0
# Seconds until a failed read is repeated: of a node, and of an object of Kueue.
NODE_RETRY, KUEUE_RETRY = 2.0, 5.0


@dataclass
class _Missing:
    """Holds when a job's StatefulSets began to lack pods, when reasons were last read, and which sets have a reason."""

    since: float
    read_at: float = float("-inf")
    # The sets' names, by uid.
    explained: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Lookups:
    """Runs the lookups of all jobs. `clock` is in seconds."""

    cluster: Cluster
    store: Store
    # Whether the output of a job's pods may be kept and shown (runPolicy.keepLogs).
    allows_output: Callable[[Job], bool] = lambda job: True
    clock: Callable[[], float] = time.monotonic
    # By the job's uid.
    _missing: dict[str, _Missing] = field(default_factory=dict, init=False)

    def forget(self, uid: str) -> None:
        self._missing.pop(uid, None)

    async def before_decision(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Read the answers that the decision needs first; returns whether anything was recorded.

        Raises ClusterError if an answer can't be read and no decision may be made without it.
        """
        listed = await self._list_unseen_pods(key, snapshot)
        printed = await self._read_init_output(key, snapshot)
        return await self._explain_kills(key, snapshot) or printed or listed

    async def after_decision(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Read answers for a later decision; returns the seconds until the next read, or None if none is due."""
        waits = [
            await self._explain_missing_pods(key, snapshot),
            await self._read_domains(key, snapshot),
            await self._read_kueue(key, snapshot),
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _list_unseen_pods(self, key: JobKey, snapshot: Snapshot) -> bool:
        status, observed = snapshot.job.status, snapshot.observed
        if status.phase not in ATTEMPT_PHASES:
            return False
        seen = {*observed.listed_pods, *observed.gone, *(pod.uid for pod in observed.pods)}
        unseen = set(filter(None, status.pod_uids)) - seen
        if not unseen:
            return False
        selector = f"{JOB_NAME_LABEL}={key.name}"
        listed = [
            (resource, raw)
            for resource in (STATEFUL_SETS, PODS)
            async for page in self.cluster.pages(resource, key.namespace, label_selector=selector)
            for raw in page
        ]
        for resource, raw in listed:
            self.store.upsert(resource, raw)
        self.store.record_lookups(key, LookupResults(listed_pods=unseen))
        return True

    async def _explain_kills(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Reads the kubelets' events about killed containers.

        If only one pod is affected, only its events are read, else those of all pods in the namespace.
        """
        if snapshot.job.status.completion_time is not None:
            return False
        kills = [
            (pod.uid, *times)
            for pod in snapshot.observed.pods
            if (times := _kill_to_explain(pod)) and (pod.uid, times[1]) not in snapshot.observed.kills
        ]
        if not kills:
            return False
        about = f"involvedObject.uid={kills[0][0]}" if len(kills) == 1 else "involvedObject.kind=Pod"
        try:
            async with asyncio.timeout(KILLS_SECONDS):
                events = await self._events(key.namespace, f"{about},reason=Killing")
        except (ClusterError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            logger.info("%s: why %d containers were killed can't be read: %s", key, len(kills), problem)
            events = []
        reasons = {(uid, finished): _kill_reason(events, uid, started, finished) for uid, started, finished in kills}
        self.store.record_lookups(key, LookupResults(kills=reasons))
        return True

    async def _read_init_output(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Reads the last lines of the first failed init container; the others usually fail in the same way."""
        status, observed = snapshot.job.status, snapshot.observed
        if status.phase not in ATTEMPT_PHASES or not self.allows_output(snapshot.job):
            return False
        failed = ((pod, found) for pod in observed.pods if (found := failed_init(pod)) is not None)
        pod, found = min(failed, key=lambda each: each[0].worker, default=(None, None))
        if pod is None or found is None:
            return False
        container, end = found
        place = pod.uid, container.name, end.finished_at or 0.0
        if end.message or place in observed.init_output:
            return False
        lines = ""
        with suppress(TimeoutError, ClusterError):
            async with asyncio.timeout(INIT_SECONDS):
                raw = await self.cluster.pod_log(
                    key.namespace,
                    pod.name,
                    container=container.name,
                    tail_lines=INIT_LINES,
                    limit_bytes=INIT_BYTES,
                )
            lines = "; ".join(filter(None, (stamped_line(line).text.strip() for line in raw.splitlines())))
        self.store.record_lookups(key, LookupResults(init_output={place: printable(lines)[-INIT_CHARACTERS:]}))
        return True

    async def _explain_missing_pods(self, key: JobKey, snapshot: Snapshot) -> float | None:
        job_uid, lacking = snapshot.job.uid, _lacking_sets(snapshot)
        missing = self._missing.setdefault(job_uid, _Missing(self.clock()))
        for uid in missing.explained.keys() - lacking.keys():
            self.store.clear_refusal(key, _pods_action(missing.explained.pop(uid)))
        if not lacking:
            del self._missing[job_uid]
            return None
        now = self.clock()
        due = max(missing.since + MISSING_SECONDS, missing.read_at + REREAD_SECONDS)
        if now < due:
            return due - now
        missing.read_at = now
        for uid, name in lacking.items():
            if (problem := await self._pods_problem(key, name, uid)) is not None:
                missing.explained[uid] = name
                self.store.record_refusal(key, problem, 0.0)
        return REREAD_SECONDS

    async def _pods_problem(self, key: JobKey, name: str, uid: str) -> RefusedWrite | None:
        """Returns the newest problem that the controller had when it created a StatefulSet's pods."""
        about = f"involvedObject.kind={STATEFUL_SETS.kind},involvedObject.name={name}"
        try:
            events = await self._events(key.namespace, f"{about},reason=FailedCreate")
        except ClusterError as error:
            logger.info("%s: the events of StatefulSet %s can't be read: %s", key, name, error)
            return None
        its = [event for event in events if mapping(event.get("involvedObject")).get("uid") == uid]
        if not its:
            return None
        newest = max(its, key=event_time)
        message = text(newest.get("message"))
        if quota := _EXCEEDED_QUOTA.search(message):
            await self._touch(key, name, uid, quota[1])
        return RefusedWrite(_pods_action(name), "FailedCreate", message, event_time(newest))

    async def _touch(self, key: JobKey, name: str, uid: str, quota: str) -> None:
        """Annotates a StatefulSet with the quota's version, so that a changed quota makes the controller try again."""
        try:
            found = await self.cluster.get(RESOURCE_QUOTAS, key.namespace, quota)
            tried_with = f"{quota} {text(mapping(found.get('metadata')).get('resourceVersion'))}"
            body = {"metadata": {"uid": uid, "annotations": {TRIED_QUOTA_ANNOTATION: tried_with}}}
            await self.cluster.patch(STATEFUL_SETS, key.namespace, name, body)
        except ClusterError as error:
            logger.info("%s: StatefulSet %s isn't touched for quota %s: %s", key, name, quota, error)

    async def _events(self, namespace: str, field_selector: str) -> list[RawObject]:
        pages = self.cluster.pages(EVENTS, namespace, field_selector=field_selector)
        return [event async for page in pages for event in page]

    async def _read_domains(self, key: JobKey, snapshot: Snapshot) -> float | None:
        spec, observed = snapshot.job.spec, snapshot.observed
        topology = spec.scheduling.topology if spec is not None else None
        nodes = {pod.node for pod in observed.pods if pod.node} - observed.domains.keys()
        if topology is None or not nodes:
            return None
        domains = await self._get_each(key, NODES, nodes, lambda node: _domain(node, topology.key))
        self.store.record_lookups(key, LookupResults(domains=domains))
        return NODE_RETRY if len(domains) < len(nodes) else None

    async def _read_kueue(self, key: JobKey, snapshot: Snapshot) -> float | None:
        job, observed = snapshot.job, snapshot.observed
        if job.spec is None or scheduler_of(job.spec) != "kueue":
            return None
        name, child = job.spec.scheduling.priority_class_name, workload_child(job, observed)
        classes = [name] if name is not None and name not in observed.priorities else []
        pod_sets = child.workload.pod_sets if child is not None and child.workload is not None else ()
        # A job can't start without its flavors, so a missing one is read again.
        flavors = {each for part in pod_sets for each in part.flavors if observed.flavors.get(each) is None}
        if not classes and not flavors:
            return None
        found = LookupResults(
            priorities=await self._get_each(key, PRIORITY_CLASSES, classes, lambda raw: int32(raw.get("value"))),
            flavors=await self._get_each(key, RESOURCE_FLAVORS, flavors, _flavor),
        )
        self.store.record_lookups(key, found)
        known = len(found.priorities) == len(classes) and None not in map(found.flavors.get, flavors)
        return None if known else KUEUE_RETRY

    async def _get_each(
        self, key: JobKey, resource: Resource, names: Collection[str], convert: Callable[[RawObject], Answer | None]
    ) -> dict[str, Answer | None]:
        """Returns cluster-scoped objects by name, without those that can't be read now.

        The result is None for an object that doesn't exist or may not be read.
        """
        slots = asyncio.Semaphore(CONCURRENT_READS)
        found: dict[str, Answer | None] = {}

        async def get(name: str) -> None:
            async with slots:
                try:
                    found[name] = convert(await self.cluster.get(resource, "", name))
                except (NotFound, Forbidden) as error:
                    logger.info("%s: %s %s can't be read: %s", key, resource.kind, name, error.message)
                    found[name] = None
                except ClusterError as error:
                    logger.warning("%s: %s %s can't be read now: %s", key, resource.kind, name, error)

        await asyncio.gather(*map(get, names))
        return found


def _kill_to_explain(pod: PodView) -> tuple[float, float] | None:
    """Returns the start and the end of a worker's container that was killed for an unknown reason."""
    container = pod.worker_container
    end = (container.end or container.last_end) if container is not None else None
    if end is None or pod.deleting or end.exit_code not in (EXIT_KILLED, EXIT_TERMINATED) or end.reason == "OOMKilled":
        return None
    if end.finished_at is None or (end.report is not None and end.report.state != "Stopped"):
        return None
    return end.started_at or 0.0, end.finished_at


def _kill_reason(events: list[RawObject], pod_uid: str, started: float, finished: float) -> str | None:
    """Returns the kubelet's newest message about a failed probe during this run of the container; None without one."""

    def is_cause(event: RawObject) -> bool:
        involved = mapping(event.get("involvedObject"))
        place = (involved.get("uid"), involved.get("fieldPath"))
        if place != (pod_uid, f"spec.containers{{{WORKER_CONTAINER}}}") or "probe" not in text(event.get("message")):
            return False
        return started - CLOCK_SLACK <= event_time(event) <= finished + CLOCK_SLACK

    newest = max(filter(is_cause, events), key=event_time, default=None)
    return None if newest is None else f"the kubelet: {text(newest.get('message'), 300)}"


def _lacking_sets(snapshot: Snapshot) -> Mapping[str, str]:
    """Returns the names of the StatefulSets that have fewer pods than they should have, by uid."""
    present = Counter(pod.set_name for pod in snapshot.observed.pods)
    return {
        child.uid: child.name
        for child in snapshot.observed.children
        if child.kind == STATEFUL_SETS.kind
        and child.owner_uid == snapshot.job.uid
        and not child.deleting
        and present[child.name] < (child.replicas or 0)
    }


def _pods_action(name: str) -> str:
    return f"create the pods of StatefulSet {name}"


def _domain(node: RawObject, label: str) -> str | None:
    domain = mapping(mapping(node.get("metadata")).get("labels")).get(label)
    return domain if isinstance(domain, str) else None


def _flavor(raw: RawObject) -> Placement:
    spec = mapping(raw.get("spec"))
    return Placement(string_pairs(spec.get("nodeLabels")), tuple(mappings(spec.get("tolerations"))))
