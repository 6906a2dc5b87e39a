"""The watcher uses kopf to bring events from the API server into the store.

kopf lists, watches, reconnects and re-authenticates in a separate thread and event loop (`KopfThread`). The `Watcher`
supervises kopf:

- A watch error other than 410 ends kopf, which is then restarted after a jittered back-off. The new lists bring missed
  changes. A list shows no deletions, so `listed` and `restarted` request sweeps.
- kopf reads discovery only once, at its start, and never watches a type that is missing there. A real API server serves
  a type a moment before discovery names it, because two controllers update discovery (apiextensions-apiserver's for the
  group's document, kube-aggregator's for the list of groups). So the watcher waits for both documents before it starts
  kopf.

kopf shares no loop with other tasks, because it cancels all tasks of its loop when it ends, handles SIGTERM and SIGINT
in the main thread, and delays its loop while it lists (docs/architecture.md, "Use of kopf", has measurements).

There are only `on.event` handlers, so kopf writes no finalizers or annotations, and its storages keep nothing.
Namespaces are given by name, so the operator needs no permission for namespaces or custom resource definitions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, cast

import kopf

from trainmaster_operator.api.v1alpha1 import INSTALL_CRD
from trainmaster_operator.controller.apiserver.cluster import JOBS, Cluster, RawObject, Resource
from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.apiserver.kept import Fields
from trainmaster_operator.controller.watching.resync import SELECTORS
from trainmaster_operator.wire.names import FIELD_MANAGER

logger = logging.getLogger(__name__)
# Limit on the events passed on at a time, so that a list of thousands doesn't block the loop.
BATCH = 200
# Number of tries to find a served type in discovery, and the seconds between them. On an idle API server, discovery
# names a type within a second.
DISCOVERY_TRIES, DISCOVERY_WAIT = 50, 0.2
# The first and the longest wait, in seconds, between two runs of kopf.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
# Seconds within which kopf must request the list of every type. kopf requests the lists as soon as it knows which types
# are served, and gives up on a missing type after a few tries.
LIST_SECONDS = 60.0
# Seconds until kopf reopens a watch that the API server has ended.
RECONNECT_SECONDS = 0.1
# Seconds for kopf to end; it gives its own tasks a few seconds. The thread is a daemon, so the process's exit never
# waits longer.
END_SECONDS = 5.0
# Contains the type of the event (None if the object was listed), the resource and the object.
WatchEvent = tuple[str | None, Resource, RawObject]


@dataclass(eq=False)
class Watcher:
    """Calls `receive` with every event, in the event loop of `run`."""

    connection: ApiConnection
    cluster: Cluster
    namespaces: Sequence[str]
    resources: Sequence[Resource]
    _: KW_ONLY
    receive: Callable[[WatchEvent], None]
    listed: Callable[[], None] = lambda: None
    restarted: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _inbox: deque[WatchEvent] = field(default_factory=deque, init=False)
    _draining: bool = field(default=False, init=False)
    _dead_since: float | None = field(default=None, init=False)

    def dead_seconds(self) -> float:
        """Returns the seconds since kopf last ended, or 0 while kopf runs."""
        return 0.0 if self._dead_since is None else time.monotonic() - self._dead_since

    async def run(self) -> None:
        wait = FIRST_WAIT
        while True:
            started = asyncio.get_running_loop().time()
            error = await self.watch_once()
            if self._dead_since is None:
                self._dead_since = time.monotonic()
            wait = min(wait * 2, LONGEST_WAIT)
            if asyncio.get_running_loop().time() - started > LONGEST_WAIT:
                self._dead_since, wait = None, FIRST_WAIT
            pause = wait * (0.5 + random.random() / 2)
            logger.warning("Watching ended (%s); it starts again in %.1f s.", error or "without an error", pause)
            self.restarted()
            await asyncio.sleep(pause)

    async def watch_once(self) -> BaseException | None:
        """Watch until an error ends the watch; returns the error."""
        try:
            # Check all types at once, so that they are watched at about the same time as jobs, whose status names pods.
            await asyncio.gather(*map(self._require_served, self.resources))
        except (ClusterError, Unserved) as error:
            return error
        loop = asyncio.get_running_loop()
        kopf = KopfThread(
            self.connection,
            self.namespaces,
            self.resources,
            self._hand_over_to(loop),
            partial(loop.call_soon_threadsafe, self.listed),
        )
        return await kopf.run()

    async def _require_served(self, resource: Resource) -> None:
        """Raises Unserved if the API server doesn't serve a type, or ClusterError."""
        try:
            await anext(self.cluster.pages(resource, *self.namespaces[:1], metadata_only=True), None)
        except NotFound as error:
            # 404 means that the type isn't served; a list without objects is a success.
            raise Unserved(resource) from error
        for _ in range(DISCOVERY_TRIES):
            if await self.cluster.discovers(resource):
                return
            await asyncio.sleep(DISCOVERY_WAIT)
        raise Unserved(resource)

    def _hand_over_to(self, loop: asyncio.AbstractEventLoop) -> Callable[[WatchEvent], None]:
        def hand_over(event: WatchEvent) -> None:
            with self._lock:
                self._inbox.append(event)
                if self._draining:
                    return
                self._draining = True
            loop.call_soon_threadsafe(self._drain, loop)

        return hand_over

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(BATCH):
            with self._lock:
                if not self._inbox:
                    self._draining = False
                    return
                event = self._inbox.popleft()
            try:
                self.receive(event)
            except Exception:
                # One event that can't be received must not block the others, because nothing else drains the inbox.
                logger.exception("An event of %s can't be received.", event[1].plural)
        loop.call_soon(self._drain, loop)


class Unserved(Exception):
    """The API server doesn't serve a type; the message names the type and, if the type is ours, the remedy."""

    def __init__(self, resource: Resource) -> None:
        remedy = f"; install it: {INSTALL_CRD}" if resource == JOBS else ""
        super().__init__(f"{resource.plural} of {resource.api_version} aren't served{remedy}")


@dataclass(eq=False)
class KopfThread:
    """Runs kopf once.

    `receive` is called in kopf's thread. `listed` is called when kopf has listed a type and watches it.
    """

    connection: ApiConnection
    namespaces: Sequence[str]
    resources: Sequence[Resource]
    receive: Callable[[WatchEvent], None]
    listed: Callable[[], object]
    # The paths of the lists that kopf has requested, until kopf watches them.
    _listing: set[str] = field(default_factory=set, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _stop: asyncio.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # The paths of the lists that kopf hasn't requested yet.
        self._unlisted = {
            resource.path(namespace): resource
            for resource in self.resources
            for namespace in self.namespaces or (None,)
        }
        self._types = dict(self._unlisted)
        self._ready = threading.Event()

    async def run(self) -> BaseException | None:
        """Run kopf until an error ends it; returns the error."""
        ended: Future[BaseException | None] = Future()

        def work() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._main())
            except Exception as caught:
                error = caught
            ended.set_result(error)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            return await asyncio.shield(asyncio.wrap_future(ended))
        finally:
            self._end()
            await asyncio.to_thread(thread.join, END_SECONDS)

    async def _main(self) -> None:
        """Run kopf until one of its root tasks ends; raises that task's error.

        `kopf.operator` would then wait several seconds for idle tasks. If the loop ends, these tasks are cancelled at
        once.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_log_quietly)
        self._ready.set()
        spawned = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._settings(),
            clusterwide=not self.namespaces,
            namespaces=self.namespaces,
            standalone=True,
            # This identity is for kopf's peering, which isn't used. kopf's default identity contains the user's name.
            # In most images, the user has no name, so kopf would fail (getpass.getuser: KeyError) and watch nothing.
            identity=cast(Any, FIELD_MANAGER),
            stop_flag=self._stop,
        )
        tasks = {*spawned, asyncio.create_task(self._require_lists(), name="all types are listed")}
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in done:
            task.result()

    def _end(self) -> None:
        self._ready.wait(timeout=1.0)
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                # kopf has ended by itself, so the loop was closed after the check.
                return

    async def _require_lists(self) -> None:
        """Raises Unserved if kopf doesn't list a type, because the type was missing when kopf read discovery.

        Otherwise, this method never returns, because kopf ends when any of its tasks ends.
        """
        await asyncio.sleep(LIST_SECONDS)
        unlisted = next(iter(self._unlisted.values()), None)
        if unlisted is not None:
            raise Unserved(unlisted)
        await asyncio.Event().wait()

    def _requested(self, path: str, is_watch: bool) -> None:
        known = self._known(path)
        if known is None:
            return
        self._unlisted.pop(known, None)
        if not is_watch:
            self._listing.add(known)
        elif known in self._listing:
            self._listing.discard(known)
            self.listed()

    def _known(self, path: str) -> str | None:
        """Returns the known list path for a request's path, which may begin with the API server's base path."""
        return next((one for one in self._types if path.endswith(one)), None)

    def _kept_at(self, path: str) -> Fields | None:
        known = self._known(path)
        return None if known is None else self._types[known].kept

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            return await self.connection.for_kopf(self._requested, self._kept_at)

        kopf.on.login(registry=registry)(login)
        for resource in self.resources:
            event = kopf.on.event(
                group=resource.group, version=resource.version, plural=resource.plural, registry=registry, id="receive"
            )
            event(partial(self._receive, resource))
        return registry

    async def _receive(self, resource: Resource, /, *, event: kopf.RawEvent, **_: Any) -> None:
        self.receive((event["type"], resource, dict(event["object"])))

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.persistence.diffbase_storage = _NoDiffBase([])
        # Event handlers aren't retried.
        settings.persistence.progress_storage = kopf.MultiProgressStorage([])
        # kopf runs a task for each object that has an event. A short idle time keeps thousands of tasks from piling up.
        settings.queueing.idle_timeout = 0.2
        settings.queueing.exit_timeout = 0.5
        settings.watching.chunk_size = min(resource.page for resource in self.resources)
        settings.watching.reconnect_backoff = RECONNECT_SECONDS
        settings.networking.connect_timeout = 5.0
        # Retry only a few times before kopf is restarted, because retries hide an unreachable API server from the
        # watcher.
        settings.networking.error_backoffs = (0.2, 0.5, 1, 2)
        for resource, selector in SELECTORS.items():
            settings.watching.label_selectors[partial(_is_served_as, resource)] = selector
        return settings


def _log_quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore errors of kopf's other tasks, which repeat the error that the watcher logs."""
    del loop
    logger.debug("kopf: %s: %r", context.get("message"), context.get("exception"))


def _is_served_as(resource: Resource, found: kopf.Resource) -> bool:
    return (found.group, found.plural) == (resource.group, resource.plural)


class _NoDiffBase(kopf.MultiDiffBaseStorage):
    """Keeps and copies no earlier state of an object, because event handlers don't need that state."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        del body, extra_fields
        return kopf.BodyEssence()
