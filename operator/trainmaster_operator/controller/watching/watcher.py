"""Events go from the API server into the store, by kopf.

kopf lists, watches, reconnects and re-authenticates (`kopf_thread`); this module supervises it:

- kopf runs in a thread and an event loop of its own, and hands its events over to the loop that `run` is awaited in.
- A watch error other than 410 ends kopf. It is then started again after a jittered back-off. The store stays; the new
  lists bring what was missed, and `restarted` asks for a sweep, because a list can't show deletions.
- kopf asks discovery once, when it begins, which types the API server serves: one that isn't there then would
  never be watched. A real API server serves a type a moment before its discovery names it (two controllers come in
  between: apiextensions-apiserver's for the group's document, kube-aggregator's for the list of groups), longer where
  it has much to do. So each type is listed, and found in what kopf will read, before kopf begins.
- A list shows no deletion. `listed` is called when kopf has listed a type and begins to watch it, also where the list
  is empty: a sweep after that finds what was deleted before, and the watch shows what is deleted from then on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from trainmaster_operator.controller.apiserver.cluster import Cluster, Resource
from trainmaster_operator.controller.apiserver.connection import Connection
from trainmaster_operator.controller.apiserver.errors import ClusterError, NotFound
from trainmaster_operator.controller.watching.kopf_thread import KopfThread, Unserved, WatchEvent
from trainmaster_operator.controller.watching.watched import WATCHED

logger = logging.getLogger(__name__)

# Events handed over at a time, so that a list of thousands doesn't hold up the loop.
BATCH = 200
# How often, and how many seconds apart, discovery is asked for a type that is served: its controllers take a second
# at most on an idle API server.
DISCOVERY_TRIES, DISCOVERY_WAIT = 50, 0.2
# Seconds between two runs of kopf: the first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


class Watcher:
    """Calls `receive` with every event, in the event loop that `run` is awaited in."""

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        namespaces: Collection[str],
        *,
        resources: Collection[Resource] = WATCHED,
        receive: Callable[[WatchEvent], None],
        listed: Callable[[], None] = lambda: None,
        restarted: Callable[[], None] = lambda: None,
        reconnect_seconds: float = 0.1,
    ) -> None:
        self._connection = connection
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        self._resources = tuple(resources)
        self._receive = receive
        self._listed = listed
        self._restarted = restarted
        self._reconnect_seconds = reconnect_seconds
        self._inbox: deque[WatchEvent] = deque()
        self._draining = False
        self._lock = threading.Lock()
        self._dead_since: float | None = None

    def dead_seconds(self) -> float:
        """Returns the seconds since kopf ended last, 0 while it runs."""
        return 0.0 if self._dead_since is None else time.monotonic() - self._dead_since

    async def run(self) -> None:
        """Watch until cancelled."""
        wait = FIRST_WAIT
        while True:
            started = asyncio.get_running_loop().time()
            error = await self.watch_once()
            if self._dead_since is None:
                self._dead_since = time.monotonic()
            ran = asyncio.get_running_loop().time() - started
            if ran > LONGEST_WAIT:
                self._dead_since = None
            wait = FIRST_WAIT if ran > LONGEST_WAIT else min(wait * 2, LONGEST_WAIT)
            pause = wait * (0.5 + random.random() / 2)
            logger.warning("Watching ended (%s); it starts again in %.1f s.", error or "without an error", pause)
            self._restarted()
            await asyncio.sleep(pause)

    async def watch_once(self) -> BaseException | None:
        """Watch until that ends, which only happens by an error; returns the error."""
        try:
            await self._require_served()
        except (ClusterError, Unserved) as error:
            return error
        loop = asyncio.get_running_loop()
        kopf = KopfThread(
            self._connection,
            self._namespaces,
            self._resources,
            self._hand_over_to(loop),
            partial(loop.call_soon_threadsafe, self._listed),
            self._reconnect_seconds,
        )
        return await kopf.run()

    async def _require_served(self) -> None:
        """Raises Unserved where the API server doesn't serve everything that is to be watched, or ClusterError."""
        # All at once: a watcher of several types must not begin long after the one of jobs, whose status names pods.
        await asyncio.gather(*map(self._require, self._resources))

    async def _require(self, resource: Resource) -> None:
        try:
            await anext(self._cluster.pages(resource, *self._namespaces[:1], metadata_only=True), None)
        except NotFound as error:
            # A list is never empty in this way.
            raise Unserved(resource) from error
        tries = 1
        while not await self._cluster.discovers(resource):
            if tries >= DISCOVERY_TRIES:
                raise Unserved(resource)
            tries += 1
            await asyncio.sleep(DISCOVERY_WAIT)

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
                self._receive(event)
            except Exception:
                # One event that can't be received must not keep all others from being seen: nothing would drain the
                # inbox.
                logger.exception("An event of %s can't be received.", event[1].plural)
        loop.call_soon(self._drain, loop)
