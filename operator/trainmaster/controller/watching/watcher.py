"""Events from the API server into the store, by kopf.

kopf lists, watches, reconnects and re-authenticates; here are its handlers (each notes one object) and its supervision:

- It runs in a thread and an event loop of its own. When `kopf.operator` ends it cancels every task of its loop that it
  didn't find at its start, and a watch error other than 410 ends it; neither may touch the streams and workers. Several
  operators can live in one process, each with a registry of its own.
- It looks once, when it begins, for which types the API server serves: one that isn't there then (its definition was
  deleted, and is about to be made again) would never be watched. So that ends it.
- When it ends it is started again after a jittered back-off. The store stays; the new lists bring what was missed, and
  `relisted` asks for a sweep, because a list can't tell deletions.
- Nothing is written to users' objects: there are only `on.event` handlers, so no finalizers and no annotations, and the
  storages that would make copies and differences of every object are replaced by ones that keep nothing.
- Namespaces are exact names and aren't discovered: a list or watch in a namespace that doesn't exist yet is empty, and
  fills when it appears. So the operator needs no permission for namespaces or custom resource definitions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import kopf
from kopf._cogs.structs.references import Insights

from trainmaster.api.protocol import FIELD_MANAGER, JOB_NAME_LABEL
from trainmaster.api.v1alpha1 import INSTALL_CRD
from trainmaster.controller.apiserver.cluster import (
    CONFIG_MAPS,
    GANGS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    RawObject,
    Resource,
)
from trainmaster.controller.apiserver.connection import Connection

logger = logging.getLogger(__name__)

# Kept logs are large and nobody's input: the watch leaves them out.
CONTENT_LABEL = "trainmaster.dev/content"
LOGS_CONTENT = "logs"
EVIDENCE_CONTENT = "evidence"
SELECTORS = {
    PODS: JOB_NAME_LABEL,
    SERVICES: JOB_NAME_LABEL,
    STATEFUL_SETS: JOB_NAME_LABEL,
    NETWORK_POLICIES: JOB_NAME_LABEL,
    CONFIG_MAPS: f"{JOB_NAME_LABEL},{CONTENT_LABEL}!={LOGS_CONTENT},{CONTENT_LABEL}!={EVIDENCE_CONTENT}",
    **dict.fromkeys(GANGS.values(), JOB_NAME_LABEL),
}
# What is always watched; `gang_watching` has the gangs' types, and NetworkPolicies are watched where jobs have them.
WATCHED = (JOBS, PODS, SERVICES, STATEFUL_SETS, CONFIG_MAPS)
# Events handed over at a time, so that a list of thousands doesn't hold up the loop.
BATCH = 200
# Seconds between two lives of kopf: the first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

# (type of event or None when listed, resource, object)
Event = tuple[str | None, Resource, RawObject]


class Watcher:
    """Feeds `note` with every event, in the event loop that `run` is awaited in."""

    def __init__(
        self,
        connection: Connection,
        namespaces: Collection[str],
        *,
        resources: Collection[Resource] = WATCHED,
        receive: Callable[[Event], None],
        restarted: Callable[[], None] = lambda: None,
        reconnect_seconds: float = 0.1,
    ) -> None:
        self._connection = connection
        self._namespaces = tuple(namespaces)
        self._resources = tuple(resources)
        self._receive_event = receive
        self._restarted = restarted
        self._reconnect_seconds = reconnect_seconds
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._lock = threading.Lock()
        self._dead_since: float | None = None

    def dead_seconds(self) -> float:
        """Seconds since kopf ended last, 0 while it runs."""
        return 0.0 if self._dead_since is None else time.monotonic() - self._dead_since

    async def live(self) -> BaseException | None:
        """Watch until that ends, which only happens by an error; returns it."""
        return await self._life()

    async def run(self) -> None:
        """Watch until cancelled."""
        wait = FIRST_WAIT
        while True:
            started = asyncio.get_running_loop().time()
            error = await self._life()
            if self._dead_since is None:
                self._dead_since = time.monotonic()
            lived = asyncio.get_running_loop().time() - started
            if lived > LONGEST_WAIT:
                self._dead_since = None
            wait = FIRST_WAIT if lived > LONGEST_WAIT else min(wait * 2, LONGEST_WAIT)
            pause = wait * (0.5 + random.random() / 2)
            logger.warning("Watching ended (%s); it starts again in %.1f s.", error or "without an error", pause)
            self._restarted()
            await asyncio.sleep(pause)

    async def _life(self) -> BaseException | None:
        """One life of kopf, in a thread of its own; returns what ended it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        life = _Life(self._connection, self._namespaces, self._resources, self._receiver(loop), self._reconnect_seconds)

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(life.main())
            except Exception as caught:
                error = caught
            loop.call_soon_threadsafe(end, error)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            return await asyncio.shield(ended)
        finally:
            life.stop()
            # kopf gives its own tasks a few seconds; the thread is a daemon, so that an exit never waits for longer.
            await asyncio.to_thread(thread.join, 5.0)

    def _receiver(self, loop: asyncio.AbstractEventLoop) -> Callable[[Event], None]:
        def receive(event: Event) -> None:
            with self._lock:
                self._inbox.append(event)
                if self._draining:
                    return
                self._draining = True
            loop.call_soon_threadsafe(self._drain, loop)

        return receive

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(BATCH):
            with self._lock:
                if not self._inbox:
                    self._draining = False
                    return
                event = self._inbox.popleft()
            try:
                self._receive_event(event)
            except Exception:
                # One event that can't be taken must not keep all others from being seen: nothing would drain the inbox.
                logger.exception("An event of %s can't be taken in.", event[1].plural)
        loop.call_soon(self._drain, loop)


class _Life:
    """What runs in kopf's thread."""

    def __init__(
        self,
        connection: Connection,
        namespaces: tuple[str, ...],
        resources: tuple[Resource, ...],
        receive: Callable[[Event], None],
        reconnect_seconds: float,
    ) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._resources = resources
        self._receive = receive
        self._reconnect_seconds = reconnect_seconds
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def main(self) -> None:
        """kopf, until one of its root tasks ends; raises what ended it.

        `kopf.operator` would then wait for seconds for tasks that do nothing; ending the loop cancels them at once.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_log_quietly)
        self._ready.set()
        insights = Insights()
        tasks = await kopf.spawn_tasks(
            insights=insights,
            registry=self._registry(),
            settings=self._settings(),
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            standalone=True,
            # Peers would know us by it. kopf's own choice has the user's name in it, and a container's user has none in
            # most images (getpass.getuser: KeyError): nothing would ever be watched there.
            identity=cast(Any, FIELD_MANAGER),
            stop_flag=self._stop,
        )
        tasks = {*tasks, asyncio.create_task(self._all_served(insights), name="all types are served")}
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in done:
            task.result()

    async def _all_served(self, insights: Insights) -> None:
        """Ends, with an error, when the API server doesn't serve everything that is to be watched."""
        await insights.ready_resources.wait()
        served = {(found.group, found.plural) for found in insights.watched_resources}
        for resource in self._resources:
            if (resource.group, resource.plural) not in served:
                raise _Unserved(resource)
        await asyncio.Event().wait()

    def stop(self) -> None:
        self._ready.wait(timeout=1.0)
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                # Closed since the check: it has ended by itself.
                return

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            return await self._connection.for_kopf()

        kopf.on.login(registry=registry)(login)
        for resource in self._resources:
            kopf.on.event(
                group=resource.group, version=resource.version, plural=resource.plural, registry=registry, id="note"
            )(self._handler(resource))
        return registry

    def _handler(self, resource: Resource) -> Any:
        async def receive(event: kopf.RawEvent, **_: Any) -> None:
            self._receive((event["type"], resource, dict(event["object"])))

        return receive

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.persistence.diffbase_storage = _NoDiffBase()
        settings.persistence.progress_storage = _NoProgress()
        # A task for each object that had an event: a short idle time keeps thousands of them from piling up.
        settings.queueing.idle_timeout = 0.2
        settings.queueing.exit_timeout = 0.5
        settings.watching.chunk_size = min(resource.page for resource in self._resources)
        settings.watching.reconnect_backoff = self._reconnect_seconds
        settings.networking.connect_timeout = 5.0
        # Retries inside kopf hide from us that the API server is away; a few are enough before it is restarted.
        settings.networking.error_backoffs = (0.2, 0.5, 1, 2)
        for resource, selector in SELECTORS.items():
            settings.watching.label_selectors[_selects(resource)] = selector
        return settings


class _Unserved(Exception):
    """The API server doesn't serve a type; the sentence says so, and what to do where it is ours."""

    def __init__(self, resource: Resource) -> None:
        remedy = f"; install it: {INSTALL_CRD}" if resource == JOBS else ""
        super().__init__(f"{resource.plural} of {resource.api_version} aren't served{remedy}")


def _log_quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What ends kopf is told once, by the watcher; the same failure of its other tasks is of no news."""
    del loop
    logger.debug("kopf: %s: %r", context.get("message"), context.get("exception"))


def _selects(resource: Resource) -> Callable[[Any], bool]:
    def check(found: Any) -> bool:
        return bool(found.group == resource.group and found.plural == resource.plural)

    return check


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf's idea of what an object was before; event handlers need none."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        del body, extra_fields
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        del body
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        del body, patch, essence


class _NoProgress(kopf.ProgressStorage):
    """kopf's memory of handlers' retries; event handlers have none."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
