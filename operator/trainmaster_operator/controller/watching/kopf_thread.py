"""kopf, in a thread and an event loop of its own: by its public API only, with handlers that hand each event on.

**Why a thread.** kopf's documentation advises against sharing a loop with it ("Embedding"), and it is right:

- When kopf ends it cancels every task of its loop that wasn't there at its start: streams, workers, the lease.
- In the main thread it takes SIGTERM and SIGINT for itself: the operator would no longer end when it should.
- A page of a list costs Python a few ms for each object. While 500 pods are listed, other tasks wait for
  29 to 69 ms in kopf's own loop and for 11 to 29 ms beside its thread (the slowest of 100; 194 to 612 and 53 to 152 ms
  at most). Changes one by one cost the same either way (docs/architecture.md, "What of kopf is used").

**What it leaves alone.** There are only `on.event` handlers, so no finalizers and no annotations on users' objects, and
the storages that would make copies and differences of every object are replaced by ones that keep nothing. Namespaces
are exact names and aren't discovered: a list or watch in a namespace that doesn't exist yet is empty, and fills when it
appears. So the operator needs no permission for namespaces or custom resource definitions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import kopf

from trainmaster_operator.api.v1alpha1 import INSTALL_CRD
from trainmaster_operator.controller.apiserver.cluster import JOBS, RawObject, Resource
from trainmaster_operator.controller.apiserver.connection import Connection
from trainmaster_operator.controller.apiserver.kept import Fields
from trainmaster_operator.controller.watching.watched import SELECTORS
from trainmaster_operator.wire.names import FIELD_MANAGER

logger = logging.getLogger(__name__)

# Seconds in which kopf has asked for the list of every type. It asks as soon as it knows which types are served, and
# gives that up itself after a few tries.
LIST_SECONDS = 60.0
# Seconds for kopf to end in. It gives its own tasks a few; the thread is a daemon, so an exit never waits for longer.
END_SECONDS = 5.0

# (type of event or None when listed, resource, object)
WatchEvent = tuple[str | None, Resource, RawObject]


class Unserved(Exception):
    """The API server doesn't serve a type; the message names it, and says what to do where the type is ours."""

    def __init__(self, resource: Resource) -> None:
        remedy = f"; install it: {INSTALL_CRD}" if resource == JOBS else ""
        super().__init__(f"{resource.plural} of {resource.api_version} aren't served{remedy}")


class KopfThread:
    """Runs kopf once. `receive` is called in its thread, and `listed` when it has listed a type and watches it."""

    def __init__(
        self,
        connection: Connection,
        namespaces: tuple[str, ...],
        resources: tuple[Resource, ...],
        receive: Callable[[WatchEvent], None],
        listed: Callable[[], object],
        reconnect_seconds: float,
    ) -> None:
        self._connection = connection
        self._namespaces = namespaces
        self._resources = resources
        self._receive = receive
        self._listed = listed
        self._reconnect_seconds = reconnect_seconds
        # The paths of the lists that kopf hasn't asked for yet.
        self._unlisted = {
            resource.path(namespace): resource for resource in resources for namespace in namespaces or (None,)
        }
        self._types = dict(self._unlisted)
        # The paths that kopf lists, until it watches them.
        self._listing: set[str] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def run(self) -> BaseException | None:
        """Run kopf until it ends, which only happens by an error; returns the error."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(self._main())
            except Exception as caught:
                error = caught
            loop.call_soon_threadsafe(end, error)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            return await asyncio.shield(ended)
        finally:
            self._end()
            await asyncio.to_thread(thread.join, END_SECONDS)

    async def _main(self) -> None:
        """Run kopf until one of its root tasks ends; raises what ended it.

        `kopf.operator` would then wait for seconds for tasks that do nothing; ending the loop cancels them at once.
        """
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_log_quietly)
        self._ready.set()
        spawned = await kopf.spawn_tasks(
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
                # Closed since the check: it has ended by itself.
                return

    async def _require_lists(self) -> None:
        """Raises Unserved when kopf doesn't list a type: it was gone just when kopf looked for what is served.

        Never returns otherwise, because kopf ends with the first of its tasks.
        """
        await asyncio.sleep(LIST_SECONDS)
        unlisted = next(iter(self._unlisted.values()), None)
        if unlisted is not None:
            raise Unserved(unlisted)
        await asyncio.Event().wait()

    def _requested(self, path: str, is_watch: bool) -> None:
        """Record that kopf lists or watches a path."""
        known = self._known(path)
        if known is None:
            return
        self._unlisted.pop(known, None)
        if not is_watch:
            self._listing.add(known)
        elif known in self._listing:
            self._listing.discard(known)
            self._listed()

    def _known(self, path: str) -> str | None:
        """Returns the path of a list that a request's path is; the API server may be below a path itself."""
        return next((one for one in self._types if path.endswith(one)), None)

    def _kept_at(self, path: str) -> Fields | None:
        known = self._known(path)
        return None if known is None else self._types[known].kept

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            return await self._connection.for_kopf(self._requested, self._kept_at)

        kopf.on.login(registry=registry)(login)
        for resource in self._resources:
            kopf.on.event(
                group=resource.group, version=resource.version, plural=resource.plural, registry=registry, id="receive"
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


def _log_quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The watcher logs what ended kopf, once; the same failure of its other tasks is no news."""
    del loop
    logger.debug("kopf: %s: %r", context.get("message"), context.get("exception"))


def _selects(resource: Resource) -> Callable[[Any], bool]:
    def check(found: Any) -> bool:
        return bool(found.group == resource.group and found.plural == resource.plural)

    return check


class _NoDiffBase(kopf.DiffBaseStorage):
    """Keeps nothing of what an object was before; event handlers need none of it."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        del body, extra_fields
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        del body
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        del body, patch, essence


class _NoProgress(kopf.ProgressStorage):
    """Keeps nothing of handlers' retries; event handlers have none."""

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
