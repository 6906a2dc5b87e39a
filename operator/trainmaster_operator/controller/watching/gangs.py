"""Watches PodGroups and other objects of gang schedulers once a job uses them and the cluster serves them.

Most clusters have none of these types. A watch of a missing or forbidden type would end kopf, and with it all other
watches. Therefore each type is listed repeatedly until that succeeds, and then gets a separate watcher, whose failure
affects nothing else. After a failure, the type is again listed until that succeeds. It may have been removed, and kopf
wouldn't notice if it came back, perhaps in another version.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.controller.apiserver.cluster import GANGS, Cluster, Resource
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import ClusterError, Forbidden, NotFound
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.watching.resync import read_all
from trainmaster_operator.controller.watching.watcher import Watcher, WatchEvent
from trainmaster_operator.rendering import scheduler_of

logger = logging.getLogger(__name__)

# The first and the longest wait, in seconds, between two tries to list a type that isn't served or may not be listed.
FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0


@dataclass(eq=False)
class GangWatcher:
    """Watches the types that jobs want; `close` ends all watches."""

    connection: ApiConnection
    cluster: Cluster
    store: Store
    # The types that were listed successfully are added here, so that sweeps compare them too.
    watched: list[Resource]
    namespaces: Sequence[str]
    _: KW_ONLY
    receive: Callable[[WatchEvent], None]
    relisted: Callable[[], None]
    _tasks: dict[Resource, asyncio.Task[None]] = field(default_factory=dict, init=False)

    async def fill(self, specs: Iterable[JobSpec | None]) -> None:
        """Read these jobs' objects, before any of the jobs is decided on."""
        for resource in {found for spec in specs if (found := gang_resource(spec)) is not None}:
            await self._list(resource)

    def want(self, spec: JobSpec | None) -> None:
        """Watch the type of object that the job's gang scheduler uses, if it has one."""
        resource = gang_resource(spec)
        if resource is not None and resource not in self._tasks:
            self._tasks[resource] = asyncio.create_task(self._serve(resource), name=f"watcher of {resource.plural}")

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _serve(self, resource: Resource) -> None:
        wait = FIRST_WAIT
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self._watch(resource)
            except Exception:
                # A bug of ours must not end the watching of a type permanently.
                logger.exception("Watching %s failed; trying again.", resource.plural)
            lived = asyncio.get_running_loop().time() - started
            wait = FIRST_WAIT if lived > LONGEST_WAIT else min(wait * 2, LONGEST_WAIT)
            await asyncio.sleep(wait * (0.5 + random.random() / 2))

    async def _watch(self, resource: Resource) -> None:
        if not await self._list(resource):
            return
        # A sweep finds deletions from the time without a watch.
        self.relisted()
        served = self.cluster.served(resource)
        logger.info("Watching %s of %s.", resource.plural, served.api_version)
        watcher = Watcher(
            self.connection,
            self.cluster,
            self.namespaces,
            resources=(served,),
            receive=self.receive,
            listed=self.relisted,
        )
        error = await watcher.watch_once()
        logger.warning("Watching %s ended (%s).", resource.plural, error or "without an error")

    async def _list(self, resource: Resource) -> bool:
        """Read all objects of the type into the store; returns whether that worked."""
        # The known objects include answers to our own writes, because the type may have been served between two tries.
        known = list(self.store.known(resource))
        try:
            for namespace in self.namespaces or (None,):
                await read_all(self.cluster, self.store, resource, namespace)
        except ClusterError as error:
            level = logging.DEBUG if isinstance(error, NotFound | Forbidden) else logging.WARNING
            logger.log(level, "%s of %s can't be listed now: %s", resource.plural, resource.api_version, error)
            if isinstance(error, NotFound):
                # The type isn't served, so all of its objects are gone too.
                if resource in self.watched:
                    self.watched.remove(resource)
                for key, name, version in known:
                    self.store.remove(resource, key, name, version.uid)
            return False
        if resource not in self.watched:
            self.watched.append(resource)
            self.store.record_listed(resource)
        return True


def gang_resource(spec: JobSpec | None) -> Resource | None:
    """Returns the type of object that a job's gang scheduler needs."""
    return None if spec is None else GANGS.get(scheduler_of(spec) or "")
