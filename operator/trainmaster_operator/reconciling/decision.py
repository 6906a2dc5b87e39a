"""A decision is the output of `decide` for one job.

The executor writes `status` first (if it differs), then carries out `actions`, then emits `events`. So status is always
the source of truth: after a kill, the next operator finds the intention in it, and decides the rest again. Applies and
assignments come first and run at the same time; without an assignment, StatefulSets are applied after the objects that
their pods mount. All other actions follow, in their order here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.wire.assignment import Assignment


@dataclass(frozen=True)
class PodRef:
    """A pod by name and uid. Every write to it has the uid as a precondition."""

    name: str
    uid: str


@dataclass(frozen=True)
class Apply:
    """Apply a rendered child by server-side apply, with its hash annotation and replicas."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Assign:
    """Send an assignment: push it to the leader's stream and patch the annotation of each pod, concurrently."""

    assignment: Assignment
    pods: tuple[PodRef, ...]
    push: bool = True


@dataclass(frozen=True)
class EnsureAgent:
    """Check that the ConfigMap with the job's agent exists, and create it again if it is missing."""

    name: str


@dataclass(frozen=True)
class Touch:
    """Patch the touched annotation of pods whose agents haven't seen their assignment, to wake the kubelet."""

    pods: tuple[PodRef, ...]


@dataclass(frozen=True)
class CollectStacks:
    """Request the stacks of these workers' ranks from the leader and keep the answers, without waiting."""

    request: str
    attempt: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod after a live read.

    `force` (grace period 0) applies only if a live read shows that the node is lost: unreachable for `lost_after`
    seconds.
    """

    pod: PodRef
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

    type: Literal["Finished", "PodsReady", "Requeued"]
    status: bool
    reason: str
    message: str


@dataclass(frozen=True)
class ReportWorkload:
    """Report the job to Kueue in its Workload's status. `release`: the reason to release the quota too."""

    name: str
    uid: str
    conditions: tuple[WorkloadCondition, ...]
    release: str | None = None


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job, whose time to live is over."""

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
    """The status to write, the actions after that, the events to publish, and when to decide again."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    requeue_after: float | None = None
