"""Provides the agent to jobs with their own images, in one immutable ConfigMap per namespace.

The ConfigMap's name contains the hash of its content.

- **Created** before the first StatefulSet that names the ConfigMap. If it exists already, it is checked once, because
  any client that may create ConfigMaps could have created it with another program. Pods also compare the hash
  themselves (`rendering/verified_agent.py`).
- **Checked again** when a pod waits too long for its container. The ConfigMap may have been deleted, and no watch shows
  these objects, which take 0.7 MB each.
- **Removed** when no StatefulSet names the ConfigMap. This includes StatefulSets that an earlier operator wrote.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, Cluster, RawObject, whole
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.watching.resync import AGENT_CONTENT, CONTENT_LABEL, requested
from trainmaster_operator.rendering.agent_source import AGENT_FILE, config_map_name
from trainmaster_operator.wire.names import MANAGED_BY_LABEL
from trainmaster_operator.wire.values import mapping, text

logger = logging.getLogger(__name__)

# Seconds from a StatefulSet's deletion to the removal of its ConfigMap, which the next job may need.
REMOVE_AFTER = 10.0
# Seconds for which a check of a ConfigMap remains valid, even if many pods wait for their images.
LOOK_SECONDS = 10.0
_SELECTOR = f"{CONTENT_LABEL}={AGENT_CONTENT}"

# Namespace and name.
Place = tuple[str, str]


class AgentConfigMaps:
    """Creates, checks and removes the agent's ConfigMaps. `namespaces` are the served namespaces; empty means all."""

    def __init__(
        self, cluster: Cluster, store: Store, zipapp: bytes, namespaces: Collection[str] = (), *, interval: float
    ) -> None:
        self.name = config_map_name(zipapp)
        self._cluster = cluster
        self._store = store
        self._data = base64.b64encode(zipapp).decode()
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._interval = interval
        # By place, the uid of each ConfigMap that was created or checked.
        self._known: dict[Place, str] = {}
        # By place, the number of StatefulSets that are being written and so aren't in the store yet.
        self._writing: Counter[Place] = Counter()
        # Each ConfigMap is created or removed under its own lock, so that a slow namespace blocks no other.
        self._locks: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        # By place, the time (the event loop's clock) at which the ConfigMap was last found intact.
        self._looked: dict[Place, float] = {}
        # Set when a StatefulSet is gone, so that `run` removes ConfigMaps that no StatefulSet names.
        self.set_is_gone = asyncio.Event()

    @asynccontextmanager
    async def provided(self, namespace: str, name: str) -> AsyncIterator[None]:
        """Provide a ConfigMap while a StatefulSet that names it is written. Raises ClusterError.

        If the ConfigMap is from another version of the operator, nothing is done here, because this operator couldn't
        create it; `ensure` checks it.
        """
        place = namespace, name
        self._writing[place] += 1
        try:
            if name == self.name and place not in self._known:
                async with self._lock(place):
                    if place not in self._known:
                        await self._make(namespace)
            yield
        finally:
            self._writing -= Counter([place])

    async def ensure(self, namespace: str, name: str) -> None:
        """Check that a ConfigMap exists unchanged, and recreate a missing one. Raises ClusterError."""
        place, now = (namespace, name), asyncio.get_running_loop().time()
        async with self._lock(place):
            if now < self._looked.get(place, float("-inf")) + LOOK_SECONDS:
                return
            uid = (await self._listed(namespace)).get(place)
            if uid is not None and uid == self._known.get(place):
                self._looked[place] = now
                return
            self._known.pop(place, None)
            if uid is not None:
                await self._verify(namespace, name)
            elif name == self.name:
                logger.warning("The ConfigMap %s/%s is gone, and is made again: pods wait for it.", namespace, name)
                await self._make(namespace)
            else:
                raise Refused(
                    f"get ConfigMap {namespace}/{name}",
                    f"the ConfigMap {name!r} with the agent that this job has begun with is gone, and the operator, "
                    f"which is another version by now, can't make it again; delete the job's StatefulSets: they are "
                    f"made again, with the operator's own agent",
                    reason="AgentGone",
                )

    async def run(self) -> None:
        """Remove unused ConfigMaps until cancelled."""
        while True:
            try:
                await self.remove_unused()
            except ClusterError as error:
                logger.warning("Agents that no job needs can't be removed now: %s", error)
            await requested(self.set_is_gone, settle=REMOVE_AFTER, interval=self._interval)

    async def remove_unused(self) -> None:
        """Remove each ConfigMap that no StatefulSet names. Raises ClusterError if ConfigMaps can't be listed."""
        for namespace in self._namespaces:
            listed = await self._listed(namespace)
            for place in listed.keys() - self._store.agent_config_maps():
                async with self._lock(place):
                    await self._remove(place, listed[place])

    async def _remove(self, place: Place, uid: str) -> None:
        namespace, name = place
        if place in self._writing or place in self._store.agent_config_maps():
            return
        self._known.pop(place, None)
        self._looked.pop(place, None)
        try:
            await self._cluster.delete(CONFIG_MAPS, namespace, name, uid=uid)
        except (NotFound, Conflict):
            logger.debug("The ConfigMap %s/%s has gone by itself.", namespace, name)
        except ClusterError as error:
            logger.warning("The ConfigMap %s/%s, which no job needs, can't be removed: %s", namespace, name, error)
        else:
            logger.info("Removed the ConfigMap %s/%s: no job needs this agent.", namespace, name)

    async def _listed(self, namespace: str | None) -> Mapping[Place, str]:
        pages = self._cluster.pages(CONFIG_MAPS, namespace, label_selector=_SELECTOR, metadata_only=True)
        metadata = [mapping(item.get("metadata")) async for page in pages for item in page]
        return {(text(one.get("namespace")), text(one.get("name"))): text(one.get("uid")) for one in metadata}

    async def _make(self, namespace: str) -> None:
        try:
            made = await self._cluster.create(CONFIG_MAPS, namespace, self._body(namespace))
        except AlreadyExists:
            await self._verify(namespace, self.name)
            return
        except Refused as error:
            message = f"the ConfigMap {self.name!r}, from which pods have the agent, can't be made: {error.message}"
            raise type(error)(error.request, message, status=error.status, reason=error.reason) from error
        self._known[namespace, self.name] = text(made["metadata"].get("uid"))

    async def _verify(self, namespace: str, name: str) -> None:
        """Read an existing ConfigMap. Raises Refused if its content doesn't match its name."""
        try:
            found = await self._cluster.get(whole(CONFIG_MAPS), namespace, name)
        except NotFound as error:
            raise Conflict(error.request, "it was deleted a moment ago") from error
        problem = _problem(found, name)
        if problem:
            raise Refused(
                f"get ConfigMap {namespace}/{name}",
                f"the ConfigMap {name!r} {problem}, so no pod is made that would run what is in it; delete it: the "
                "operator makes it again",
                reason="NotOurs",
            )
        self._known[namespace, name] = text(found["metadata"].get("uid"))

    def _body(self, namespace: str) -> dict[str, Any]:
        labels = {MANAGED_BY_LABEL: "trainmaster", CONTENT_LABEL: AGENT_CONTENT}
        metadata = {"name": self.name, "namespace": namespace, "labels": labels}
        return CONFIG_MAPS.body(metadata=metadata, immutable=True, binaryData={AGENT_FILE: self._data})

    def _lock(self, place: Place) -> asyncio.Lock:
        return self._locks.setdefault(place, asyncio.Lock())


def _problem(found: RawObject, name: str) -> str:
    """Returns the problem with a ConfigMap; empty if the content matches the name."""
    if found.get("immutable") is not True:
        return "isn't immutable"
    binary = mapping(found.get("binaryData"))
    try:
        zipapp = base64.b64decode(text(binary.get(AGENT_FILE), None), validate=True)
    except binascii.Error:
        zipapp = b""
    if found.get("data") or set(binary) != {AGENT_FILE} or config_map_name(zipapp) != name:
        return "has other content than its name says"
    return ""
