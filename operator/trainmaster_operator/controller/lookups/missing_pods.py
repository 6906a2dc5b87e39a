"""A StatefulSet's Events say why its pods don't exist: quotas, webhooks, missing service accounts.

A StatefulSet's status doesn't show it; only an Event of its controller does (reason FailedCreate,
pkg/controller/statefulset/stateful_pod_control.go). So when pods stay missing, the set's events are read, and the
newest refusal becomes a `RefusedWrite` in the job's snapshot, with the API server's own message.

After refusals the set's controller tries again ever more rarely, at last each 16 minutes (client-go's rate limiter).
A ResourceQuota that has room again doesn't wake it. So a set that a quota keeps from making pods is touched when the
quota has changed: its annotation has the quota's version, and a patch without a change does nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from trainmaster_operator.controller.apiserver.cluster import RESOURCE_QUOTAS, STATEFUL_SETS, Cluster
from trainmaster_operator.controller.apiserver.errors import ClusterError
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import event_time
from trainmaster_operator.controller.lookups.lookup import Lookup, list_events
from trainmaster_operator.reconciling.observed.snapshot import RefusedWrite
from trainmaster_operator.wire.names import TRIED_QUOTA_ANNOTATION
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Anybody who may create Events can write one: what isn't an object's name is none.
_EXCEEDED_QUOTA = re.compile(r"exceeded quota: ([a-z0-9][-a-z0-9.]{0,252}), ")


class LackingSet(NamedTuple):
    """Names a StatefulSet that has fewer pods than it should have."""

    name: str
    uid: str


def _needed(snapshot: Snapshot) -> Collection[LackingSet]:
    sets = [
        child
        for child in snapshot.observed.children
        if child.kind == STATEFUL_SETS.kind and child.owner_uid == snapshot.job.uid and not child.deleting
    ]
    present = dict.fromkeys((child.name for child in sets), 0)
    for pod in snapshot.observed.pods:
        if pod.set_name in present:
            present[pod.set_name] += 1
    return [LackingSet(child.name, child.uid) for child in sets if present[child.name] < (child.replicas or 0)]


async def _read(cluster: Cluster, key: JobKey, sets: Collection[LackingSet]) -> Mapping[LackingSet, RefusedWrite]:
    problems: dict[LackingSet, RefusedWrite] = {}
    for lacking in sets:
        about = f"involvedObject.kind={STATEFUL_SETS.kind},involvedObject.name={lacking.name}"
        try:
            events = await list_events(cluster, key.namespace, f"{about},reason=FailedCreate")
        except ClusterError as error:
            logger.info("%s: the events of StatefulSet %s can't be read: %s", key, lacking.name, error)
            continue
        its = [event for event in events if mapping(event.get("involvedObject")).get("uid") == lacking.uid]
        if its:
            newest = max(its, key=event_time)
            message = text(newest.get("message"))
            if quota := _EXCEEDED_QUOTA.search(message):
                await _touch(cluster, key, lacking, quota[1])
            problems[lacking] = RefusedWrite(_action(lacking), "FailedCreate", message, event_time(newest))
    return problems


async def _touch(cluster: Cluster, key: JobKey, lacking: LackingSet, quota: str) -> None:
    """Wakes the controller of a set where its quota has changed since."""
    try:
        found = await cluster.get(RESOURCE_QUOTAS, key.namespace, quota)
        tried_with = f"{quota} {text(mapping(found.get('metadata')).get('resourceVersion'))}"
        body = {"metadata": {"uid": lacking.uid, "annotations": {TRIED_QUOTA_ANNOTATION: tried_with}}}
        await cluster.patch(STATEFUL_SETS, key.namespace, lacking.name, body)
    except ClusterError as error:
        logger.info("%s: StatefulSet %s isn't touched for quota %s: %s", key, lacking.name, quota, error)


def _record(store: Store, key: JobKey, answers: Mapping[LackingSet, RefusedWrite | None]) -> None:
    for lacking, problem in answers.items():
        if problem is None:
            store.clear_refusal(key, _action(lacking))
        else:
            store.record_refusal(key, problem, 0.0)


def _action(lacking: LackingSet) -> str:
    return f"create the pods of StatefulSet {lacking.name}"


# Making a few hundred pods takes three seconds.
MISSING_PODS = Lookup("missing pods", _needed, _read, _record, patience_seconds=3.0, fresh_seconds=5.0)
