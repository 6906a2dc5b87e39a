"""Kueue's objects that a Workload names are read: the priority of its class, the nodes of its flavors.

Both types have no namespace, so an operator that serves a list of namespaces needs a ClusterRole for them; without it
the job's status names the flavor that can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainmaster_operator.controller.apiserver.cluster import PRIORITY_CLASSES, RESOURCE_FLAVORS, RawObject
from trainmaster_operator.controller.cache.lookup_results import LookupResults
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.workload_view import string_pairs
from trainmaster_operator.controller.lookups.lookup import Lookup, get_each
from trainmaster_operator.reconciling.observed.gangs import workload_child
from trainmaster_operator.reconciling.observed.snapshot import Flavor
from trainmaster_operator.rendering import scheduler_of
from trainmaster_operator.wire.values import mapping, mappings


def _priority_class_needed(snapshot: Snapshot) -> Collection[str]:
    spec = snapshot.job.spec
    if spec is None or scheduler_of(spec) != "kueue":
        return ()
    name = spec.scheduling.priority_class_name
    return (name,) if name is not None and name not in snapshot.observed.priorities else ()


def _priority(name: str, raw: RawObject) -> int | None:
    """Returns an int32."""
    del name
    value = raw.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def _record_priorities(store: Store, key: JobKey, answers: Mapping[str, int | None]) -> None:
    store.record_lookups(key, LookupResults(priorities=dict(answers)))


def _flavors_needed(snapshot: Snapshot) -> Collection[str]:
    job, observed = snapshot.job, snapshot.observed
    if job.spec is None or scheduler_of(job.spec) != "kueue":
        return ()
    child = workload_child(job, observed)
    workload = child.workload if child is not None else None
    named = {flavor for part in workload.pod_sets for flavor in part.flavors} if workload is not None else set()
    return [flavor for flavor in sorted(named) if observed.flavors.get(flavor) is None]


def _flavor(name: str, raw: RawObject) -> Flavor:
    del name
    spec = mapping(raw.get("spec"))
    return Flavor(string_pairs(spec.get("nodeLabels")), tuple(mappings(spec.get("tolerations"))))


def _record_flavors(store: Store, key: JobKey, answers: Mapping[str, Flavor | None]) -> None:
    store.record_lookups(key, LookupResults(flavors=dict(answers)))


PRIORITIES = Lookup(
    "priority classes", _priority_class_needed, get_each(PRIORITY_CLASSES, str, _priority), _record_priorities
)
# A job can't start without its flavors, so one that isn't there is asked for again.
FLAVORS = Lookup(
    "flavors", _flavors_needed, get_each(RESOURCE_FLAVORS, str, _flavor), _record_flavors, none_is_final=False
)
