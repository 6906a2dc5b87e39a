"""Carries out a decision: writes the status, then carries out the actions, then records the events.

The status is written before any of its consequences, so if an operator is killed, the next one finds the intention in
the status. Each pass writes the status at most once, and skips actions that are already done.

- The status patch contains the resourceVersion that was decided on, so a decision on an old view is never written. A
  patch that contains only progress may wait.
- An assignment that starts ranks is first pushed to the leader, and then annotated on each pod, while the pass's
  applies are written. When the push ran in parallel too, it took 0.1 s longer on a small machine, and ranks wait for
  the push. An assignment that stops ranks is sent by all routes at once, so that no new pod begins the old assignment.
- Before a pod is deleted, it is read; the pod's uid and resourceVersion are preconditions of the delete. Evidence that
  exists only in the pod is saved first, and the operator begins to follow the pod's log.
- If the API server refuses a write (quota, webhook, permission), a `RefusedWrite` is added to the next snapshot, and
  the write is repeated with a separate back-off. Other failures are raised, and the queue repeats the whole pass.
- Before a pod is deleted by force, its node is read. Deleting a pod by force while its node still runs it breaks the
  guarantee of a StatefulSet, so the node object must be gone, tainted out-of-service by an administrator, or
  unreachable for longer than the job's limit
  (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.api.v1alpha1 import SUSPENDED_PHASES, TERMINAL_PHASES
from trainmaster_operator.controller.apiserver.cluster import (
    CHILDREN,
    JOBS,
    NODES,
    PODS,
    RECORDED_JOBS,
    Cluster,
    RawObject,
    Resource,
)
from trainmaster_operator.controller.apiserver.errors import Conflict, Invalid, NotFound, Refused
from trainmaster_operator.controller.background import backoff
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import conditions_by_type, parse_time
from trainmaster_operator.controller.keeping.ending_pods import LastOutput
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.logs import KeptLogs
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.children import ChildWriter
from trainmaster_operator.controller.writing.status import (
    EventRecorder,
    is_only_progress,
    merge_patch,
    read_again,
    report_workload,
    to_wire,
    with_conditions,
)
from trainmaster_operator.reconciling import decision as decided
from trainmaster_operator.reconciling.decision import Action, Decision
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView, RefusedWrite
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, TOUCHED_ANNOTATION
from trainmaster_operator.wire.values import mapping, mappings, text

logger = logging.getLogger(__name__)
# Seconds until a refused write is repeated: the first wait, which doubles up to the longest. Quotas are freed in
# minutes.
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
# Limit on the pods that are patched at once, so that a job of thousands of workers doesn't use all connections.
CONCURRENT_PATCHES = 64
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """Holds the result of a pass. `retry_after`: the seconds until a postponed write should be tried again."""

    wrote_status: bool = False
    retry_after: float | None = None


@dataclass(eq=False)
class Executor:
    """Carries out decisions. Raises ClusterError if the pass should be repeated."""

    cluster: Cluster
    store: Store
    keys: SigningKeys
    children: ChildWriter
    agents: AgentConfigMaps
    events: EventRecorder
    _: KW_ONLY
    push: Callable[[JobKey, Assignment], Awaitable[None]]
    ask_for_stacks: Callable[[JobKey, Job, decided.CollectStacks], None]
    logs: KeptLogs
    evidence: EvidenceKeeper
    last_output: LastOutput
    # Called with each job whose status was written, in the form that the API server returned.
    written: Callable[[RawObject], None] = lambda job: None
    progress_seconds: float
    now: Callable[[], float] = time.time
    _status_written: dict[str, float] = field(default_factory=dict, init=False)

    def forget(self, uid: str) -> None:
        self._status_written.pop(uid, None)

    async def execute(self, key: JobKey, snapshot: Snapshot, decision: Decision) -> Outcome:
        """Write the status, carry out the actions, record the events."""
        before, after = snapshot.job.status.phase, decision.status.phase
        ends = after in TERMINAL_PHASES and before not in TERMINAL_PHASES
        if ends or (after in SUSPENDED_PHASES and before not in SUSPENDED_PHASES):
            # Save logs before the status is written, so that users who see the job's end find its logs.
            await self.logs.save(key, snapshot, complete=ends)
        if ends:
            await self.evidence.last(key, snapshot, decision.status)
        wrote, waits = await self._write_status(key, snapshot, decision)
        self.evidence.record_failure(key, snapshot, decision.status)
        self.last_output.follow(key, snapshot)
        await self.last_output.before_deletion(key, snapshot, scaled_away(snapshot, decision.actions))
        try:
            waits += await self._act(key, snapshot, decision.actions)
        finally:
            # Events belong to the status that was just written, so a later pass that repeats the actions has none.
            for event in decision.events:
                await self.events.record(snapshot.job, event)
        return Outcome(wrote, min(waits, default=None))

    async def _write_status(self, key: JobKey, snapshot: Snapshot, decision: Decision) -> tuple[bool, list[float]]:
        """Write the status; returns whether it was written, and the seconds until a postponed write."""
        if decision.status == snapshot.job.status:
            return False, []
        if snapshot.job.unreadable is not None:
            # Change only the conditions, because the rest of the status is the job's past and must not be lost.
            patch = with_conditions(snapshot.raw_status, decision.status)
        else:
            patch = merge_patch(snapshot.raw_status, to_wire(decision.status))
        if not patch:
            return False, []
        uid = snapshot.job.uid
        # The version is a precondition even for progress, because a deposed leader's view of progress is old too.
        version = snapshot.version.resource_version
        body: dict[str, Any] = {"metadata": {"uid": uid, "resourceVersion": version}, "status": patch}
        if is_only_progress(patch):
            # A newly started operator waits first: until the leaders have repeated their workers' reports, the operator
            # knows less than the status contains.
            since = self.now() - self._status_written.setdefault(uid, self.now())
            if 0 <= since < self.progress_seconds:
                return False, [self.progress_seconds - since]
        try:
            answer = await self.cluster.patch(RECORDED_JOBS, key.namespace, key.name, body, status=True)
        except (Conflict, Invalid):
            # Invalid means that the job was replaced by another of the same name, because the uid is immutable.
            await read_again(self.cluster, self.store, key, JOBS, key.name, uid)
            raise
        except NotFound:
            self.store.remove(JOBS, key, key.name, uid)
            raise
        self._status_written[uid] = self.now()
        self.store.upsert(JOBS, answer)
        self.written(answer)
        return True, []

    async def _act(self, key: JobKey, snapshot: Snapshot, actions: Sequence[Action]) -> list[float]:
        """Carry out assignments and applies concurrently, and then the other actions in order.

        Without assignments, StatefulSets are applied after other objects, because pods may mount those.
        """
        together = [action for action in actions if isinstance(action, decided.Assign)]
        applies = [action for action in actions if isinstance(action, decided.Apply)]
        sets = [action for action in applies if action.manifest["kind"] == "StatefulSet"]
        others = [action for action in applies if action.manifest["kind"] != "StatefulSet"]
        rest = [action for action in actions if not isinstance(action, decided.Assign | decided.Apply)]
        for assign in together:
            if assign.push and assign.assignment.state == "Run" and not self._refused_for(key, assign):
                await self.push(key, assign.assignment)
        waits = await self._all(key, snapshot, [*together, *others, *(sets if together else ())])
        if not together:
            waits += await self._all(key, snapshot, sets)
        for action in rest:
            waits += await self._all(key, snapshot, [action])
        return waits

    async def _all(self, key: JobKey, snapshot: Snapshot, actions: Sequence[Action]) -> list[float]:
        """Run actions concurrently; returns the seconds until each postponed action may be tried again."""
        waits = await _all_or_first_failure(self._guarded(key, snapshot, action) for action in actions)
        return [wait for wait in waits if wait is not None]

    async def _guarded(self, key: JobKey, snapshot: Snapshot, action: Action) -> float | None:
        """Carry out an action unless it was refused recently; returns the seconds until it may be tried again."""
        if wait := self._refused_for(key, action):
            return wait
        name, clock = describe(action), asyncio.get_running_loop().time
        try:
            await self._carry_out(key, snapshot, action)
        except Refused as error:
            refusal = self.store.refusal(key, name)
            wait = backoff(refusal.failures if refusal is not None else 0, FIRST_RETRY, LONGEST_RETRY)
            logger.warning("%s: %s was refused, next try in %.0f s: %s", key, name, wait, error.message)
            # If the reason is missing, a proxy in front of the API server has answered.
            reason = error.reason or f"HTTP {error.status}"
            problem = RefusedWrite(name, reason, error.message[:1_000], self.now())
            self.store.record_refusal(key, problem, clock() + wait)
            return wait
        self.store.clear_refusal(key, name)
        return None

    def _refused_for(self, key: JobKey, action: Action) -> float:
        """Returns the seconds until a refused action may be tried again; 0 means now."""
        refusal = self.store.refusal(key, describe(action))
        return 0.0 if refusal is None else max(0.0, refusal.retry_at - asyncio.get_running_loop().time())

    async def _carry_out(self, key: JobKey, snapshot: Snapshot, action: Action) -> None:
        match action:
            case decided.Apply():
                await self.children.write(key, snapshot, action.manifest)
            case decided.Assign():
                await self._assign(key, action)
            case decided.EnsureAgent():
                await self.agents.ensure(key.namespace, action.name)
            case decided.Touch():
                stamp = {TOUCHED_ANNOTATION: f"{self.now():.3f}"}
                await self._annotate(key, action.pods, stamp)
            case decided.CollectStacks():
                self.ask_for_stacks(key, snapshot.job, action)
            case decided.DeletePod():
                if not action.force:
                    pods = [pod for pod in snapshot.observed.pods if pod.uid == action.pod.uid]
                    await self.last_output.before_deletion(key, snapshot, pods)
                await self._delete_pod(key, action)
            case decided.DeleteChild():
                await self._delete_child(key, action)
            case decided.ReportWorkload():
                await report_workload(self.cluster, self.store, key, action, self.now())
            case decided.DeleteJob():
                await self._delete_job(key, action)

    async def _assign(self, key: JobKey, action: decided.Assign) -> None:
        annotating = self._annotate(key, action.pods, {ASSIGNMENT_ANNOTATION: self.keys.sign(action.assignment)})
        if action.push and action.assignment.state == "Hold":
            await asyncio.gather(self.push(key, action.assignment), annotating)
        else:
            await annotating

    async def _annotate(self, key: JobKey, pods: Sequence[PodView], annotations: dict[str, str]) -> None:
        slots = asyncio.Semaphore(CONCURRENT_PATCHES)

        async def annotate(pod: PodView) -> None:
            body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
            async with slots:
                try:
                    answer = await self.cluster.patch(PODS, key.namespace, pod.name, body)
                except NotFound:
                    # The new pod gets the assignment from the template.
                    self.store.remove(PODS, key, pod.name, pod.uid)
                    return
                except (Conflict, Invalid):
                    # The pod may have been replaced by another of the same name: Kubernetes answers a patch with a
                    # different uid with 422 (pkg/controller/controller_ref_manager.go, ReleasePod). The new pod's event
                    # requests the next pass.
                    answer = await self.cluster.get(PODS, key.namespace, pod.name)
                    if answer["metadata"]["uid"] == pod.uid:
                        raise
            self.store.upsert(PODS, answer)

        await _all_or_first_failure(annotate(pod) for pod in pods)

    async def _delete_pod(self, key: JobKey, action: decided.DeletePod) -> None:
        name, uid = action.pod.name, action.pod.uid
        known = self.store.version(key, PODS, name)
        live = await read_again(self.cluster, self.store, key, PODS, name, uid)
        if live is None:
            return
        version = str(live["metadata"].get("resourceVersion"))
        if known is None or known.resource_version != version:
            # The pod differs from the pod that was decided on, so decide again before destroying anything.
            raise Conflict(f"delete Pod {key.namespace}/{name}", "the pod has changed since it was decided on")
        node = text(mapping(live.get("spec")).get("nodeName"))
        lost_after, now = action.lost_after, self.now()
        if action.force and node and not await is_lost(self.cluster, node, lost_after=lost_after, now=now):
            logger.debug("%s: pod %s isn't deleted by force: its node isn't lost.", key, name)
            return
        snapshot = self.store.snapshot(key)
        if snapshot is not None and not action.force:
            await self.evidence.before_deletion(key, snapshot, uid)
        logger.info("%s: deleting pod %s: %s", key, name, action.reason)
        await self._delete(PODS, key, name, uid, version, force=action.force)

    async def _delete_child(self, key: JobKey, action: decided.DeleteChild) -> None:
        resource = CHILDREN[action.kind]
        known = self.store.version(key, resource, action.name)
        try:
            await self._delete(resource, key, action.name, action.uid, known.resource_version if known else "")
        except Conflict:
            await read_again(self.cluster, self.store, key, resource, action.name, action.uid)
            raise
        # A finalizer may keep the child for a while.
        await read_again(self.cluster, self.store, key, resource, action.name, action.uid)

    async def _delete_job(self, key: JobKey, action: decided.DeleteJob) -> None:
        live = await read_again(self.cluster, self.store, key, JOBS, key.name, action.uid)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return
        phase, version = mapping(live.get("status")).get("phase"), live["metadata"]["resourceVersion"]
        if phase not in TERMINAL_PHASES:
            raise Conflict(f"delete {JOBS.kind} {key}", f"the job's phase is {phase}, it hasn't ended")
        await self._delete(JOBS, key, key.name, action.uid, version)

    async def _delete(
        self, resource: Resource, key: JobKey, name: str, uid: str, version: str, *, force: bool = False
    ) -> None:
        try:
            await self.cluster.delete(resource, key.namespace, name, uid=uid, version=version, force=force)
        except NotFound:
            self.store.remove(resource, key, name, uid)


async def _all_or_first_failure(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Awaits the end of all works, even if one fails, and then raises the first failure."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def scaled_away(snapshot: Snapshot, actions: Sequence[Action]) -> list[PodView]:
    """Returns the pods that their StatefulSets will delete as a result of the actions."""
    gone: list[PodView] = []
    for action in actions:
        if isinstance(action, decided.Apply) and action.manifest["kind"] == "StatefulSet":
            name, spec = action.manifest["metadata"]["name"], action.manifest["spec"]
            end = spec.get("ordinals", {}).get("start", 0) + spec["replicas"]
            gone += [pod for pod in snapshot.observed.pods if pod.set_name == name and pod.worker >= end]
    return gone


def describe(action: Action) -> str:
    """Returns an action's name for problems and logs. The name is the same in every pass."""
    match action:
        case decided.Apply(manifest=manifest):
            return f"apply {manifest['kind']} {manifest['metadata']['name']}"
        case decided.Assign(assignment=assignment):
            return f"assign attempt {assignment.attempt}"
        case decided.EnsureAgent(name=name):
            return f"make ConfigMap {name}"
        case decided.Touch():
            return "touch pods"
        case decided.CollectStacks():
            return "ask for stacks"
        case decided.DeletePod(pod=pod):
            return f"delete Pod {pod.name}"
        case decided.DeleteChild():
            return f"delete {action.kind} {action.name}"
        case decided.ReportWorkload():
            return f"update Workload {action.name}"
        case decided.DeleteJob():
            return "delete the job"


async def is_lost(cluster: Cluster, node: str, *, lost_after: float, now: float) -> bool:
    """Returns whether the node is lost. `lost_after` is in seconds. Raises ClusterError if nodes can't be read."""
    try:
        live = await cluster.get(NODES, "", node)
    except NotFound:
        return True
    taints = mappings(mapping(live.get("spec")).get("taints"))
    if any(taint.get("key") == "node.kubernetes.io/out-of-service" for taint in taints):
        return True
    ready = mapping(conditions_by_type(mapping(live.get("status"))).get("Ready"))
    if ready.get("status") != "Unknown":
        # The kubelet reports, so it will end the pod itself.
        return False
    unreachable = (taint for taint in taints if taint.get("key") == "node.kubernetes.io/unreachable")
    added = (parse_time(taint.get("timeAdded")) for taint in unreachable)
    since = [at for at in (*added, parse_time(ready.get("lastTransitionTime"))) if at is not None]
    return bool(since) and now - min(since) >= lost_after
