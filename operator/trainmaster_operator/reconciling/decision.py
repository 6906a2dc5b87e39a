"""A decision is the output of `decide` for one job.

The executor writes `status` first (if it differs), then carries out `actions`, then emits `events`. So if the operator
is killed, the next one reads the intention from the status and decides on the actions again. Applies and assignments
run first and concurrently. If there is no assignment, StatefulSets are applied after the objects that their pods mount.
All other actions follow in the order of `actions`. Every write to a pod requires that its uid still matches.
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
    """Patch the touched annotation of pods whose agents haven't seen their assignment, to wake the kubelet."""

    pods: tuple[PodView, ...]


@dataclass(frozen=True)
class CollectStacks:
    """Request the stacks of these workers' ranks from the leader, and store the answers later without blocking."""

    request: str
    attempt: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod after a live read.

    `force` (grace period 0) applies only if a live read shows that the node is lost, which means that it has been
    unreachable for `lost_after` seconds.
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
    """Report the job's state in its Workload's status. If `release` gives a reason, the quota is released too."""

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
    """The status to write, the actions and events that follow, and the time of the next decision."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    requeue_after: float | None = None
