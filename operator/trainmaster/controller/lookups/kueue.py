"""What a Workload and its admission name, and what that means: the priority of its class, the nodes of its flavors.

Each is read once for a job. Both types have no namespace, so an operator that serves a list of namespaces needs a
ClusterRole for them; without it the job says which flavor it can't read.
"""

from __future__ import annotations

import logging

from trainmaster.controller.apiserver.cluster import PRIORITY_CLASSES, RESOURCE_FLAVORS, Cluster, RawObject, Resource
from trainmaster.controller.apiserver.errors import ClusterError, Forbidden, NotFound
from trainmaster.controller.cache.lookup_results import LookupResults
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.controller.cache.workload_view import string_pairs
from trainmaster.reconciling.observed.kueue_admission import workload_child
from trainmaster.reconciling.observed.snapshot import Flavor
from trainmaster.rendering import scheduler_of
from trainmaster.wire.values import mapping, mappings

logger = logging.getLogger(__name__)

# Seconds until what couldn't be read is tried again.
TRY_AGAIN = 5.0


class KueueFacts:
    """Reads PriorityClasses and ResourceFlavors while a job needs to know them."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store

    async def look(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Read what isn't known yet; returns the seconds until the next try, None when none is needed."""
        job, observed = snapshot.job, snapshot.observed
        if job.spec is None or scheduler_of(job.spec) != "kueue":
            return None
        facts = LookupResults()
        name = job.spec.scheduling.priority_class_name
        if name is not None and name not in observed.priorities:
            found = await self._read(PRIORITY_CLASSES, key, name)
            if found is not None:
                facts.priorities[name] = _priority(found)
        child = workload_child(job, observed)
        workload = child.workload if child is not None else None
        named = {flavor for part in workload.pod_sets for flavor in part.flavors} if workload is not None else set()
        missing = [flavor for flavor in sorted(named) if observed.flavors.get(flavor) is None]
        for flavor in missing:
            found = await self._read(RESOURCE_FLAVORS, key, flavor)
            if found is not None:
                facts.flavors[flavor] = _flavor(found) if found else None
        self._store.record_lookups(key, facts)
        unread = any(facts.flavors.get(flavor) is None for flavor in missing)
        unread = unread or (name is not None and name not in observed.priorities and name not in facts.priorities)
        return TRY_AGAIN if unread else None

    async def _read(self, resource: Resource, key: JobKey, name: str) -> RawObject | None:
        """The object; {} where it isn't there or may not be read, None where that isn't known now."""
        try:
            return await self._cluster.get(resource, "", name)
        except (NotFound, Forbidden) as error:
            logger.warning("%s: %s %s can't be read: %s", key, resource.kind, name, error.message)
            return {}
        except ClusterError as error:
            logger.warning("%s: %s %s can't be read now: %s", key, resource.kind, name, error)
            return None


def _flavor(raw: RawObject) -> Flavor:
    spec = mapping(raw.get("spec"))
    return Flavor(string_pairs(spec.get("nodeLabels")), tuple(mappings(spec.get("tolerations"))))


def _priority(raw: RawObject) -> int | None:
    """An int32; None where the class isn't there."""
    value = raw.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None
