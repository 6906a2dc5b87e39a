"""The operator, assembled. Nothing here is global: tests run several in one process, each with its own stop event."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from trainmaster.api.signing import SigningKeys
from trainmaster.api.v1alpha1 import INSTALL_CRD
from trainmaster.controller.apiserver.client import KubernetesCluster
from trainmaster.controller.apiserver.cluster import JOBS, LEASES, NETWORK_POLICIES
from trainmaster.controller.apiserver.connection import Connection, connect
from trainmaster.controller.apiserver.errors import ClusterError, Forbidden, NotFound, Unauthorized, Unreachable
from trainmaster.controller.cache.large_jobs import LargeJobs, LargeJobThread
from trainmaster.controller.cache.records import JobKey
from trainmaster.controller.cache.store import Store
from trainmaster.controller.keeping.evidence import EvidenceKeeper
from trainmaster.controller.keeping.logs import KeptLogs
from trainmaster.controller.keys.signing_keys import DamagedKeys, load_keys
from trainmaster.controller.leaders.reach import DirectReach, ProxyReach, Reach
from trainmaster.controller.leaders.streams import LeaderStreams
from trainmaster.controller.lease import LeaderLease, LeaseSettings
from trainmaster.controller.lookups.killed_containers import KilledContainers
from trainmaster.controller.lookups.kueue import KueueFacts
from trainmaster.controller.lookups.missing_pods import MissingPods
from trainmaster.controller.lookups.node_domains import NodeDomains
from trainmaster.controller.observability.health import HealthServer
from trainmaster.controller.observability.metrics import OperatorMetrics
from trainmaster.controller.reconciler import Decide, Reconciler
from trainmaster.controller.settings import OperatorSettings
from trainmaster.controller.watching.gangs import GangWatching
from trainmaster.controller.watching.kopf_thread import WatchEvent
from trainmaster.controller.watching.resync import Resync
from trainmaster.controller.watching.watched import WATCHED
from trainmaster.controller.watching.watcher import Watcher
from trainmaster.controller.workqueue import WorkQueue
from trainmaster.controller.writing.events import EventRecorder
from trainmaster.controller.writing.executor import Executor
from trainmaster.rendering import NetworkPeers
from trainmaster.rendering import Settings as RenderingSettings

logger = logging.getLogger(__name__)

# Seconds between two tries to read the cluster at the start.
START_RETRY = 2.0
# Seconds without watching after which the liveness probe fails.
UNWATCHED_SECONDS = 300.0
# Seconds that workers get to finish their pass when the operator stops as planned.
STOP_SECONDS = 5.0
# Workers for large jobs: while one writes, the next is decided on.
LARGE_WORKERS = 2
_LEASE_LOST = "the lease was lost: another operator may lead now, so this one ends"


class OperatorError(Exception):
    """The operator can't go on; one sentence says why."""


class Operator:
    """`await run(stop)`; `ready` is set once every job is known and the workers run."""

    def __init__(self, settings: OperatorSettings, decide: Decide) -> None:
        self.settings = settings
        self.metrics = OperatorMetrics()
        self.ready = asyncio.Event()
        # The port of /metrics once it listens.
        self.port: int | None = None
        # Once it leads.
        self.keys: SigningKeys | None = None
        self._decide = decide
        self._standby = settings.leader_elect
        self._watchers: list[Watcher] = []
        self._count: Callable[[], None] = lambda: None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises OperatorError, or ConnectionSettingsError, when it can't go on."""
        settings = self.settings
        connection = await connect(settings.kubeconfig, settings.context)
        async with AsyncExitStack() as stack:
            cluster = self._cluster(stack, connection)
            background: list[asyncio.Task[None]] = []
            # Last of all: kopf's thread takes its time, and the lease is given back before.
            stack.push_async_callback(_all_ended, background)
            if settings.metrics_port is not None:
                await self._serve_health(stack, settings.metrics_port)
            if settings.leader_elect:
                if not connection.in_cluster:
                    await self._reached(cluster, connection)
                # With connections of its own: a renewal waits for no other request.
                lease = LeaderLease(self._cluster(stack, connection), self._lease_settings())
                cluster.may_write = lease.is_held
                if not await _unless(stop, lease.acquire()):
                    return
                stack.push_async_callback(lease.release)
                # From now on: reading everything, or waiting for the custom resource, may outlast a lease.
                holding = asyncio.create_task(lease.hold(), name="lease")
                stack.push_async_callback(_all_ended, [holding])
                self._standby = False
            else:
                holding = None
            self.metrics.leader.set(1)
            if not await _unless(stop, _while_held(holding, self._read_keys(cluster, connection))):
                return
            keys = self.keys
            assert keys is not None
            thread = LargeJobThread()
            stack.push_async_callback(thread.close)
            large = LargeJobs(cluster, thread)
            store = Store(lambda key: queue.add(key), keys, read_large=large.add)
            store.unreadable.count = lambda kind: self.metrics.unreadable.labels(kind=kind).inc()
            queue: WorkQueue[JobKey] = WorkQueue()
            streams = LeaderStreams(
                self._reach(connection, cluster, stack),
                store,
                keys,
                progressed=lambda key, first: queue.add_after(key, 0.0 if first else settings.progress_seconds),
                failed=lambda fault: self.metrics.stream_faults.labels(fault=fault).inc(),
            )

            def count() -> None:
                self.metrics.count_jobs(store.jobs())
                self.metrics.queue_depth.set(len(queue))
                self.metrics.streams.set(streams.open)

            self._count = count
            watched = (*WATCHED, *((NETWORK_POLICIES,) if settings.job_network_policies else ()))
            resync = Resync(
                cluster,
                store,
                settings.namespaces,
                interval=settings.resync_seconds,
                watched=watched,
                also=lambda: gangs.served,
            )
            receive = _event_receiver(store, resync)
            gangs = GangWatching(connection, cluster, store, settings.namespaces, receive=receive, relisted=resync.soon)
            stack.push_async_callback(gangs.close)
            if not await _unless(stop, _while_held(holding, self._insist(resync.fill, connection))):
                return
            await gangs.fill(job.spec for job in store.jobs())

            def restarted() -> None:
                self.metrics.watch_restarts.inc()
                resync.soon()

            # Jobs apart: their pages are smaller, and what decodes a large one holds up no pod's events.
            apart_from_jobs = tuple(resource for resource in watched if resource != JOBS)
            self._watchers = [
                Watcher(
                    connection, cluster, settings.namespaces, resources=resources, receive=receive, restarted=restarted
                )
                for resources in ((JOBS,), apart_from_jobs)
            ]
            reconciler = self._reconciler(stack, cluster, store, keys, queue, streams, gangs, thread)
            background += [
                *(asyncio.create_task(watcher.run(), name="watcher") for watcher in self._watchers),
                asyncio.create_task(resync.run(), name="resync"),
                asyncio.create_task(large.run(store), name="large jobs"),
                *([holding] if holding is not None else []),
            ]
            await self._work(stop, queue, reconciler, background, len(store))

    def _reconciler(
        self,
        stack: AsyncExitStack,
        cluster: KubernetesCluster,
        store: Store,
        keys: SigningKeys,
        queue: WorkQueue[JobKey],
        streams: LeaderStreams,
        gangs: GangWatching,
        thread: LargeJobThread,
    ) -> Reconciler:
        """What decides, and all that it has decisions carried out with."""
        settings = self.settings
        logs = KeptLogs(cluster, limit=settings.kept_log_bytes if settings.keep_logs else 0)
        evidence = EvidenceKeeper(cluster, store, logs.tail, keep_output=settings.keep_logs)
        stack.push_async_callback(streams.close)
        stack.push_async_callback(evidence.close)
        streams.heard = evidence.record_stall
        executor = Executor(
            cluster,
            store,
            keys,
            EventRecorder(cluster, time.time),
            push=streams.push,
            keep_logs=logs,
            evidence=evidence,
            progress_seconds=settings.progress_seconds,
        )
        streams.refused = executor.doubt_secret
        missing = MissingPods(cluster, store)

        def forget(uid: str) -> None:
            missing.forget(uid)
            executor.forget(uid)
            logs.forget(uid)
            evidence.forget(uid)

        return Reconciler(
            store,
            queue,
            executor,
            streams,
            missing,
            self.metrics,
            self._decide,
            RenderingSettings(
                agent_image=settings.agent_image,
                replace_after_seconds=settings.replace_after_seconds,
                keep_logs=settings.keep_logs,
                network_peers=NetworkPeers(
                    settings.lease_namespace, settings.operator_labels, settings.metrics_namespaces
                )
                if settings.job_network_policies
                else None,
                keys=keys,
            ),
            forget=forget,
            kills=KilledContainers(cluster, store),
            domains=NodeDomains(cluster, store),
            kueue=KueueFacts(cluster, store),
            thread=thread,
            want=gangs.want,
        )

    async def _work(
        self,
        stop: asyncio.Event,
        queue: WorkQueue[JobKey],
        reconciler: Reconciler,
        background: list[asyncio.Task[None]],
        jobs: int,
    ) -> None:
        """Work until `stop` is set. Raises OperatorError when anything else ends first."""
        workers = [asyncio.create_task(reconciler.work(), name=f"worker {n}") for n in range(self.settings.workers)]
        workers += [
            asyncio.create_task(reconciler.work_large(), name=f"large worker {n}") for n in range(LARGE_WORKERS)
        ]
        self.ready.set()
        logger.info("Serving %s: %d jobs.", ", ".join(self.settings.namespaces) or "all namespaces", jobs)
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopped, *background, *workers}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*background, *workers):
                if task.done():
                    error = None if task.cancelled() else task.exception()
                    if task.get_name() == "lease" and error is None:
                        raise OperatorError(_LEASE_LOST)
                    raise OperatorError(f"{task.get_name()} ended: {error!r}") from error
        finally:
            self.ready.clear()
            queue.close()
            stopped.cancel()
            await _finish(workers, [task for task in background if task.get_name() == "lease"])
            for task in (*background, *workers):
                task.cancel()
            await asyncio.gather(*workers, stopped, return_exceptions=True)

    def _cluster(self, stack: AsyncExitStack, connection: Connection) -> KubernetesCluster:
        cluster = KubernetesCluster(connection, timeout=self.settings.request_seconds)
        stack.push_async_callback(cluster.close)
        cluster.on_write = lambda verb, kind: self.metrics.writes.labels(verb=verb, kind=kind).inc()
        return cluster

    async def _reached(self, cluster: KubernetesCluster, connection: Connection) -> None:
        """Raises OperatorError where nothing answers: on a laptop the kubeconfig is wrong, and waiting no use."""
        settings = self.settings
        try:
            await cluster.get(LEASES, settings.lease_namespace, settings.lease_name)
        except (Unreachable, Unauthorized) as error:
            raise _unusable(connection, error) from error
        except ClusterError:
            # It answers; the lease says what is wrong.
            return

    async def _read_keys(self, cluster: KubernetesCluster, connection: Connection) -> None:
        """Read the operator's keys, or make them. Raises OperatorError where they can't be used."""
        namespace = self.settings.lease_namespace
        alone = not self.settings.leader_elect and not connection.in_cluster

        async def read() -> None:
            try:
                self.keys = await load_keys(cluster, namespace, make_namespace=alone)
            except DamagedKeys as error:
                raise OperatorError(f"{namespace}: {error}") from error
            except NotFound as error:
                raise OperatorError(
                    f"there is no namespace {namespace} for the Secret with the operator's keys: make it (kubectl "
                    f"create namespace {namespace}) or choose another (--lease-namespace): {error.message}"
                ) from error

        await self._insist(read, connection)

    async def _insist(self, work: Callable[[], Awaitable[None]], connection: Connection) -> None:
        """Do what needs the API server, trying again until it works; says in one sentence what stands in the way."""
        reported = ""
        while True:
            try:
                await work()
                return
            except NotFound:
                text = f"The custom resource isn't installed; waiting for it. Install it: {INSTALL_CRD}"
            except Forbidden as error:
                text = f"A permission is missing; waiting for it: {error.message}"
            except (Unreachable, Unauthorized) as error:
                if not connection.in_cluster and not reported:
                    raise _unusable(connection, error) from error
                text = f"The API server doesn't answer; trying again: {error}"
            except ClusterError as error:
                text = f"The API server can't be read; trying again: {error}"
            if text != reported:
                logger.warning("%s", text)
                reported = text
            await asyncio.sleep(START_RETRY)

    def _reach(self, connection: Connection, cluster: KubernetesCluster, stack: AsyncExitStack) -> Reach:
        direct = self.settings.reach == "direct" or (self.settings.reach == "auto" and connection.in_cluster)
        port = self.settings.agent_port
        reach: Reach = DirectReach(port) if direct else ProxyReach(cluster, port)
        stack.push_async_callback(reach.close)
        return reach

    def _lease_settings(self) -> LeaseSettings:
        settings = self.settings
        # The pod's name tells a person who leads; the rest tells two lives of it apart.
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        return LeaseSettings(
            settings.lease_namespace,
            settings.lease_name,
            identity,
            settings.lease_seconds,
            settings.renew_seconds,
            settings.retry_seconds,
        )

    async def _serve_health(self, stack: AsyncExitStack, port: int) -> None:
        def ready() -> str | None:
            if self._standby or self.ready.is_set():
                # A standby is ready: it takes over when the leader goes.
                return None
            return "not every job has been read yet"

        def healthy() -> str | None:
            # That this answers shows that the event loop turns. Watching heals itself; if not, a restart may.
            dead = max((watcher.dead_seconds() for watcher in self._watchers), default=0.0)
            return f"watching has not worked for {dead:.0f} s" if dead > UNWATCHED_SECONDS else None

        server = HealthServer(self.metrics, healthy=healthy, ready=ready, refresh=lambda: self._count())
        stack.push_async_callback(server.close)
        try:
            self.port = await server.start(self.settings.metrics_host, port)
        except OSError as error:
            raise OperatorError(
                f"--metrics-port: {port} can't be listened on ({error.strerror}); choose another, or 0 for a free one"
            ) from error
        logger.info("Metrics and probes on port %d.", self.port)


def _unusable(connection: Connection, error: ClusterError) -> OperatorError:
    return OperatorError(f"the cluster at {connection.configuration.host} can't be used: {error}")


def _event_receiver(store: Store, resync: Resync) -> Callable[[WatchEvent], None]:
    """What is done with each event of a watch."""

    def receive(event: WatchEvent) -> None:
        kind, resource, raw = event
        if kind == "DELETED":
            store.delete(resource, raw)
            return
        if kind is None:
            # A new list: what was deleted before it is missing in it, and only a sweep sees that.
            resync.soon()
        store.upsert(resource, raw)

    return receive


async def _while_held(holding: asyncio.Task[None] | None, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`. Raises OperatorError when the lease is lost first: another operator may lead then."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, *([holding] if holding is not None else [])}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise OperatorError(_LEASE_LOST)
        await task
    finally:
        await _all_ended([task])


async def _finish(workers: Collection[asyncio.Task[None]], holding: Collection[asyncio.Task[None]]) -> None:
    """Let the workers finish their pass, but not for a moment once the lease is lost: another operator may lead."""
    finished = asyncio.create_task(asyncio.wait(workers))
    await asyncio.wait({finished, *holding}, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    await _all_ended([finished])


async def _all_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        # Once only: a second time would break off what a task does at its end.
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Await `work` unless `stop` is set first; whether it was done."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        for pending in (task, stopped):
            pending.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
