"""A list says whether pods are there that a job's status names and no watch has shown.

Each type has a watch of its own, and another operator may have written the status: one that was paused and doesn't know
that it has lost the lease, or one that runs without any. Then the watch of jobs can be ahead of those of pods and
StatefulSets, and the workers of the attempt look as if they were lost. So both are listed before the pass decides, once
for each such status; a pod that isn't there then is gone. Where they can't be listed the pass is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainmaster_operator.controller.apiserver.cluster import PODS, STATEFUL_SETS, Cluster, RawObject, Resource
from trainmaster_operator.controller.cache.lookup_results import LookupResults
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookup
from trainmaster_operator.reconciling.observed.situation import RUN_PHASES
from trainmaster_operator.wire.names import JOB_NAME_LABEL

# The unseen pods' uids, and all sets and pods of the job.
Uids = frozenset[str]
Listed = tuple[tuple[Resource, RawObject], ...]
# In all others a pod that is gone isn't held against its attempt.
ATTEMPT_PHASES = RUN_PHASES | {"Restarting"}


def _needed(snapshot: Snapshot) -> Collection[Uids]:
    status, observed = snapshot.job.status, snapshot.observed
    if status.phase not in ATTEMPT_PHASES:
        return ()
    seen = snapshot.listed_pods.union(observed.gone, (pod.uid for pod in observed.pods))
    unseen = frozenset(filter(None, status.pod_uids)) - seen
    return (unseen,) if unseen else ()


async def _read(cluster: Cluster, key: JobKey, unseen: Collection[Uids]) -> Mapping[Uids, Listed]:
    selector = f"{JOB_NAME_LABEL}={key.name}"
    listed = [
        (resource, raw)
        for resource in (STATEFUL_SETS, PODS)
        async for page in cluster.pages(resource, key.namespace, label_selector=selector)
        for raw in page
    ]
    return dict.fromkeys(unseen, tuple(listed))


def _record(store: Store, key: JobKey, answers: Mapping[Uids, Listed | None]) -> None:
    for uids, listed in answers.items():
        for resource, raw in listed or ():
            store.upsert(resource, raw)
        store.record_lookups(key, LookupResults(listed_pods=set(uids)))


UNSEEN_PODS = Lookup("unseen pods", _needed, _read, _record, before_decision=True)
