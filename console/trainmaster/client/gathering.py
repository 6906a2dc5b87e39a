"""`gather` reads a situation: a job and what its state makes worth reading, in two rounds of requests at the same time.

Lists are bounded, and what the user may not read is named in the situation instead of ending the question. Nothing is
written. The first round has the job, its pods and StatefulSets and the evidence; which of queue, gang, nodes, claims,
events and logs the second one reads depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from trainmaster.client.diagnosis.scheduling import claims_of
from trainmaster.client.diagnosis.situation import Object, Situation, at, condition, containers, name_of, text
from trainmaster.client.errors import ClientError, JobNotFound, NotAllowed
from trainmaster.client.job import TrainingJob, has_index, worker_index
from trainmaster.client.metrics import parse_metrics, parse_worker_state
from trainmaster.client.transport import Transport
from trainmaster_operator.api.evidence import AttemptEvidence, attempt_of, evidence_name
from trainmaster_operator.wire.names import AGENT_PORT, JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping, mappings, whole

REQUESTS_AT_ONCE = 8
MAX_NODES, MAX_PODS, MAX_EVENTS = 500, 3_000, 100
# Pods whose events and logs are read; the trouble of a job's pods is most often one and the same.
MAX_TROUBLED_PODS = 4
# Agents are asked through a proxy, and are as slow as a busy node.
MAX_METRICS_PODS, MAX_METRICS_BYTES, METRICS_SECONDS = 16, 65_536, 1.0
# Of a job that starts, the newest pods: those that an attempt waits for longest.
MAX_STARTING_PODS = 8
LOG_LINES = 40
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_POD_GROUPS = {"volcano": "scheduling.volcano.sh/v1beta1", "coscheduling": "scheduling.x-k8s.io/v1alpha1"}
# A list that was cut can't be summed up.
_CUT = "continue"


def gather(transport: Transport, job: TrainingJob) -> Situation:
    """Returns the job's situation. Raises ClientError where the cluster can't be reached."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return _Gathering(transport, job, pool).situation()


@dataclass
class _Gathering:
    """_Gathering asks for what is needed; every reader gives what it found, or nothing where that isn't to be had."""

    transport: Transport
    job: TrainingJob
    pool: ThreadPoolExecutor
    unread: list[str] = field(default_factory=list)

    def situation(self) -> Situation:
        """Returns what the two rounds have found."""
        selector = {"labelSelector": f"{JOB_NAME_LABEL}={self.job.name}"}
        asked_pods = self._ask(self._list, "pods", self._namespaced("/api/v1", "pods"), selector)
        asked_sets = self._ask(self._list, "StatefulSets", self._namespaced("/apis/apps/v1", "statefulsets"), selector)
        asked_evidence = self._ask(self._evidence)
        pods = tuple(sorted(filter(has_index, asked_pods.result() or ()), key=worker_index))
        sets = [name_of(one) for one in asked_sets.result() or ()]
        state = _State(self.job, pods)
        later: dict[str, Future[Any]] = {}
        if state.lacks_nodes:
            later["nodes"] = self._ask(self._list, "nodes", "/api/v1/nodes", {"limit": str(MAX_NODES)})
            later["pods_on_nodes"] = self._ask(self._pods_on_nodes)
            later["claims"] = self._ask(self._list, "claims", self._namespaced("/api/v1", "persistentvolumeclaims"), {})
        elif state.suspect_nodes:
            later["nodes"] = self._ask(self._nodes, state.suspect_nodes)
        if state.is_queued:
            later["queue"] = self._ask(self._queue)
        elif state.gang in _POD_GROUPS and not self.job.finished:
            path = self._namespaced(f"/apis/{_POD_GROUPS[state.gang]}", "podgroups")
            later["pod_group"] = self._ask(self._get, "the PodGroup", f"{path}/{_part(self.job.name)}")
        if self.job.status.phase is None:
            later["operators"] = self._ask(self._operators)
        asked_pages = [(worker_index(pod), self._ask(self._metrics, pod)) for pod in state.talking]
        evidence = asked_evidence.result()
        later["logs"] = self._ask(self._logs, state, evidence)
        events = self._events([*sets, *state.troubled, *state.claims]) if state.has_events else ()
        found = {name: future.result() for name, future in later.items()}
        pages = [(worker, future.result()) for worker, future in asked_pages]
        if self.job.phase == "Running":
            found["ranks"] = [rank for worker, page in pages for rank in parse_metrics(worker, page)]
        else:
            states = [parse_worker_state(worker, page) for worker, page in pages]
            found["worker_states"] = [one for one in states if one is not None]
        queue = found.pop("queue", None) or {}
        values = {name: value for name, value in {**found, **queue}.items() if value is not None}
        changes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        known = Situation(
            job=self.job, pods=pods, events=events, evidence=tuple(evidence), unread=tuple(dict.fromkeys(self.unread))
        )
        return replace(known, **changes)

    def _ask(self, reader: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self.pool.submit(reader, *arguments)

    def _namespaced(self, api: str, plural: str) -> str:
        return f"{api}/namespaces/{_part(self.job.namespace)}/{plural}"

    def _get(self, what: str, path: str, query: Mapping[str, str] | None = None) -> Object | None:
        """Returns an answer; None where the object or its type isn't there, or the user may not read it."""
        try:
            return mapping(self.transport.request("GET", path, query=query or {}))
        except JobNotFound:
            return None
        except NotAllowed as error:
            self.unread.append(f"{what} couldn't be read: {error}")
            return None

    def _list(self, what: str, path: str, query: Mapping[str, str]) -> list[Object] | None:
        answer = self._get(what, path, query)
        return None if answer is None else list(mappings(answer.get("items")))

    def _pods_on_nodes(self) -> list[Object] | None:
        """Returns the pods of all namespaces that hold room; None where these are too many to be summed up."""
        query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed", "limit": str(MAX_PODS)}
        answer = self._get("the pods of other namespaces, and so what nodes have free,", "/api/v1/pods", query)
        if answer is None or at(answer, "metadata", _CUT):
            return None
        return list(mappings(answer.get("items")))

    def _nodes(self, names: Sequence[str]) -> list[Object]:
        found = (self._get(f"node {name}", f"/api/v1/nodes/{_part(name)}") for name in names)
        return [node for node in found if node is not None]

    def _events(self, names: Sequence[str]) -> tuple[Object, ...]:
        path = self._namespaced("/api/v1", "events")
        asked = [
            self._ask(
                self._list, "events", path, {"fieldSelector": f"involvedObject.name={name}", "limit": str(MAX_EVENTS)}
            )
            for name in dict.fromkeys(names)
        ]
        found = [event for future in asked for event in future.result() or ()]
        return tuple(sorted(found, key=_time_of_event))

    def _queue(self) -> dict[str, Any]:
        """Returns what belongs to the job's place in Kueue."""
        queue = text(self.job.raw, "spec", "scheduling", "queue")
        workloads = self._list("Workloads", self._namespaced(KUEUE, "workloads"), {})
        local_queues = self._list("LocalQueues", self._namespaced(KUEUE, "localqueues"), {})
        found: dict[str, Any] = {"local_queues": local_queues}
        if workloads is not None:
            found["workload"] = next((one for one in workloads if name_of(one) == self.job.name), None)
            found["pending"] = [
                one for one in workloads if text(one, "spec", "queueName") == queue and _is_pending(one)
            ]
        mine = next((one for one in local_queues or () if name_of(one) == queue), None)
        if mine is not None:
            cluster_queue = text(mine, "spec", "clusterQueue")
            found["cluster_queue"] = self._get(
                f"ClusterQueue {cluster_queue}", f"{KUEUE}/clusterqueues/{_part(cluster_queue)}"
            )
            found["position"] = self._position(queue)
        return found

    def _position(self, queue: str) -> int | None:
        """Returns the place that Kueue's visibility API gives, where it is served and may be read."""
        path = self._namespaced(
            "/apis/visibility.kueue.x-k8s.io/v1beta1", f"localqueues/{_part(queue)}/pendingworkloads"
        )
        try:
            answer = mapping(self.transport.request("GET", path))
        except ClientError:
            return None
        mine = next((one for one in mappings(answer.get("items")) if name_of(one) == self.job.name), None)
        return None if mine is None else whole(mine.get("positionInLocalQueue", 0))

    def _operators(self) -> list[Object] | None:
        query = {"labelSelector": "app.kubernetes.io/name=trainmaster"}
        return self._list("the operator's Deployment", "/apis/apps/v1/deployments", query)

    def _evidence(self) -> list[AttemptEvidence]:
        path = self._namespaced("/api/v1", f"configmaps/{_part(evidence_name(self.job.name))}")
        data = mapping((self._get("the evidence", path) or {}).get("data"))
        parsed = (AttemptEvidence.parse(value) for key, value in data.items() if attempt_of(key) is not None)
        return [one for one in parsed if one is not None]

    def _logs(self, state: _State, evidence: Sequence[AttemptEvidence]) -> dict[str, str]:
        """Returns the logs of pods whose container ends again and again, and of a failed job what nothing else says."""
        found = {}
        for name in state.ended_pods:
            path = self._namespaced("/api/v1", f"pods/{_part(name)}/log")
            query = {"container": "worker", "tailLines": str(LOG_LINES), "previous": "true"}
            try:
                lines = self.transport.lines(path, query=query, read_seconds=5.0)
                found[name] = "\n".join(line.decode("utf-8", "replace") for line in lines)
            except ClientError:
                continue
        failure = next(iter(self.job.status.failures), None)
        if self.job.finished and failure is not None and failure.worker is not None and failure.pod:
            data = mapping(
                (
                    self._get("the kept logs", self._namespaced("/api/v1", f"configmaps/{_part(self.job.name)}-logs"))
                    or {}
                ).get("data")
            )
            log = data.get(f"worker-{failure.worker}.log")
            if isinstance(log, str):
                found[failure.pod] = "\n".join(log.splitlines()[-LOG_LINES:])
        return found

    def _metrics(self, pod: Object) -> str:
        """Returns the page that a pod's agent serves; few users may ask through the API server's proxy."""
        path = self._namespaced("/api/v1", f"pods/{_part(name_of(pod))}:{AGENT_PORT}/proxy/metrics")
        try:
            page = self.transport.beginning(path, limit=MAX_METRICS_BYTES, seconds=METRICS_SECONDS)
        except ClientError:
            return ""
        return page.decode("utf-8", "replace")


class _State:
    """_State is what the first round shows, as far as it decides what to read next."""

    def __init__(self, job: TrainingJob, pods: Sequence[Object]) -> None:
        status = job.status
        reasons = {each.reason for each in status.conditions if each.type in ("Running", "Failed")}
        unscheduled = [pod for pod in pods if condition(pod, "PodScheduled").get("status") == "False"]
        unready = [
            pod for pod in pods if condition(pod, "Ready").get("status") != "True" and text(pod, "spec", "nodeName")
        ]
        self.gang = text(job.raw, "spec", "scheduling", "gang", "scheduler")
        self.is_queued = any(each.reason == "Queued" and each.status == "True" for each in status.conditions)
        self.lacks_nodes = bool(unscheduled) or "Unschedulable" in reasons
        self.suspect_nodes = (
            [] if job.finished else list(dict.fromkeys(text(pod, "spec", "nodeName") for pod in unready))[:8]
        )
        is_starting = status.phase in ("Pending", "Starting", "Restarting") or status.training_with is not None
        self.has_events = is_starting or job.phase == "Failed"
        self.troubled = [name_of(pod) for pod in (*unscheduled, *unready)][:MAX_TROUBLED_PODS]
        self.claims = list(dict.fromkeys(claim for pod in unscheduled for claim in claims_of(pod)))[:MAX_TROUBLED_PODS]
        self.talking: list[Object] = []
        """The pods whose agents are asked what they and their ranks do."""
        if job.phase == "Running":
            self.talking = list(pods[:MAX_METRICS_PODS])
        elif job.phase == "Starting" and not unready:
            newest = sorted(pods, key=lambda pod: text(pod, "metadata", "creationTimestamp"), reverse=True)
            self.talking = newest[:MAX_STARTING_PODS]
        self.ended_pods = [name_of(pod) for pod in pods if _ends_again(pod)][:2] if not job.finished else []


def _part(name: str) -> str:
    """Returns a name as one part of a path: those in a spec are whatever a user wrote."""
    return quote(name, safe="")


def _ends_again(pod: Object) -> bool:
    return any(
        name == "worker" and text(status, "state", "waiting", "reason") == "CrashLoopBackOff"
        for name, status in containers(pod)
    )


def _is_pending(workload: Object) -> bool:
    ended = condition(workload, "Finished").get("status") == "True"
    return not ended and condition(workload, "QuotaReserved").get("status") != "True"


def _time_of_event(event: Object) -> str:
    times = (text(event, "lastTimestamp"), text(event, "eventTime"), text(event, "metadata", "creationTimestamp"))
    return max(times)


def gather_all(transport: Transport, jobs: Sequence[TrainingJob]) -> Iterator[Situation]:
    """Yields the situations of several jobs, in their order, a few of them at a time."""
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(lambda job: gather(transport, job), jobs)
