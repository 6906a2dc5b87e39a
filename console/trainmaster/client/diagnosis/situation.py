"""Defines what the rules read (a situation of raw objects) and yield (findings with evidence and next steps)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from trainmaster.client.job import TrainingJob
from trainmaster.client.metrics import RankMetrics, WorkerState
from trainmaster.client.objects import Object, text
from trainmaster.client.view import JobView, view_of
from trainmaster_operator.api.evidence import AttemptEvidence
from trainmaster_operator.api.v1alpha1 import Condition

# If a job failed for one of these reasons, its ranks were never all up, so an obstacle to their start is the cause.
START_REASONS = frozenset(
    {"ImagePull", "InvalidImageName", "CreateContainer", "InitFailed", "Unschedulable", "QuotaExceeded", "Refused"}
    | {"NotInstalled", "NameTaken", "StartupDeadlineExceeded"}
)


@dataclass(frozen=True)
class Step:
    """Step is a suggested action, with its command if there is one."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Finding:
    """Finding is a possible cause. `clause` follows the job's name and phase: "big is pending: <clause>"."""

    cause: str
    """One word for programs, such as InsufficientResources."""
    clause: str
    evidence: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    is_certain: bool = True
    """False if another cause could explain the same observations."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Finding):
    """Diagnosis is the main finding as a sentence, the other findings, and what couldn't be read."""

    namespace: str
    name: str
    phase: str
    sentence: str
    others: tuple[str, ...] = ()
    unread: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the diagnosis as JSON for programs."""
        return {
            **{name: getattr(self, name) for name in ("namespace", "name", "phase", "cause", "sentence")},
            "certainty": "certain" if self.is_certain else "likely",
            "evidence": list(self.evidence),
            "next": [{"text": step.text} | ({"command": step.command} if step.command else {}) for step in self.steps],
            "others": list(self.others),
            "unread": list(self.unread),
        }


@dataclass(frozen=True)
class Situation:
    """Situation is a job and the objects around it.

    None means that an object wasn't needed, doesn't exist or couldn't be read. `unread` lists what couldn't be read.
    """

    job: TrainingJob
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    """Events about the job, its StatefulSets, pods and claims, oldest first."""
    nodes: Sequence[Object] | None = None
    pods_on_nodes: Sequence[Object] | None = None
    """Pods of all namespaces that use a node's resources."""
    claims: Sequence[Object] | None = None
    workload: Object | None = None
    pending: Sequence[Object] | None = None
    """The namespace's Workloads that wait in the same LocalQueue, including the job's own."""
    position: int | None = None
    """Number of Workloads ahead in the LocalQueue, according to Kueue's visibility API."""
    local_queues: Sequence[Object] | None = None
    cluster_queue: Object | None = None
    pod_group: Object | None = None
    operators: Sequence[Object] | None = None
    """Trainmaster's Deployments in all namespaces."""
    operator_pods: Sequence[Object] = ()
    """Pods of a Deployment that isn't ready."""
    lease: Object | None = None
    """The Lease that the leading operator renews."""
    evidence: Sequence[AttemptEvidence] = ()
    logs: Mapping[str, str] = field(default_factory=dict)
    """The ends of the pods' logs, by pod name."""
    ranks: Sequence[RankMetrics] = ()
    """The ranks' current figures, as far as their agents answered."""
    worker_states: Sequence[WorkerState] = ()
    """The workers' states while the job starts, as far as their agents answered."""
    unread: Sequence[str] = ()

    @cached_property
    def view(self) -> JobView:
        """Returns the job's figures and sentences."""
        return view_of(self.job.raw)

    @property
    def where(self) -> str:
        """Returns the option that selects the job's namespace in a command."""
        return f"-n {self.job.namespace}" if self.job.namespace else ""

    @property
    def is_starting(self) -> bool:
        """Returns whether an obstacle may keep ranks from starting, or kept them from starting until the job failed."""
        if self.job.phase == "Failed":
            return self.view.end_reason in START_REASONS
        return self.job.status.phase in ("Pending", "Starting", "Restarting") or bool(self.view.training_with)

    @property
    def shown_reason(self) -> str:
        """Returns the operator's reason why the job has failed, or else why it isn't running."""
        running = self.condition("Running")
        return self.view.end_reason or (running.reason if running is not None and running.status != "True" else "")

    @property
    def shown_message(self) -> str:
        """Returns the operator's message for `shown_reason`."""
        found = self.condition("Failed" if self.view.end_reason else "Running")
        return "" if found is None else found.message

    def condition(self, kind: str) -> Condition | None:
        """Returns the job's condition of a type."""
        return next((one for one in self.job.status.conditions if one.type == kind), None)

    def events_about(self, kind: str, name: str | None = None) -> Iterator[Object]:
        """Yields the events about objects of a kind, or about the object of this name, newest first."""
        for event in reversed(self.events):
            about = event.get("involvedObject")
            if text(about, "kind") == kind and name in (None, text(about, "name")):
                yield event
