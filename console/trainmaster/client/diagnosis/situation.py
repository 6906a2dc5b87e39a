"""A situation is all that could be read of a job and of what it depends on, as raw objects of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from trainmaster.client.diagnosis.objects import Object, name_of, text
from trainmaster.client.job import TrainingJob
from trainmaster.client.metrics import RankMetrics, WorkerState
from trainmaster_operator.api.evidence import AttemptEvidence

# A job that has failed with one of these never had all its ranks up, so what kept it from starting is the cause.
START_REASONS = frozenset(
    {"ImagePull", "InvalidImageName", "CreateContainer", "InitFailed", "Unschedulable", "QuotaExceeded", "Refused"}
    | {"NotInstalled", "NameTaken", "StartupDeadlineExceeded"}
)


@dataclass(frozen=True)
class Situation:
    """Situation is the job with everything around it.

    None stands for what wasn't read: because it isn't needed, or because the user may not (`unread` says that).
    """

    job: TrainingJob
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    """Of the job, its StatefulSets, pods and claims, oldest first."""
    nodes: tuple[Object, ...] | None = None
    pods_on_nodes: tuple[Object, ...] | None = None
    """Pods of all namespaces that hold something of a node."""
    claims: tuple[Object, ...] | None = None
    workload: Object | None = None
    pending: tuple[Object, ...] | None = None
    """Workloads of the namespace that wait in the same LocalQueue, this one among them."""
    position: int | None = None
    """Workloads of the LocalQueue that come first, as Kueue's visibility API has it."""
    local_queues: tuple[Object, ...] | None = None
    cluster_queue: Object | None = None
    pod_group: Object | None = None
    operators: tuple[Object, ...] | None = None
    """Deployments of Trainmaster in any namespace."""
    evidence: tuple[AttemptEvidence, ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    """Ends of the pods' logs, by the pod's name."""
    ranks: tuple[RankMetrics, ...] = ()
    """What ranks say of themselves now, where the agents could be asked."""
    worker_states: tuple[WorkerState, ...] = ()
    """What agents say of their workers, while the job starts and as far as they could be asked."""
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Returns the job's name."""
        return self.job.name

    @property
    def where(self) -> str:
        """Returns the option that names the job's namespace, for a command."""
        return f"-n {self.job.namespace}" if self.job.namespace else ""

    @property
    def failed_reason(self) -> str:
        """Returns the reason of the job's end; empty for one that hasn't failed."""
        return next((each.reason for each in self.job.status.conditions if each.type == "Failed"), "")

    @property
    def is_starting(self) -> bool:
        """Returns whether something may keep the ranks from starting, or has done so until the job failed."""
        if self.job.phase == "Failed":
            return self.failed_reason in START_REASONS
        return self.job.status.phase in ("Pending", "Starting", "Restarting") or self.lacks_ranks

    @property
    def lacks_ranks(self) -> bool:
        """Returns whether the job trains without some of its ranks, which are to join the others."""
        return self.job.phase == "Running" and self.job.status.training_with is not None

    @property
    def shown_reason(self) -> str:
        """Returns the reason that the operator shows: of the end, else of not running."""
        running = next((each for each in self.job.status.conditions if each.type == "Running"), None)
        return self.failed_reason or (running.reason if running is not None and running.status != "True" else "")

    @property
    def shown_message(self) -> str:
        """Returns the message that goes with `shown_reason`."""
        kind = "Failed" if self.failed_reason else "Running"
        return next((each.message for each in self.job.status.conditions if each.type == kind), "")

    def events_about(self, kind: str, name: str | None = None) -> Iterator[Object]:
        """Yields the events about objects of a kind, or about one of them, the newest first."""
        for event in reversed(self.events):
            about = event.get("involvedObject")
            if text(about, "kind") == kind and name in (None, text(about, "name")):
                yield event

    def pod(self, name: str) -> Object | None:
        """Returns the job's pod of that name."""
        return next((pod for pod in self.pods if name_of(pod) == name), None)
