"""A snapshot contains what the operator knows about one job at one moment. It is the input of `decide`.

The controller's store builds these frozen values from the API server's trimmed objects, the agents' streams and the
operator's own failed writes. Times are floats in seconds since the epoch. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from trainmaster_operator.api.v1alpha1 import Failure, JobSpec, JobStatus
from trainmaster_operator.api.v1alpha1.names import JobIdentity
from trainmaster_operator.rendering import AgentConfigMap, Placement
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import EXIT_FINISHED, EXIT_KILLED, REASON_BY_EXIT_CODE, Report
from trainmaster_operator.wire.stream import Recovery, StallLine, WorkerLine

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True)
class InvalidSpec:
    """The problem with a spec, and the seconds for which the failed job is kept."""

    message: str
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True)
class Job:
    """The DistributedTrainingJob. `invalid` describes the problem with its spec, if there is one.

    `spec` is None if one of its fields can't be parsed. A spec can be set and yet be invalid, if the job was accepted
    before a check was added. `unreadable` explains why the status can't be parsed. Such a job must not be changed.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: float
    spec: JobSpec | None
    status: JobStatus
    deleting: bool = False
    invalid: InvalidSpec | None = None
    # Whether the spec is so large that `decide` would block an event loop.
    large: bool = False
    unreadable: str | None = None
    # The newest request for stacks, from the job's annotation, or empty.
    stacks_request: str = ""
    # The annotation that requests a restart whenever its value changes.
    restart_request: str | None = None

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(self.namespace, self.name, self.uid)


@dataclass(frozen=True)
class ContainerEnd:
    """The end of a container (state.terminated or lastState.terminated)."""

    exit_code: int
    reason: str
    message: str
    started_at: float | None
    finished_at: float | None
    # The agent's report, if the termination message contains one.
    report: Report | None = None


@dataclass(frozen=True)
class ContainerView:
    """One container's status."""

    name: str
    state: Literal["waiting", "running", "terminated"]
    ready: bool
    restarts: int
    # From the waiting state: ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff, ...
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    end: ContainerEnd | None = None
    last_end: ContainerEnd | None = None

    @property
    def latest_end(self) -> ContainerEnd | None:
        return self.end or self.last_end


@dataclass(frozen=True)
class PodView:
    """One worker's pod."""

    name: str
    uid: str
    worker: int
    set_name: str
    phase: PodPhase
    created_at: float
    node: str | None = None
    # When the PodScheduled condition became True.
    scheduled_at: float | None = None
    ip: str | None = None
    # Whether deletionTimestamp is set. `deadline` is this timestamp, which is the end of the grace period.
    deleting: bool = False
    deadline: float | None = None
    # status.reason and status.message (Evicted, NodeLost, ...).
    reason: str = ""
    message: str = ""
    # The PodScheduled condition's message while it is False, from the scheduler.
    unschedulable: str | None = None
    # The DisruptionTarget condition's reason while it is True (EvictionByEvictionAPI, PreemptionByScheduler, ...).
    disruption: str | None = None
    ready: bool = False
    assignment: Assignment | None = None
    # When the operator last touched the pod, so that the kubelet updates the pod's downward-API files.
    touched_at: float | None = None
    worker_container: ContainerView | None = None
    init_containers: tuple[ContainerView, ...] = ()

    @property
    def alive(self) -> bool:
        """Returns whether the pod may still train, because it isn't terminating and hasn't ended."""
        return not self.deleting and self.phase not in ("Failed", "Succeeded")

    @property
    def container_runs(self) -> bool:
        return self.worker_container is not None and self.worker_container.state == "running"

    @property
    def started_at(self) -> float | None:
        """Returns when the worker's running container started."""
        return None if self.worker_container is None else self.worker_container.started_at

    @property
    def known_ends(self) -> tuple[ContainerEnd, ...]:
        """Returns the ends of the worker's container that the kubelet still shows, newest first."""
        container = self.worker_container
        ends = (container.end, container.last_end) if container is not None else ()
        return tuple(end for end in ends if end is not None)

    @property
    def latest_end(self) -> ContainerEnd | None:
        return next(iter(self.known_ends), None)

    @property
    def ends(self) -> int:
        """Returns how often the worker's container has ended.

        `restartCount` counts starts after the first. So while the container waits for its next start, the number of
        ends is `restartCount` + 1 (recorded on Kubernetes 1.36, local/tests/data/kubernetes-pods.jsonl: in
        CrashLoopBackOff with restartCount 1, the container has ended twice).
        """
        restarts = 0 if self.worker_container is None else self.worker_container.restarts
        return restarts if self.container_runs or self.latest_end is None else restarts + 1


def failed_init(pod: PodView) -> tuple[ContainerView, ContainerEnd] | None:
    """Returns the pod's init container that failed last, and its end. None while it runs again."""
    for container in pod.init_containers:
        end = container.latest_end
        if end is not None and end.exit_code != 0 and end.reason not in START_FAILURES and container.state != "running":
            return container, end
    return None


def termination_reports(pod: PodView) -> tuple[Report, ...]:
    """Returns the reports in the termination messages of a worker's container, oldest first.

    The worker's index is taken from the pod, and so is a missing uid.
    """
    return tuple(
        end.report._replace(worker=pod.worker, uid=end.report.uid or pod.uid)
        for end in reversed(pod.known_ends)
        if end.report is not None
    )


@dataclass(frozen=True)
class PodSetAdmission:
    """Kueue's admission of a worker group: number of pods, flavors, and additions by admission checks."""

    name: str
    count: int | None
    flavors: tuple[str, ...] = ()
    placement: Placement = field(default_factory=Placement)


@dataclass(frozen=True)
class WorkloadView:
    """Kueue's Workload of the job."""

    # Requested workers, by group.
    counts: tuple[tuple[str, int], ...] = ()
    active: bool = True
    # `reserved`: whether the Workload holds quota. `admitted`: whether all admission checks are ready, too.
    reserved: bool = False
    admitted: bool = False
    # The reason of the Evicted condition while it is True.
    evicted: str = ""
    # Kueue's message on the eviction, or on the missing admission.
    message: str = ""
    finished: bool = False
    pods_ready: bool | None = None
    pod_sets: tuple[PodSetAdmission, ...] = ()


@dataclass(frozen=True)
class ChildView:
    """An object of the job.

    `replicas`, `assignment` and `agent` are set for a StatefulSet, `workload` for a Workload. `kind` comes from
    `rendering.child_kind`.
    """

    kind: str
    name: str
    uid: str
    # The hash annotation of the last apply. If the hash of a new rendering is equal, nothing is written.
    rendered_hash: str
    # The uid of the controlling owner, so that another owner's object of the same name is never adopted.
    owner_uid: str | None
    # Whether the creation's field manager still owns fields. An apply can't remove them
    # (controller/writing/children.py).
    created: bool = False
    deleting: bool = False
    replicas: int | None = None
    assignment: Assignment | None = None
    # The ConfigMap with the agent of the StatefulSet's pods; None for the bundled image.
    agent: AgentConfigMap | None = None
    workload: WorkloadView | None = None


@dataclass(frozen=True)
class StreamView:
    """The stream from the leader, connected since `since`. `leader` is the leader's worker index."""

    connected: bool = False
    leader: int | None = None
    since: float | None = None
    workers: tuple[WorkerLine, ...] = ()
    # By worker: when its agent left the leader, if it hasn't returned.
    left: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RefusedWrite:
    """A write that the API server refuses (quota, webhook, another owner's object)."""

    action: str
    reason: str
    message: str
    at: float
    # For the executor: the number of refusals, and the time of the next try (the event loop's clock).
    failures: int = field(default=1, compare=False)
    retry_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Observed:
    """The observations around the job. `reports` contains each worker's last report on each attempt."""

    # When this operator began to observe the job (seconds since the epoch).
    since: float = 0.0
    children: tuple[ChildView, ...] = ()
    pods: tuple[PodView, ...] = ()
    reports: tuple[Report, ...] = ()
    # By worker, then by global rank.
    progress: Mapping[int, Mapping[int, RankProgress]] = field(default_factory=dict)
    # By worker: the durations of its recovery from the fault that preceded the current progress.
    recoveries: Mapping[int, Recovery] = field(default_factory=dict)
    progress_attempt: int = 0
    progress_at: float | None = None
    # The ranks' silence that the leader reports now.
    stall: StallLine | None = None
    stream: StreamView = StreamView()
    refused_writes: tuple[RefusedWrite, ...] = ()
    # The last state of the newest deleted pod of each worker, by uid.
    gone: Mapping[str, PodView] = field(default_factory=dict)
    # The kubelet's message on a container that it killed, by the pod's uid and the time of the end. None: no message.
    kills: Mapping[tuple[str, float], str | None] = field(default_factory=dict)
    # The last lines of failed init containers, by the pod's uid, the container's name and the time of its end.
    init_output: Mapping[tuple[str, str, float], str] = field(default_factory=dict)
    # The topology domain of each node, by the node's name; None if the node has no domain or can't be read.
    domains: Mapping[str, str | None] = field(default_factory=dict)
    # Kueue's flavors and priorities, by name; None if they can't be read.
    flavors: Mapping[str, Placement | None] = field(default_factory=dict)
    priorities: Mapping[str, int | None] = field(default_factory=dict)
    # Uids of pods that were in a list, but that no watch had shown before.
    listed_pods: Set[str] = frozenset()
    # Kinds beyond the built-in ones whose objects have been listed. A missing child of such a kind doesn't exist.
    listed: frozenset[str] = frozenset()


# End reasons of containers that the runtime couldn't start (kubernetes: pkg/kubelet/kuberuntime).
START_FAILURES = frozenset({"StartError", "ContainerCannotRun", "ContainerStatusUnknown"})

# Message about an agent that still obeyed SIGTERM after the kubelet's probe had failed.
_WELL = (
    "its agent was running, but the kubelet couldn't reach its port; change the worker's livenessProbe in "
    "spec.podTemplate"
)


def is_unresponsive_report(report: Report | Failure) -> bool:
    """Returns whether a report means that an agent doesn't answer. Unlike an end, it contains no exit code."""
    return report.reason == "AgentLost" and report.exit_code is None


def explained(report: Report, pod: PodView, kill_message: str) -> Report:
    """Returns the report with its cause.

    A restarted agent knows only that its predecessor was lost. The cause is in the container's status or the kubelet's
    message. An agent that the kubelet stopped may have been healthy but unreachable. If an agent exits to report, its
    report is about the previous end, not about its own exit.
    """
    if kill_message and _ended_by(report, pod.latest_end):
        error = "\n".join(filter(None, (report.error, kill_message, _WELL if report.state == "Stopped" else "")))
        report = report._replace(state="Failed", reason="AgentLost", culprit=True, error=error)
    killed = next((end for end in pod.known_ends if end.report is None and end.reason == "OOMKilled"), None)
    return report if killed is None else report._replace(reason="OOMKilled", exit_code=killed.exit_code)


def _ended_by(report: Report, end: ContainerEnd | None) -> bool:
    """Returns whether a report is about a container's last end, which the kubelet caused."""
    if end is None or is_unresponsive_report(report):
        return False
    if end.report is None:
        return report.reason == "AgentLost"
    return (end.report.state, end.report.attempt) == ("Stopped", report.attempt) and report.state == "Stopped"


def reason_of(end: ContainerEnd) -> str:
    """Returns the reason of an end without a report."""
    if end.reason == "OOMKilled":
        return "OOMKilled"
    # SIGKILL without a message means that the agent was killed. Exit code 0 without a report means a premature end.
    return REASON_BY_EXIT_CODE.get(
        end.exit_code, "AgentLost" if end.exit_code in (EXIT_FINISHED, EXIT_KILLED) else "Error"
    )
