"""From the API server's objects to the frozen values of `reconciling.snapshot`: pure, tolerant of what is missing.

Only what `decide` needs is kept: a pod of 8 kB becomes about 1 kB, and 4,000 of them fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast, get_args

from trainmaster.api.protocol import (
    ASSIGNMENT_ANNOTATION,
    HASH_ANNOTATION,
    JOB_NAME_LABEL,
    POD_INDEX_LABEL,
    TOUCHED_ANNOTATION,
    Assignment,
    ProtocolError,
    Report,
)
from trainmaster.controller.workload_view import workload_view
from trainmaster.reconciling.admission import WORKLOAD_KIND
from trainmaster.reconciling.snapshot import ChildView, ContainerEnd, ContainerView, PodPhase, PodView
from trainmaster.reconciling.times import to_seconds

# Of a scheduler's or kubelet's message: enough for a person, bounded in memory and status.
MAX_MESSAGE = 1_000
Raw = Mapping[str, Any]


def parse_time(text: object) -> float | None:
    """An RFC 3339 time as seconds since the epoch; None for anything else."""
    return to_seconds(text) if isinstance(text, str) else None


def event_time(event: Raw) -> float:
    """When an Event happened last, by whichever of its fields say so; 0 where none does."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((parsed for text in times if (parsed := parse_time(text)) is not None), default=0.0)


def parse_seconds(text: object) -> float | None:
    """Seconds since the epoch as a decimal number; None for anything else."""
    try:
        seconds = float(str(text))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def job_name_of(metadata: Raw) -> str | None:
    """The job that a child or pod belongs to, by its label."""
    return (metadata.get("labels") or {}).get(JOB_NAME_LABEL)


def owner_uid(metadata: Raw) -> str | None:
    """The uid of the controlling owner."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None


def parse_assignment(annotations: Raw) -> Assignment | None:
    """The assignment annotation; None when absent or when somebody wrote nonsense there, which is then overwritten."""
    text = annotations.get(ASSIGNMENT_ANNOTATION)
    if not text:
        return None
    try:
        return Assignment.parse(text)
    except ProtocolError:
        return None


def pod_view(raw: Raw) -> PodView | None:
    """A worker's pod; None when it has no pod index, so isn't a worker of ours."""
    metadata: Raw = raw.get("metadata") or {}
    labels: Raw = metadata.get("labels") or {}
    spec: Raw = raw.get("spec") or {}
    status: Raw = raw.get("status") or {}
    name = str(metadata.get("name"))
    # The label is set by the StatefulSet controller since 1.28; the name ends with the same number.
    index = str(labels.get(POD_INDEX_LABEL) or name.rpartition("-")[2])
    if not index.isdecimal():
        return None
    phase = status.get("phase")
    deadline = parse_time(metadata.get("deletionTimestamp"))
    containers = [container_view(item) for item in status.get("containerStatuses") or ()]
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    scheduled: Raw = conditions.get("PodScheduled") or {}
    disrupted: Raw = conditions.get("DisruptionTarget") or {}
    ready: Raw = conditions.get("Ready") or {}
    return PodView(
        name=name,
        uid=str(metadata.get("uid")),
        worker=int(index),
        set_name=name.rpartition("-")[0],
        phase=cast(PodPhase, phase if phase in get_args(PodPhase) else "Pending"),
        created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
        node=spec.get("nodeName"),
        scheduled_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        ip=status.get("podIP"),
        deleting=deadline is not None,
        deadline=deadline,
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or "")[:MAX_MESSAGE],
        unschedulable=str(scheduled.get("message") or scheduled.get("reason") or "")[:MAX_MESSAGE]
        if scheduled.get("status") == "False"
        else None,
        disruption=str(disrupted.get("reason") or "DisruptionTarget") if disrupted.get("status") == "True" else None,
        ready=ready.get("status") == "True",
        assignment=parse_assignment(metadata.get("annotations") or {}),
        touched_at=parse_seconds((metadata.get("annotations") or {}).get(TOUCHED_ANNOTATION)),
        worker_container=next((view for view in containers if view.name == "worker"), None),
        init_containers=tuple(container_view(item) for item in status.get("initContainerStatuses") or ()),
    )


def container_view(raw: Raw) -> ContainerView:
    """A container's status."""
    state: Raw = raw.get("state") or {}
    waiting: Raw = state.get("waiting") or {}
    running: Raw = state.get("running") or {}
    terminated = state.get("terminated")
    last = (raw.get("lastState") or {}).get("terminated")
    return ContainerView(
        name=str(raw.get("name")),
        state="terminated" if terminated else "running" if running else "waiting",
        ready=raw.get("ready") is True,
        restarts=int(raw.get("restartCount") or 0),
        reason=str(waiting.get("reason") or ""),
        message=str(waiting.get("message") or "")[:MAX_MESSAGE],
        started_at=parse_time(running.get("startedAt")),
        end=container_end(terminated) if terminated else None,
        last_end=container_end(last) if last else None,
    )


def container_end(raw: Raw) -> ContainerEnd:
    """How a container ended, with the agent's report when its termination message is one."""
    message = str(raw.get("message") or "")
    return ContainerEnd(
        exit_code=int(raw.get("exitCode") or 0),
        reason=str(raw.get("reason") or ""),
        message=message[:MAX_MESSAGE],
        started_at=parse_time(raw.get("startedAt")),
        finished_at=parse_time(raw.get("finishedAt")),
        report=parse_termination_message(message),
    )


def parse_termination_message(message: str) -> Report | None:
    """A report, when the message is one; a user's own program may write anything there."""
    if not message.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(message)
        return Report.parse(data) if isinstance(data, dict) else None
    except ValueError:
        # Also ProtocolError, which is one.
        return None


def child_view(kind: str, raw: Raw) -> ChildView:
    """A child; `kind` is as `rendering.child_kind` names it."""
    metadata: Raw = raw.get("metadata") or {}
    spec: Raw = raw.get("spec") or {}
    template: Raw = (spec.get("template") or {}).get("metadata") or {}
    is_set = kind == "StatefulSet"
    return ChildView(
        kind=kind,
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid")),
        rendered_hash=str((metadata.get("annotations") or {}).get(HASH_ANNOTATION) or ""),
        owner_uid=owner_uid(metadata),
        deleting=metadata.get("deletionTimestamp") is not None,
        replicas=int(spec.get("replicas", 1)) if is_set else None,
        assignment=parse_assignment(template.get("annotations") or {}) if is_set else None,
        workload=workload_view(raw) if kind == WORKLOAD_KIND else None,
    )
