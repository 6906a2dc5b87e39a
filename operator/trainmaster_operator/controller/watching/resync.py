"""A sweep compares the store with a list of metadata, because watches lose deletions.

If an object is missing in the list, it is removed from the store. If its uid or version differs, it is read again. The
lists contain only metadata (`PartialObjectMetadata`), so 4,000 pods take about 4 MB instead of 40. This module also
defines the watched types, and the labels that select their objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from trainmaster_operator.controller.apiserver.cluster import (
    CONFIG_MAPS,
    GANGS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Cluster,
    Resource,
)
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound, Unusable
from trainmaster_operator.controller.background import wait_until_set
from trainmaster_operator.controller.cache.records import JobKey, Versioned
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.wire.names import JOB_NAME_LABEL
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)
# The store's objects, by namespace and name.
Known = dict[tuple[str, str], tuple[JobKey, Versioned]]
# The watch excludes objects with this label, such as kept logs: they are large, and no decision reads them.
CONTENT_LABEL = "trainmaster.dev/content"
LOGS_CONTENT = "logs"
EVIDENCE_CONTENT = "evidence"
STACKS_CONTENT = "stacks"
# The ConfigMaps with the agent don't have a job's label, so no watch shows them.
AGENT_CONTENT = "agent"
SELECTORS = {
    **dict.fromkeys((PODS, SERVICES, STATEFUL_SETS, NETWORK_POLICIES, *GANGS.values()), JOB_NAME_LABEL),
    CONFIG_MAPS: f"{JOB_NAME_LABEL},{CONTENT_LABEL} notin ({LOGS_CONTENT},{EVIDENCE_CONTENT},{STACKS_CONTENT})",
}
# Types that are always watched. `gangs` adds types of gang schedulers. NetworkPolicies are watched if the operator
# gives them to jobs.
WATCHED = (JOBS, PODS, SERVICES, STATEFUL_SETS, CONFIG_MAPS)


async def read_all(cluster: Cluster, store: Store, resource: Resource, namespace: str | None) -> None:
    """Read all objects of a type into the store. Raises ClusterError."""
    async for page in cluster.pages(resource, namespace, label_selector=SELECTORS.get(resource, "")):
        for item in page:
            store.upsert(resource, item)


async def requested(asked: asyncio.Event, *, settle: float, interval: float) -> None:
    """Wait for a request, at most for `interval` seconds. After a request, wait `settle` seconds for others."""
    await wait_until_set(asked, interval)
    if asked.is_set():
        await asyncio.sleep(settle)
    asked.clear()


@dataclass(eq=False)
class Resync:
    """Sweeps every `interval` seconds, and soon after `asked` is set, which a watch's new list does."""

    cluster: Cluster
    store: Store
    # `GangWatcher` adds types while the cluster serves them and a job uses them.
    watched: list[Resource]
    namespaces: Sequence[str]
    _: KW_ONLY
    interval: float
    asked: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def fill(self) -> None:
        """Read everything once, before any job is decided on, because a job without known pods would look broken.

        Raises ClusterError, such as NotFound while the custom resource isn't installed.
        """
        for resource in self.watched:
            for namespace in self.namespaces or (None,):
                await read_all(self.cluster, self.store, resource, namespace)

    async def run(self) -> None:
        while True:
            # Several watches are usually listed again together, and one sweep is enough for all of them.
            await requested(self.asked, settle=1.0, interval=self.interval)
            try:
                await self.sweep()
            except Exception:
                # The loop must never end, because only sweeps find events that a watch has lost.
                logger.exception("The sweep failed.")

    async def sweep(self) -> None:
        """Compare once. If a list fails, the next sweep repeats it."""
        for resource in tuple(self.watched):
            for namespace in self.namespaces or (None,):
                try:
                    await self._sweep(resource, namespace)
                except ClusterError as error:
                    logger.warning("The sweep of %s failed: %s", resource.plural, error)

    async def _sweep(self, resource: Resource, namespace: str | None) -> None:
        # Copy the known objects first, so that an object that arrives during the list never counts as deleted.
        known: Known = {
            (key.namespace, name): (key, version)
            for key, name, version in self.store.known(resource)
            if namespace is None or key.namespace == namespace
        }
        selector = SELECTORS.get(resource, "")
        pages = self.cluster.pages(resource, namespace, label_selector=selector, metadata_only=True)
        async for page in pages:
            for item in page:
                await self._compare(resource, mapping(item.get("metadata")), known)
        for (_, name), (key, version) in known.items():
            self.store.remove(resource, key, name, version.uid)

    async def _compare(self, resource: Resource, metadata: Mapping[str, Any], known: Known) -> None:
        """Compare one listed object, and remove it from `known`. Objects that remain there at the end were deleted."""
        place = (text(metadata.get("namespace")), text(metadata.get("name")))
        entry = known.pop(place, None)
        if entry is None:
            if not self.store.wants(resource, metadata):
                return
        elif entry[1].uid != metadata.get("uid"):
            self.store.remove(resource, entry[0], place[1], entry[1].uid)
        elif entry[1].resource_version == metadata.get("resourceVersion"):
            return
        try:
            self.store.upsert(resource, await self.cluster.get(resource, *place))
        except NotFound:
            # The object was deleted after the list, as the watch or the next sweep will show.
            return
        except Unusable as error:
            # Continue, so that the other objects of the list are still compared.
            logger.warning("The sweep passes over an object: %s", error)
