"""Which domain of its topology key each node of a job is in: one read of each node, for the jobs that ask.

Nodes have no namespace, so an operator that serves a list of namespaces may not be allowed to read them; then, and for
a node that is gone, there is no domain, and ranks keep the order of their indexes.
"""

from __future__ import annotations

import asyncio
import logging

from trainmaster.controller.apiserver.cluster import NODES, Cluster
from trainmaster.controller.apiserver.errors import ClusterError, Forbidden, NotFound
from trainmaster.controller.cache.lookup_results import LookupResults
from trainmaster.controller.cache.records import JobKey, Snapshot
from trainmaster.controller.cache.store import Store
from trainmaster.wire.values import mapping

logger = logging.getLogger(__name__)

# Nodes that are read at the same time.
CONCURRENT_READS = 16
# Seconds until nodes that couldn't be read just now are tried again.
TRY_AGAIN = 2.0


class NodeDomains:
    """Reads labels of nodes while a job needs to know them."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store

    async def look(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Read the nodes that aren't known yet; returns the seconds until the next try, None when none is needed."""
        spec = snapshot.job.spec
        topology = spec.scheduling.topology if spec is not None else None
        if topology is None:
            return None
        nodes = {pod.node for pod in snapshot.observed.pods if pod.node} - snapshot.observed.domains.keys()
        if not nodes:
            return None
        slots = asyncio.Semaphore(CONCURRENT_READS)
        found: dict[str, str | None] = {}

        async def read(node: str) -> None:
            async with slots:
                try:
                    live = await self._cluster.get(NODES, "", node)
                    domain = mapping(mapping(live.get("metadata")).get("labels")).get(topology.key)
                    found[node] = domain if isinstance(domain, str) else None
                except (Forbidden, NotFound) as error:
                    logger.info("%s: the domain of node %s isn't known: %s", key, node, error.message)
                    found[node] = None
                except ClusterError as error:
                    logger.warning("%s: node %s can't be read now: %s", key, node, error)

        await asyncio.gather(*(read(node) for node in nodes))
        if found:
            self._store.record_lookups(key, LookupResults(domains=found))
        return TRY_AGAIN if len(found) < len(nodes) else None
