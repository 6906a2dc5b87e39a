"""`gather` reads a job and the objects that explain its state, in two rounds of simultaneous requests.

The first round reads pods, StatefulSets and evidence. They decide which of the queue, gang, nodes, claims, events and
logs the second round reads. Lists are bounded, and nothing is written. The situation names objects that the user may
not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from trainmaster.client.diagnosis.scheduling import claims_of
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.errors import ClientError, JobNotFound, NotAllowed
from trainmaster.client.job import TrainingJob, worker_index
from trainmaster.client.metrics import parse_metrics, parse_worker_state
from trainmaster.client.objects import Object, at, condition, containers, has_condition, items, name_of, text
from trainmaster.client.output import Output
from trainmaster.client.transport import AsyncTransport
from trainmaster_operator.wire.names import AGENT_PORT, JOB_NAME_LABEL, LEASE_NAME, LEASE_NAMESPACE
from trainmaster_operator.wire.values import mapping, mappings, whole

T = TypeVar("T")

JOBS_AT_ONCE = 4
MAX_NODES, MAX_PODS, MAX_EVENTS = 500, 3_000, 100
# Maximum number of pods whose events and logs are read. A job's pods usually have the same problem.
MAX_TROUBLED_PODS = 4
# Limits of requests for agents' metrics: pods, bytes and seconds. On a busy node, an agent answers slowly.
MAX_METRICS_PODS, MAX_METRICS_BYTES, METRICS_SECONDS = 16, 65_536, 1.0
# While a job starts, at most this many agents are asked: those of the newest pods, which an attempt waits for longest.
MAX_STARTING_PODS = 8
LOG_LINES = 40
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_POD_GROUPS = {"volcano": "scheduling.volcano.sh/v1beta1", "coscheduling": "scheduling.x-k8s.io/v1alpha1"}


async def gather(transport: AsyncTransport, job: TrainingJob) -> Situation:
    """Returns the job's situation. Raises ClientError if the cluster can't be reached."""
    return await _Gathering(Output(transport, job.namespace), job).situation()


async def gather_all(transport: AsyncTransport, jobs: Sequence[TrainingJob]) -> list[Situation]:
    """Returns the situations of several jobs, in their order."""
    found: list[Situation] = []
    for first in range(0, len(jobs), JOBS_AT_ONCE):
        found += await transport.together([gather(transport, job) for job in jobs[first : first + JOBS_AT_ONCE]])
    return found


@dataclass
class _Gathering:
    """_Gathering reads the parts of a situation. A part that can't be read is None or empty."""

    output: Output
    job: TrainingJob
    unread: list[str] = field(default_factory=list)

    async def situation(self) -> Situation:
        selector = {"labelSelector": f"{JOB_NAME_LABEL}={self.job.name}"}
        first: list[Coroutine[Any, Any, Any]] = [
            self._readable("pods", self.output.pods(self.job.name)),
            self._list("StatefulSets", self._namespaced("/apis/apps/v1", "statefulsets"), selector),
            self._readable("the evidence", self.output.evidence(self.job.name)),
        ]
        found_pods, found_sets, evidence = await self.output.transport.together(first)
        pods = found_pods or ()
        state = _State(self.job, pods)
        about = [*map(name_of, found_sets or ()), *state.troubled, *state.claims] if state.has_events else []
        parts, events = self._second_round(state), [self._events(name) for name in dict.fromkeys(about)]
        pages = [self._metrics(pod) for pod in state.talking]
        answers = await self.output.transport.together([*events, *pages, *parts.values()])
        found = dict(zip(parts, answers[len(events) + len(pages) :], strict=True))
        for several in ("queue", "operator"):
            found |= found.pop(several, None) or {}
        found["events"] = sorted((one for each in answers[: len(events)] for one in each or ()), key=_time_of_event)
        found |= self._said(zip(map(worker_index, state.talking), answers[len(events) :], strict=False))
        known = {name: value for name, value in found.items() if value is not None}
        unread = list(dict.fromkeys(self.unread))
        return Situation(self.job, pods=pods, evidence=evidence or (), unread=unread, **known)

    def _said(self, pages: Iterable[tuple[int, str]]) -> dict[str, Any]:
        """Parses the agents' pages: the ranks' figures, or the workers' states while the job isn't running."""
        if self.job.phase == "Running":
            return {"ranks": [rank for worker, page in pages for rank in parse_metrics(worker, page)]}
        states = [parse_worker_state(worker, page) for worker, page in pages]
        return {"worker_states": [one for one in states if one is not None]}

    def _second_round(self, state: _State) -> dict[str, Coroutine[Any, Any, Any]]:
        """Returns the second round's coroutines, by the field of the situation that each one fills."""
        asked: dict[str, Coroutine[Any, Any, Any]] = {"logs": self._logs(state)}
        if state.lacks_nodes:
            asked["nodes"] = self._list("nodes", "/api/v1/nodes", {"limit": str(MAX_NODES)})
            asked["pods_on_nodes"] = self._pods_on_nodes()
            asked["claims"] = self._list("claims", self._namespaced("/api/v1", "persistentvolumeclaims"), {})
        elif state.suspect_nodes:
            asked["nodes"] = self._nodes(state.suspect_nodes)
        if state.is_queued:
            asked["queue"] = self._queue()
        elif state.gang in _POD_GROUPS and not self.job.finished:
            path = self._namespaced(f"/apis/{_POD_GROUPS[state.gang]}", "podgroups")
            asked["pod_group"] = self._get("the PodGroup", f"{path}/{_part(self.job.name)}")
        if not self.job.finished:
            asked["operator"] = self._operator()
        return asked

    def _namespaced(self, api: str, plural: str) -> str:
        return f"{api}/namespaces/{_part(self.job.namespace)}/{plural}"

    async def _get(self, what: str, path: str, query: Mapping[str, str] | None = None) -> Object | None:
        """Returns an object, or None if it (or its type) doesn't exist or the user may not read it."""
        found = await self._readable(what, self.output.transport.request("GET", path, query=query or {}))
        return None if found is None else mapping(found)

    async def _readable(self, what: str, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except JobNotFound:
            return None
        except NotAllowed as error:
            self.unread.append(f"{what} couldn't be read: {error}")
            return None

    async def _list(self, what: str, path: str, query: Mapping[str, str]) -> list[Object] | None:
        answer = await self._get(what, path, query)
        return None if answer is None else list(mappings(answer.get("items")))

    async def _pods_on_nodes(self) -> list[Object] | None:
        """Returns all namespaces' pods that use resources, or None if there are more than one list can contain."""
        query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed", "limit": str(MAX_PODS)}
        answer = await self._get("the pods of other namespaces, and so what nodes have free,", "/api/v1/pods", query)
        # `continue` shows that the list was cut at its limit, so the sum of its pods' requests would be too small.
        return None if answer is None or at(answer, "metadata", "continue") else list(items(answer, "items"))

    async def _nodes(self, names: Sequence[str]) -> list[Object]:
        found = [await self._get(f"node {name}", f"/api/v1/nodes/{_part(name)}") for name in names]
        return [node for node in found if node is not None]

    async def _events(self, name: str) -> list[Object] | None:
        query = {"fieldSelector": f"involvedObject.name={name}", "limit": str(MAX_EVENTS)}
        return await self._list("events", self._namespaced("/api/v1", "events"), query)

    async def _queue(self) -> dict[str, Any]:
        queue = text(self.job.raw, "spec", "scheduling", "queue")
        workloads = await self._list("Workloads", self._namespaced(KUEUE, "workloads"), {})
        local_queues = await self._list("LocalQueues", self._namespaced(KUEUE, "localqueues"), {})
        found: dict[str, Any] = {"local_queues": local_queues}
        if workloads is not None:
            found["workload"] = next((one for one in workloads if name_of(one) == self.job.name), None)
            found["pending"] = [
                one
                for one in workloads
                if text(one, "spec", "queueName") == queue
                and not (has_condition(one, "Finished") or has_condition(one, "QuotaReserved"))
            ]
        local_queue = next((one for one in local_queues or () if name_of(one) == queue), None)
        if local_queue is not None:
            cluster_queue = text(local_queue, "spec", "clusterQueue")
            path = f"{KUEUE}/clusterqueues/{_part(cluster_queue)}"
            found["cluster_queue"] = await self._get(f"ClusterQueue {cluster_queue}", path)
            found["position"] = await self._position(queue)
        return found

    async def _operator(self) -> dict[str, Any]:
        """Returns the operators' Deployments, the pods of one that isn't ready, and the leader's Lease.

        Few users may read these. That is reported only for a new job, for which they matter.
        """
        query = {"labelSelector": "app.kubernetes.io/name=trainmaster"}
        found = await self._list("the operator's Deployment", "/apis/apps/v1/deployments", query)
        known: dict[str, Any] = {"operators": found}
        unready = next((one for one in found or () if not at(one, "status", "readyReplicas")), None)
        if unready is not None:
            path = f"/api/v1/namespaces/{_part(text(unready, 'metadata', 'namespace'))}/pods"
            known["operator_pods"] = await self._list("the operator's pods", path, query) or ()
        if not found or unready is not None:
            homes = [LEASE_NAMESPACE, self.job.namespace, text(unready, "metadata", "namespace")]
            paths = [
                f"/apis/coordination.k8s.io/v1/namespaces/{_part(home)}/leases/{LEASE_NAME}"
                for home in dict.fromkeys(filter(None, homes))
            ]
            leases = [await self._get("the operator's Lease", path) for path in paths]
            renewed = [lease for lease in leases if text(lease, "spec", "renewTime")]
            known["lease"] = max(renewed, key=lambda lease: text(lease, "spec", "renewTime"), default=None)
        if self.job.status.phase is not None:
            self.unread = [one for one in self.unread if not one.startswith("the operator's ")]
        return known

    async def _position(self, queue: str) -> int | None:
        """Returns the position from Kueue's visibility API, or None if the API isn't served or readable."""
        api = "/apis/visibility.kueue.x-k8s.io/v1beta1"
        path = self._namespaced(api, f"localqueues/{_part(queue)}/pendingworkloads")
        try:
            answer = mapping(await self.output.transport.request("GET", path))
        except ClientError:
            return None
        mine = next((one for one in mappings(answer.get("items")) if name_of(one) == self.job.name), None)
        return None if mine is None else whole(mine.get("positionInLocalQueue", 0))

    async def _logs(self, state: _State) -> dict[str, str]:
        """Returns the logs of containers that fail repeatedly, and a finished job's kept log of the culprit.

        The log of an init container has the key `pod/container`.
        """
        found = {}
        for name in state.ended_pods:
            found[name] = await self._log(name, {"container": "worker", "previous": "true"})
        for pod, container in state.failed_inits:
            found[f"{pod}/{container}"] = await self._log(pod, {"container": container})
        failure = next(iter(self.job.status.failures), None)
        if self.job.finished and failure is not None and failure.worker is not None and failure.pod:
            kept = await self._readable("the kept logs", self.output.kept_logs(self.job.name)) or {}
            if (log := kept.get(failure.worker)) is not None:
                found[failure.pod] = "\n".join(log.lines[-LOG_LINES:])
        return found

    async def _log(self, pod: str, query: Mapping[str, str]) -> str:
        """Returns the end of a container's log, or an empty text if there is none or the user may not read it."""
        path, last = self._namespaced("/api/v1", f"pods/{_part(pod)}/log"), deque[bytes](maxlen=LOG_LINES)
        query = {**query, "tailLines": str(LOG_LINES)}
        try:
            async with aclosing(self.output.transport.lines(path, query=query, read_seconds=5.0)) as lines:
                async for line in lines:
                    last.append(line)
        except ClientError:
            return ""
        return b"\n".join(last).decode("utf-8", "replace")

    async def _metrics(self, pod: Object) -> str:
        """Returns the metrics page of a pod's agent. Few users may read it through the API server's proxy."""
        path = self._namespaced("/api/v1", f"pods/{_part(name_of(pod))}:{AGENT_PORT}/proxy/metrics")
        try:
            page = await self.output.transport.beginning(path, limit=MAX_METRICS_BYTES, seconds=METRICS_SECONDS)
        except ClientError:
            return ""
        return page.decode("utf-8", "replace")


class _State:
    """_State derives from the first round's result what the second round has to read."""

    def __init__(self, job: TrainingJob, pods: Sequence[Object]) -> None:
        status = job.status
        reasons = {each.reason for each in status.conditions if each.type in ("Running", "Failed")}
        unscheduled = [pod for pod in pods if condition(pod, "PodScheduled").get("status") == "False"]
        placed = [pod for pod in pods if text(pod, "spec", "nodeName")]
        unready = [pod for pod in placed if not has_condition(pod, "Ready")]
        self.gang = text(job.raw, "spec", "scheduling", "gang", "scheduler")
        self.is_queued = any(each.reason == "Queued" and each.status == "True" for each in status.conditions)
        lacking = {"Unschedulable", "SchedulingBackoff", "SchedulingRetried"}
        self.lacks_nodes = bool(unscheduled) or bool(lacking & reasons)
        suspects = dict.fromkeys(text(pod, "spec", "nodeName") for pod in unready)
        self.suspect_nodes = [] if job.finished else list(suspects)[:8]
        is_starting = status.phase in ("Pending", "Starting", "Restarting") or status.training_with is not None
        self.has_events = is_starting or job.phase == "Failed"
        self.troubled = [name_of(pod) for pod in (*unscheduled, *unready)][:MAX_TROUBLED_PODS]
        if self.lacks_nodes and not pods and status.workers.desired > 0:
            # A job that gave up its nodes has no pods. The events of the last worker's outlive it for an hour.
            self.troubled = [f"{job.name}-{status.workers.desired - 1}"]
        self.claims = list(dict.fromkeys(claim for pod in unscheduled for claim in claims_of(pod)))[:MAX_TROUBLED_PODS]
        # The pods whose agents are asked for their metrics pages.
        self.talking: list[Object] = []
        if job.phase == "Running":
            self.talking = list(pods[:MAX_METRICS_PODS])
        elif job.phase == "Starting" and not unready:
            newest = sorted(pods, key=lambda pod: text(pod, "metadata", "creationTimestamp"), reverse=True)
            self.talking = newest[:MAX_STARTING_PODS]
        # The first init container that fails. Those of the other pods usually fail too.
        self.failed_inits = [
            (name_of(pod), text(status, "name"))
            for pod in (() if job.finished else pods)
            for status in items(pod, "status", "initContainerStatuses")
            if any(at(status, field, "terminated", "exitCode") for field in ("state", "lastState"))
        ][:1]
        self.ended_pods = [] if job.finished else [name_of(pod) for pod in pods if _ends_again(pod)][:2]


def _part(name: str) -> str:
    """Escapes a name for use in a path, because users may write any text into the spec."""
    return quote(name, safe="")


def _ends_again(pod: Object) -> bool:
    reasons = {name: text(status, "state", "waiting", "reason") for name, status in containers(pod)}
    return reasons.get("worker") == "CrashLoopBackOff"


def _time_of_event(event: Object) -> str:
    times = (text(event, "lastTimestamp"), text(event, "eventTime"), text(event, "metadata", "creationTimestamp"))
    return max(times)
