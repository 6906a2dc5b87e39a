"""Decides a StatefulSet's next steps, as a pure function of the set, its pods and its revisions.

The algorithm is that of `pkg/controller/statefulset/stateful_set_control.go` (updateStatefulSet), in its order:

1. every ordinal of the set, ascending: a Failed or Succeeded pod is deleted, a missing one is created. Under
   OrderedReady this stops at the first pod that isn't running and ready;
2. pods beyond the set, descending: deleted; under OrderedReady one at a time, when the rest is healthy;
3. under RollingUpdate, pods of another revision, descending down to the partition: deleted, at most
   `maxUnavailable` at once.

A terminating pod is never replaced before it is gone, because its name is its identity.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_local.controllers.pods import available_in, is_finished, is_ready, is_terminating, owner_reference

Object = Mapping[str, Any]

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
REVISION_LABEL = "controller-revision-hash"


@dataclass(frozen=True)
class Plan:
    """A plan contains the ordinals to create and the names of pods to delete, in order.

    `available_in` is the number of seconds until a status changes by itself.
    """

    create: tuple[int, ...] = ()
    delete: tuple[str, ...] = ()
    available_in: float | None = None


def ordinal(name: str, set_name: str) -> int | None:
    """Returns the ordinal of a pod's name; None for a name outside the set."""
    match = re.fullmatch(re.escape(set_name) + r"-(0|[1-9]\d*)", name)
    return int(match.group(1)) if match else None


def start_ordinal(spec: Object) -> int:
    return int((spec.get("ordinals") or {}).get("start") or 0)


def replicas(spec: Object) -> int:
    return int(spec.get("replicas", 1))


def _partition(spec: Object) -> int:
    return int(((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition") or 0)


def _max_unavailable(spec: Object) -> int:
    value = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("maxUnavailable", 1)
    if isinstance(value, str) and value.endswith("%"):
        return max(1, replicas(spec) * int(value[:-1]) // 100)
    return max(1, int(value))


def revision_for(spec: Object, index: int, current: str, update: str) -> str:
    """Returns the revision for the pod of an ordinal (newVersionedStatefulSetPod)."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "RollingUpdate" and index < start_ordinal(spec) + _partition(spec):
        return current
    return update


def plan(statefulset: Object, pods: Sequence[Object], update_revision: str, now: float) -> Plan:
    """Returns the next steps. `pods` are those that the set controls."""
    spec = statefulset["spec"]
    name = statefulset["metadata"]["name"]
    if statefulset["metadata"].get("deletionTimestamp"):
        return Plan()
    ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
    minimum = int(spec.get("minReadySeconds") or 0)
    first = start_ordinal(spec)
    wanted = range(first, first + replicas(spec))
    by_ordinal = {number: pod for pod in pods if (number := ordinal(pod["metadata"]["name"], name)) is not None}
    waits = [wait for pod in pods if (wait := available_in(pod, minimum, now))]
    soon = min(waits) if waits else None

    create: list[int] = []
    delete: list[str] = []
    for number in wanted:
        pod = by_ordinal.get(number)
        if pod is None:
            create.append(number)
            if ordered:
                return Plan(tuple(create), tuple(delete), soon)
        elif is_finished(pod) and not is_terminating(pod):
            delete.append(pod["metadata"]["name"])
            if ordered:
                return Plan(tuple(create), tuple(delete), soon)
        elif ordered and (is_terminating(pod) or available_in(pod, minimum, now) != 0.0):
            return Plan(tuple(create), tuple(delete), soon)

    condemned = sorted((number for number in by_ordinal if number not in wanted), reverse=True)
    if ordered and any(is_terminating(by_ordinal[number]) for number in condemned):
        return Plan(tuple(create), tuple(delete), soon)
    for number in condemned:
        if not is_terminating(by_ordinal[number]):
            delete.append(by_ordinal[number]["metadata"]["name"])
            if ordered:
                return Plan(tuple(create), tuple(delete), soon)

    if (spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate" and not (create or delete):
        delete += _outdated(spec, by_ordinal, wanted, update_revision, minimum, now)
    return Plan(tuple(create), tuple(delete), soon)


def _outdated(
    spec: Object, by_ordinal: Mapping[int, Object], wanted: range, revision: str, minimum: int, now: float
) -> list[str]:
    unavailable = sum(
        1 for number in wanted if number not in by_ordinal or available_in(by_ordinal[number], minimum, now) != 0.0
    )
    room = _max_unavailable(spec) - unavailable
    found: list[str] = []
    for number in reversed(wanted):
        if number < wanted.start + _partition(spec):
            break
        pod = by_ordinal.get(number)
        if pod is None:
            continue
        outdated = (pod["metadata"].get("labels") or {}).get(REVISION_LABEL) != revision
        if outdated and not is_terminating(pod):
            healthy = available_in(pod, minimum, now) == 0.0
            if healthy and room <= 0:
                break
            room -= 1 if healthy else 0
            found.append(pod["metadata"]["name"])
            if room <= 0:
                break
        elif not is_ready(pod):
            # The replaced pod has to be up before the next one is deleted.
            break
    return found


def status(
    statefulset: Object, pods: Sequence[Object], current: str, update: str, collisions: int, now: float
) -> dict[str, Any]:
    """Returns the set's status. Zeros are omitted, except for `replicas` and `availableReplicas`."""
    spec = statefulset["spec"]
    minimum = int(spec.get("minReadySeconds") or 0)
    alive = [pod for pod in pods if not is_terminating(pod)]

    def of(revision: str) -> int:
        return sum(1 for pod in alive if (pod["metadata"].get("labels") or {}).get(REVISION_LABEL) == revision)

    ready = sum(1 for pod in pods if is_ready(pod))
    updated = of(update)
    rolling = (spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate"
    if rolling and updated == len(pods) == ready == replicas(spec) and not _partition(spec):
        current = update
    counts = {"readyReplicas": ready, "currentReplicas": of(current), "updatedReplicas": updated}
    return {
        "observedGeneration": int(statefulset["metadata"].get("generation") or 1),
        "replicas": len(pods),
        **{key: count for key, count in counts.items() if count},
        "currentRevision": current,
        "updateRevision": update,
        "collisionCount": collisions,
        "availableReplicas": sum(1 for pod in pods if available_in(pod, minimum, now) == 0.0),
    }


def build_pod(statefulset: Object, template: Object, revision_name: str, number: int) -> dict[str, Any]:
    """Returns the pod of an ordinal, with its identity.

    This follows `stateful_set_utils.go`: newStatefulSetPod, updateIdentity, updateStorage.
    """
    name = statefulset["metadata"]["name"]
    pod_name = f"{name}-{number}"
    made = copy.deepcopy(dict(template))
    metadata = made.get("metadata") or {}
    spec = made.get("spec") or {}
    pod_metadata: dict[str, Any] = {
        "name": pod_name,
        "generateName": f"{name}-",
        "namespace": statefulset["metadata"]["namespace"],
        "labels": {
            **(metadata.get("labels") or {}),
            POD_NAME_LABEL: pod_name,
            POD_INDEX_LABEL: str(number),
            REVISION_LABEL: revision_name,
        },
        "ownerReferences": [owner_reference(statefulset, "apps/v1", "StatefulSet")],
    }
    for key in ("annotations", "finalizers"):
        if metadata.get(key):
            pod_metadata[key] = metadata[key]
    spec["hostname"] = pod_name
    if statefulset["spec"].get("serviceName"):
        spec["subdomain"] = statefulset["spec"]["serviceName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec}
