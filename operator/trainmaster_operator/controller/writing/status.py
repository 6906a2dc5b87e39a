"""Writes a job's public state: its status, Kubernetes Events about it, and the status of its Workload.

- The job's status is written by the smallest JSON merge patch (RFC 7386) from the server's status to the decided one.
- Events use core v1, for `kubectl describe` and `kubectl events`; the API server also serves them in events.k8s.io. As
  in client-go (tools/record/events_cache.go), a repeated event increments the first event's count, and each job has a
  budget of 25 events, which grows by one event every five minutes.
- The Workload's conditions are patched as a complete list, with the version that was just read as a precondition,
  because Kueue writes them too. After a Conflict, the Workload is read again.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.times import to_whole_text
from trainmaster_operator.api.v1alpha1 import API_VERSION, KIND, JobStatus
from trainmaster_operator.controller.apiserver.cluster import EVENTS, GANGS, Cluster, RawObject, Resource
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.reconciling.decision import JobEvent, ReportWorkload, WorkloadCondition
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.values import mapping, mappings

# Fields that change with every progress report and every new or deleted pod. A patch of only these fields may wait.
PROGRESS_FIELDS = frozenset({"progress", "timeSpent", "workers", "replicas"})
WORKLOADS = GANGS["kueue"]
logger = logging.getLogger(__name__)
COMPONENT = "trainmaster"
# The API limits a note to 1,024 bytes (events.k8s.io/v1).
MAX_MESSAGE_BYTES = 1_024
BURST = 25
REFILL_SECONDS = 300.0
# Seconds within which events with equal texts are counted as one event.
REPEAT_SECONDS = 600.0
REMEMBERED = 4_096


def to_wire(status: JobStatus) -> dict[str, Any]:
    """Returns a status in the API's form: camelCase, without unset fields."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the patch that changes `old` to `new`. Lists are replaced completely, as in the standard."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


def with_conditions(raw: Mapping[str, Any], status: JobStatus) -> dict[str, Any]:
    """Returns the patch that sets these conditions in a status, and changes nothing else."""
    wanted = to_wire(JobStatus(conditions=status.conditions)).get("conditions", [])
    types = {item["type"] for item in wanted}
    old = mappings(raw.get("conditions"))
    new = [*(item for item in old if item.get("type") not in types), *wanted]
    return {"conditions": new} if new != list(old) else {}


def is_only_progress(patch: Mapping[str, Any]) -> bool:
    """Returns whether a patch contains only progress, and neither begins nor ends a stall."""
    return bool(patch) and patch.keys() <= PROGRESS_FIELDS and "stall" not in (patch.get("progress") or {})


async def read_again(
    cluster: Cluster, store: Store, key: JobKey, resource: Resource, name: str, uid: str
) -> RawObject | None:
    """Read an object into the store; returns None if it is gone or another object has its name. Raises ClusterError."""
    try:
        live = await cluster.get(resource, key.namespace, name)
    except NotFound:
        store.remove(resource, key, name, uid)
        return None
    is_same = live["metadata"].get("uid") == uid
    if not is_same:
        store.remove(resource, key, name, uid)
    store.upsert(resource, live)
    return live if is_same else None


async def report_workload(cluster: Cluster, store: Store, key: JobKey, action: ReportWorkload, now: float) -> None:
    """Set a Workload's conditions; a release also clears the admission. Raises Conflict if Kueue wrote meanwhile."""
    live = await read_again(cluster, store, key, WORKLOADS, action.name, action.uid)
    if live is None:
        return
    metadata, status = mapping(live.get("metadata")), mapping(live.get("status"))
    wanted, patch = [action.condition], dict[str, Any]()
    if action.release is not None:
        # QuotaReserved and Admitted become false with the admission (pkg/workload, UnsetQuotaReservationWithCondition).
        wanted.append(WorkloadCondition("QuotaReserved", False, "Pending", action.release))
        wanted.append(WorkloadCondition("Admitted", False, "NoReservation", "The workload has no reservation"))
        patch["admission"] = None
    conditions = list(mappings(status.get("conditions")))
    for condition in wanted:
        conditions = _with(conditions, condition, metadata.get("generation", 1), now)
    body = {
        "metadata": {"uid": action.uid, "resourceVersion": metadata.get("resourceVersion")},
        "status": {**patch, "conditions": conditions},
    }
    store.upsert(WORKLOADS, await cluster.patch(WORKLOADS, key.namespace, action.name, body, status=True))


def _with(
    conditions: list[Mapping[str, Any]], wanted: WorkloadCondition, generation: int, now: float
) -> list[Mapping[str, Any]]:
    """Returns the conditions with one of them set. That condition's time changes only if its status changes."""
    old = next((item for item in conditions if item.get("type") == wanted.type), None)
    status = "True" if wanted.status else "False"
    since = old.get("lastTransitionTime") if old is not None and old.get("status") == status else to_whole_text(now)
    new = {
        "type": wanted.type,
        "status": status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }
    return [new if item is old else item for item in conditions] if old is not None else [*conditions, new]


class EventRecorder:
    """Records events. Never raises: if an event can't be written, that is logged, and the job continues."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._instance = socket.gethostname()
        # By the job's uid, the reason and the message: the event's name, count and last time.
        self._recorded: OrderedDict[tuple[str, str, str], tuple[str, int, float]] = OrderedDict()
        # By the job's uid: the number of events that the job may still have, and the time of its last event.
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def record(self, job: Job, event: JobEvent) -> None:
        """Write an event, or increment the count of an equal earlier event."""
        now = self._clock()
        # kubectl prints messages unchanged in a table, so a message must be one line.
        message = one_line(event.message).encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
        place = (job.uid, event.reason, message)
        name, count, at = self._recorded.get(place, ("", 0, 0.0))
        try:
            if count and now - at < REPEAT_SECONDS:
                self._recorded[place] = name, count + 1, now
                body = {"count": count + 1, "lastTimestamp": to_whole_text(now)}
                await self._cluster.patch(EVENTS, job.namespace, name, body)
                return
            if not self._spend(job.uid, now):
                logger.info("Event not recorded, %s has had too many: %s %s", job.name, event.reason, message)
                return
            name = f"{job.name}.{uuid.uuid4().hex[:16]}"
            await self._cluster.create(EVENTS, job.namespace, self._body(job, event, name, message, now))
        except NotFound:
            # The event has expired, or the namespace is gone.
            self._recorded.pop(place, None)
            return
        except ClusterError as error:
            logger.warning("Event %s of %s/%s not written: %s", event.reason, job.namespace, job.name, error)
            return
        self._recorded[place] = name, 1, now
        while len(self._recorded) > REMEMBERED:
            self._recorded.popitem(last=False)

    def _spend(self, uid: str, now: float) -> bool:
        tokens, at = self._budgets.pop(uid, (float(BURST), now))
        tokens = min(BURST, tokens + max(0.0, now - at) / REFILL_SECONDS)
        self._budgets[uid] = (tokens - 1 if tokens >= 1 else tokens), now
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        return tokens >= 1

    def _body(self, job: Job, event: JobEvent, name: str, message: str, now: float) -> dict[str, Any]:
        about = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
        time = to_whole_text(now)
        return EVENTS.body(
            metadata={"name": name, "namespace": job.namespace},
            involvedObject={"apiVersion": API_VERSION, "kind": KIND, **about},
            type=event.type,
            reason=event.reason,
            message=message,
            source={"component": COMPONENT},
            reportingComponent=f"trainmaster.dev/{COMPONENT}",
            reportingInstance=self._instance,
            firstTimestamp=time,
            lastTimestamp=time,
            count=1,
        )
