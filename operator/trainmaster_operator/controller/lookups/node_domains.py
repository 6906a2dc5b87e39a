"""Each node of a job is in a domain of its topology key: one read of each node, for the jobs that ask.

Nodes have no namespace, so an operator that serves a list of namespaces may not be allowed to read them; then, and for
a node that is gone, there is no domain, and ranks keep the order of their indexes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from trainmaster_operator.controller.apiserver.cluster import NODES, RawObject
from trainmaster_operator.controller.cache.lookup_results import LookupResults
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.lookups.lookup import Lookup, get_each
from trainmaster_operator.wire.values import mapping


class NodeLabel(NamedTuple):
    """Names a node, and the topology key that a job asks of it."""

    node: str
    label: str


def _needed(snapshot: Snapshot) -> Collection[NodeLabel]:
    spec = snapshot.job.spec
    topology = spec.scheduling.topology if spec is not None else None
    if topology is None:
        return ()
    nodes = {pod.node for pod in snapshot.observed.pods if pod.node} - snapshot.observed.domains.keys()
    return [NodeLabel(node, topology.key) for node in nodes]


def _domain(asked: NodeLabel, node: RawObject) -> str | None:
    domain = mapping(mapping(node.get("metadata")).get("labels")).get(asked.label)
    return domain if isinstance(domain, str) else None


def _record(store: Store, key: JobKey, answers: Mapping[NodeLabel, str | None]) -> None:
    store.record_lookups(key, LookupResults(domains={asked.node: domain for asked, domain in answers.items()}))


NODE_DOMAINS = Lookup(
    "node domains", _needed, get_each(NODES, lambda asked: asked.node, _domain), _record, retry_seconds=2.0
)
