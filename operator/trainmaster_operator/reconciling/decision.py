"""A decision is the output of `decide` for one job.

The executor writes `status` first (if it differs), then carries out `actions`, then emits `events`. So if the operator
is killed, the next operator derives the actions from the status again. Applies and assignments run first and
concurrently. If there is no assignment, StatefulSets are applied after the objects that their pods mount. All other
actions follow in the order of `actions`. Every write to a pod requires that the pod's uid hasn't changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.wire.assignment import Assignment


@dataclass(frozen=True)
class Apply:
    """Apply a rendered child, with its hash annotation and replicas, by server-side apply."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Assign:
    """Send an assignment: push it to the leader's stream and patch the annotation of each pod, concurrently."""

    assignment: Assignment
    pods: tuple[PodView, ...]
    push: bool = True


@dataclass(frozen=True)
class EnsureAgent:
    """Check that the ConfigMap with the job's agent exists, and create it again if it is missing."""

    name: str


@dataclass(frozen=True)
class Touch:
    """Patch an annotation of pods whose agents haven't seen their assignment.

    The change makes the kubelet update the pods' downward-API files.
    """

    pods: tuple[PodView, ...]


@dataclass(frozen=True)
class CollectStacks:
    """Request the stacks of these workers' ranks from the leader, and store the answers later without blocking."""

    request: str
    attempt: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod after reading it from the API server.

    `force` sets the grace period to 0. Such a deletion requires that the node is lost: according to the API server, the
    node has been unreachable for at least `lost_after` seconds.
    """

    pod: PodView
    reason: str
    force: bool = False
    lost_after: float = 0.0


@dataclass(frozen=True)
class DeleteChild:
    """Delete an unwanted child, by its uid."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class WorkloadCondition:
    """A condition that the operator sets on the job's Workload."""

    type: Literal["Finished", "PodsReady", "Requeued", "QuotaReserved", "Admitted"]
    status: bool
    reason: str
    message: str


@dataclass(frozen=True)
class ReportWorkload:
    """Report the job's state in its Workload's status. If `release` contains a reason, the quota is released too."""

    name: str
    uid: str
    condition: WorkloadCondition
    release: str | None = None


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job, because its time to live has ended."""

    uid: str


Action = Apply | Assign | EnsureAgent | Touch | CollectStacks | DeletePod | DeleteChild | ReportWorkload | DeleteJob


@dataclass(frozen=True)
class JobEvent:
    """A Kubernetes Event about the job, for people."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """The status to write, the actions and events that follow, and the seconds until the next decision."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    requeue_after: float | None = None
