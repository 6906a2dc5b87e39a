"""Converts the API server's objects to the frozen values of `reconciling.observed.snapshot`.

The functions are pure and total. Any client that may write an object decides its content, so a value of the wrong type
counts as missing (`wire.values`). Only `decide`'s input is kept: a pod of 8 kB becomes about 1 kB, so 4,000 pods fit in
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast, get_args

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.reconciling.observed.gangs import WORKLOAD_KIND
from trainmaster_operator.reconciling.observed.snapshot import (
    ChildView,
    ContainerEnd,
    ContainerView,
    PodPhase,
    PodSetAdmission,
    PodView,
    WorkloadView,
)
from trainmaster_operator.rendering import AgentConfigMap, Placement
from trainmaster_operator.rendering.agent_source import AGENT_CONFIG_MAP_NAME, AGENT_VOLUME
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, FIELD_MANAGER, HASH_ANNOTATION, TOUCHED_ANNOTATION
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.values import ProtocolError, decimal, loads, mapping, mappings, text, whole

# Kubernetes' own limits: names, uids and labels contain at most 253 characters, the kubelet keeps 4,096 bytes of a
# termination message, and counts are int32.
MAX_NAME, MAX_TERMINATION_MESSAGE, MAX_INT32 = 253, 4_096, 2**31
Raw = Mapping[str, Any]
# Limit in characters on a message of a scheduler, a kubelet or Kueue. Longer messages would fill memory and the status.
MAX_MESSAGE = 1_000


def parse_time(value: object) -> float | None:
    """Returns an RFC 3339 time as seconds since the epoch; None for anything else."""
    return to_seconds(value) if isinstance(value, str) else None


def event_time(event: Raw) -> float:
    """Returns the time of an Event's last occurrence, from any of its fields; 0 if none has a time."""
    series = mapping(event.get("series"))
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((parsed for time in times if (parsed := parse_time(time)) is not None), default=0.0)


def parse_seconds(value: object) -> float | None:
    """Returns seconds since the epoch, from a decimal number; None for anything else."""
    try:
        seconds = float(text(value, 40))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def label(metadata: Raw, name: str) -> str:
    """Returns a label's value; empty if there is none."""
    return text(mapping(metadata.get("labels")).get(name), MAX_NAME)


def annotation(metadata: Raw, name: str) -> object:
    """Returns an annotation's value, of any length; None if there is none."""
    return mapping(metadata.get("annotations")).get(name)


def controller_of(metadata: Raw) -> Raw:
    """Returns the reference to the controlling owner; empty if there is none."""
    references = mappings(metadata.get("ownerReferences"))
    return next((reference for reference in references if reference.get("controller") is True), {})


def owner_uid(metadata: Raw) -> str | None:
    """Returns the uid of the controlling owner."""
    controller = controller_of(metadata)
    return text(controller.get("uid"), MAX_NAME) if controller else None


def is_from_create(entry: Raw) -> bool:
    """Returns whether a `metadata.managedFields` entry is from our create, whose fields later applies don't drop."""
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Update" and not entry.get("subresource")


def parse_assignment(metadata: Raw, keys: SigningKeys) -> Assignment | None:
    """Returns the assignment annotation; None if it is missing or not signed by the operator.

    Without the signature, any client that may patch a pod could hold a job at an attempt that wasn't counted. An
    annotation that counts as missing is overwritten.
    """
    value = annotation(metadata, ASSIGNMENT_ANNOTATION)
    if not value:
        return None
    try:
        return keys.read(value)
    except ProtocolError:
        return None


def pod_view(raw: Raw, keys: SigningKeys) -> PodView | None:
    """Returns a pod; None if its name doesn't end with an index, because a StatefulSet's pods have an index."""
    metadata, spec, status = mapping(raw.get("metadata")), mapping(raw.get("spec")), mapping(raw.get("status"))
    name = text(metadata.get("name"), MAX_NAME)
    index = decimal(name.rpartition("-")[2], MAX_INDEX)
    if index is None:
        return None
    phase = status.get("phase")
    deadline = parse_time(metadata.get("deletionTimestamp"))
    containers = [container_view(item) for item in mappings(status.get("containerStatuses"))]
    conditions = conditions_by_type(status)
    scheduled = mapping(conditions.get("PodScheduled"))
    disrupted = mapping(conditions.get("DisruptionTarget"))
    ready = mapping(conditions.get("Ready"))
    return PodView(
        name=name,
        uid=text(metadata.get("uid"), MAX_NAME),
        worker=index,
        set_name=name.rpartition("-")[0],
        phase=cast(PodPhase, phase) if isinstance(phase, str) and phase in get_args(PodPhase) else "Pending",
        created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
        node=text(spec.get("nodeName"), MAX_NAME) or None,
        scheduled_at=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        ip=text(status.get("podIP"), MAX_NAME) or None,
        deleting=deadline is not None,
        deadline=deadline,
        reason=text(status.get("reason")),
        message=text(status.get("message"), MAX_MESSAGE),
        unschedulable=text(scheduled.get("message"), MAX_MESSAGE) or text(scheduled.get("reason"))
        if scheduled.get("status") == "False"
        else None,
        disruption=text(disrupted.get("reason")) or "DisruptionTarget" if disrupted.get("status") == "True" else None,
        ready=ready.get("status") == "True",
        assignment=parse_assignment(metadata, keys),
        touched_at=parse_seconds(annotation(metadata, TOUCHED_ANNOTATION)),
        worker_container=next((view for view in containers if view.name == "worker"), None),
        init_containers=tuple(container_view(item) for item in mappings(status.get("initContainerStatuses"))),
    )


def container_view(raw: Raw) -> ContainerView:
    state = mapping(raw.get("state"))
    waiting, running, terminated = mapping(state.get("waiting")), state.get("running"), state.get("terminated")
    last = mapping(raw.get("lastState")).get("terminated")
    without_end: Literal["running", "waiting"] = "running" if isinstance(running, Mapping) else "waiting"
    return ContainerView(
        name=text(raw.get("name"), MAX_NAME),
        state="terminated" if isinstance(terminated, Mapping) else without_end,
        ready=raw.get("ready") is True,
        restarts=whole(raw.get("restartCount"), MAX_INT32) or 0,
        reason=text(waiting.get("reason")),
        message=text(waiting.get("message"), MAX_MESSAGE),
        started_at=parse_time(mapping(running).get("startedAt")),
        end=container_end(terminated) if isinstance(terminated, Mapping) else None,
        last_end=container_end(last) if isinstance(last, Mapping) else None,
    )


def container_end(raw: Raw) -> ContainerEnd:
    """Returns a container's end, with the agent's report if the termination message contains one."""
    message = text(raw.get("message"), MAX_TERMINATION_MESSAGE)
    return ContainerEnd(
        exit_code=int32(raw.get("exitCode")) or 0,
        reason=text(raw.get("reason")),
        message=message[:MAX_MESSAGE],
        started_at=parse_time(raw.get("startedAt")),
        finished_at=parse_time(raw.get("finishedAt")),
        report=parse_termination_message(message),
    )


def parse_termination_message(message: str) -> Report | None:
    """Returns the report in a termination message; None if a user's program wrote another text."""
    if not message.lstrip().startswith("{"):
        return None
    try:
        data = loads(message)
        return Report.parse(data) if isinstance(data, dict) else None
    except ValueError:
        # ValueError includes ProtocolError, a subclass.
        return None


def child_view(kind: str, raw: Raw, keys: SigningKeys) -> ChildView:
    """Returns a child; `kind` comes from `rendering.child_kind`."""
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    template = mapping(spec.get("template"))
    owner, assigned = owner_uid(metadata), parse_assignment(mapping(template.get("metadata")), keys)
    is_set = kind == "StatefulSet"
    return ChildView(
        kind=kind,
        name=text(metadata.get("name"), MAX_NAME),
        uid=text(metadata.get("uid"), MAX_NAME),
        rendered_hash=text(annotation(metadata, HASH_ANNOTATION), MAX_NAME),
        owner_uid=owner,
        created=any(map(is_from_create, mappings(metadata.get("managedFields")))),
        deleting=metadata.get("deletionTimestamp") is not None,
        replicas=_count(spec, "replicas") if is_set else None,
        # An assignment that was signed for another job and copied here doesn't count.
        assignment=assigned if is_set and assigned is not None and assigned.job == owner else None,
        agent=agent_source(template) if is_set else None,
        workload=workload_view(raw) if kind == WORKLOAD_KIND else None,
    )


def agent_source(template: Raw) -> AgentConfigMap | None:
    """Returns the ConfigMap from which a template's pods mount the agent; None for the bundled image.

    The name must contain the hash of the content, because only an operator's ConfigMap has such a name.
    """
    for volume in mappings(mapping(template.get("spec")).get("volumes")):
        name = text(mapping(volume.get("configMap")).get("name"), MAX_NAME)
        if volume.get("name") == AGENT_VOLUME and AGENT_CONFIG_MAP_NAME.fullmatch(name):
            return AgentConfigMap(name)
    return None


def int32(value: object) -> int | None:
    """Returns an integer, which may be negative; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INT32 else None


def conditions_by_type(status: Raw) -> dict[str, Raw]:
    """Returns the conditions of any Kubernetes object's status, by type."""
    return {text(item.get("type")): item for item in mappings(status.get("conditions"))}


def string_pairs(value: object) -> tuple[tuple[str, str], ...]:
    """Returns labels, annotations or a node selector, ordered by key."""
    pairs = ((text(key), text(item, None)) for key, item in mapping(value).items() if isinstance(item, str))
    return tuple(sorted(pairs))


def workload_view(raw: Raw) -> WorkloadView:
    """Returns the view of Kueue's Workload (github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2/workload_types.go)."""
    spec, status = mapping(raw.get("spec")), mapping(raw.get("status"))
    conditions = conditions_by_type(status)
    evicted, reserved, ready, admitted, finished = (
        mapping(conditions.get(kind)) for kind in ("Evicted", "QuotaReserved", "PodsReady", "Admitted", "Finished")
    )
    is_evicted = evicted.get("status") == "True"
    checks = mappings(status.get("admissionChecks"))
    assigned = mappings(mapping(status.get("admission")).get("podSetAssignments"))
    return WorkloadView(
        counts=tuple((text(item.get("name")) or "main", _count(item)) for item in mappings(spec.get("podSets"))),
        active=spec.get("active") is not False,
        reserved=reserved.get("status") == "True",
        admitted=admitted.get("status") == "True",
        evicted=text(evicted.get("reason")) or "Evicted" if is_evicted else "",
        message=text((evicted if is_evicted else reserved).get("message"), MAX_MESSAGE),
        finished=finished.get("status") == "True",
        pods_ready=ready.get("status") == "True" if ready else None,
        pod_sets=tuple(_admitted(item, checks) for item in assigned),
    )


def _admitted(raw: Raw, checks: Iterable[Raw]) -> PodSetAdmission:
    name = text(raw.get("name")) or "main"
    updates = [update for check in checks for update in mappings(check.get("podSetUpdates"))]
    updates = [update for update in updates if text(update.get("name")) == name]
    return PodSetAdmission(
        name=name,
        count=whole(raw.get("count"), MAX_INT32),
        flavors=tuple(sorted({text(flavor) for flavor in mapping(raw.get("flavors")).values()} - {""})),
        placement=Placement(
            node_selector=_merged(updates, "nodeSelector"),
            tolerations=tuple(one for update in updates for one in mappings(update.get("tolerations"))),
            labels=_merged(updates, "labels"),
            annotations=_merged(updates, "annotations"),
        ),
    )


def _count(raw: Raw, field: str = "count") -> int:
    """Returns a number of pods, whose default in Kubernetes and Kueue is 1."""
    count = whole(raw.get(field), MAX_INT32)
    return 1 if count is None else count


def _merged(updates: Iterable[Raw], field: str) -> tuple[tuple[str, str], ...]:
    return string_pairs({key: value for update in updates for key, value in mapping(update.get(field)).items()})
