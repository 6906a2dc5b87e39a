"""An operator acquires its lease, reads all objects once, works until it is stopped, and shuts down step by step.

`wiring` constructs the operator's parts. Nothing here is global, so tests can run several operators in one process,
each with its own stop event.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from trainmaster_operator.agent.build import zipapp_bytes
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.api.v1alpha1 import INSTALL_CRD
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import LEASES
from trainmaster_operator.controller.apiserver.connection import ApiConnection, connect
from trainmaster_operator.controller.apiserver.errors import (
    ClusterError,
    Forbidden,
    NotFound,
    Unauthorized,
    Unreachable,
)
from trainmaster_operator.controller.background import end_tasks
from trainmaster_operator.controller.keys import KeysError, load_keys
from trainmaster_operator.controller.lease import LeaderLease
from trainmaster_operator.controller.observability.endpoints import Scrapers, exposition, probes
from trainmaster_operator.controller.observability.metrics import OperatorMetrics
from trainmaster_operator.controller.reconciler import Decide
from trainmaster_operator.controller.settings import METRICS_PORT, OperatorSettings
from trainmaster_operator.controller.wiring import Parts
from trainmaster_operator.serving import HttpServer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
# Seconds between two tries to read the cluster at the start.
START_RETRY = 2.0
# Seconds without a watch after which the liveness probe fails.
UNWATCHED_SECONDS = 300.0
# Seconds that the workers have to finish their passes when the operator stops.
STOP_SECONDS = 5.0
# Number of workers for large jobs. While one worker writes, the other can decide.
LARGE_WORKERS = 2
_LEASE_LOST = "the lease was lost: another operator may lead now, so this one ends"


class OperatorError(Exception):
    """The operator can't continue; the message gives the reason."""


class _Stopped(Exception):
    """The operator was stopped during a wait."""


class Operator:
    """An operator: `await run(stop)` runs it; `ready` is set once every job is known and the workers run."""

    def __init__(self, settings: OperatorSettings, decide: Decide) -> None:
        self.settings = settings
        self.metrics = OperatorMetrics()
        self.ready = asyncio.Event()
        # The ports of /metrics and of the probes, once they are open.
        self.port: int | None = None
        self.health_port: int | None = None
        self._decide = decide
        self._standby = settings.leader_elect
        # Set once this operator leads.
        self._parts: Parts | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises OperatorError, or ConnectionSettingsError, when it can't continue."""
        connection = await connect(self.settings.kubeconfig, self.settings.context)
        async with AsyncExitStack() as stack:
            with suppress(_Stopped):
                await self._run(stop, connection, stack)

    async def _run(self, stop: asyncio.Event, connection: ApiConnection, stack: AsyncExitStack) -> None:
        settings = self.settings
        # The pod's name shows a person which operator leads; the suffix distinguishes two runs of the pod's process.
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        # The lease has its own connections, so that a renewal never waits for another request.
        lease = LeaderLease(self._client(stack, connection), settings, identity) if settings.leader_elect else None
        leads: Callable[[], bool] = lease.is_held if lease is not None else lambda: True
        cluster = self._client(stack, connection, may_write=leads)
        stopped = asyncio.create_task(stop.wait())
        stack.push_async_callback(end_tasks, [stopped])
        background: list[asyncio.Task[None]] = []
        # This runs last, after the lease is released, because kopf's threads take time to end.
        stack.push_async_callback(end_tasks, background)
        if settings.health_port is not None:
            self.health_port = await self._serve_health(stack, settings.health_port)
        self.port = await self._serve_metrics(stack, connection)
        # Building the agent takes seconds on a slow processor, so do this before the lease is acquired and has to be
        # renewed.
        await asyncio.to_thread(zipapp_bytes)
        ends: dict[asyncio.Task[Any], Exception] = {stopped: _Stopped()}
        if lease is not None:
            if not connection.in_cluster:
                await self._require_answer(cluster, connection)
            await _unless(ends, lease.acquire())
            stack.push_async_callback(lease.release)
            # Renewals begin here because the steps below (reading everything, waiting for the CRD) can outlast a lease.
            holding = asyncio.create_task(lease.hold(), name="lease")
            stack.push_async_callback(end_tasks, [holding])
            # If this task ends, the lease is lost, and another operator may lead.
            ends[holding] = OperatorError(_LEASE_LOST)
            self._standby = False
        self.metrics.leader.set(1)
        keys = await _unless(ends, self._read_keys(cluster, connection))
        parts = self._parts = Parts(settings, self._decide, connection, cluster, keys, self.metrics, leads)
        stack.push_async_callback(parts.close)
        await _unless(ends, self._insist(parts.resync.fill, connection))
        await parts.gangs.fill(job.spec for job in parts.store.jobs())
        background += [
            asyncio.create_task(parts.watcher.run(), name="watcher"),
            asyncio.create_task(parts.resync.run(), name="resync"),
            asyncio.create_task(parts.agents.run(), name="agents"),
            asyncio.create_task(parts.large_jobs.run(parts.store), name="large jobs"),
        ]
        if lease is None:
            alone = LeaderLease(self._client(stack, connection), settings, "")
            background.append(asyncio.create_task(alone.publish(), name="lease"))
        if parts.recorder is not None:
            parts.recorder.start()
        await self._work(parts, background, *ends)

    async def _work(
        self,
        parts: Parts,
        background: Collection[asyncio.Task[None]],
        stopped: asyncio.Task[Any],
        *holding: asyncio.Task[Any],
    ) -> None:
        """Work until `stopped` ends. Raises OperatorError if another task ends first."""
        workers = [
            asyncio.create_task(parts.reconciler.work(), name=f"worker {n}") for n in range(self.settings.workers)
        ]
        workers += [
            asyncio.create_task(parts.reconciler.work_large(), name=f"large worker {n}") for n in range(LARGE_WORKERS)
        ]
        tasks = (*holding, *background, *workers)
        self.ready.set()
        logger.info("Serving %s: %d jobs.", ", ".join(self.settings.namespaces) or "all namespaces", len(parts.store))
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    error = None if task.cancelled() else task.exception()
                    if task in holding and error is None:
                        raise OperatorError(_LEASE_LOST)
                    raise OperatorError(f"{task.get_name()} ended: {error!r}") from error
        finally:
            self.ready.clear()
            parts.queue.close()
            # Let the workers finish their passes. If the lease is lost, don't wait, because another operator may lead.
            finished = asyncio.create_task(asyncio.wait(workers))
            await asyncio.wait({finished, *holding}, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await end_tasks([finished, *workers])

    def _client(
        self, stack: AsyncExitStack, connection: ApiConnection, may_write: Callable[[], bool] = lambda: True
    ) -> KubernetesCluster:
        timeout, on_write = self.settings.request_seconds, self.metrics.count_write
        client = KubernetesCluster(connection, timeout=timeout, on_write=on_write, may_write=may_write)
        stack.push_async_callback(client.close)
        return client

    async def _require_answer(self, cluster: KubernetesCluster, connection: ApiConnection) -> None:
        """Raises OperatorError if the API server doesn't answer.

        On a laptop, no answer means that the kubeconfig is wrong, and waiting doesn't help.
        """
        settings = self.settings
        try:
            await cluster.get(LEASES, settings.lease_namespace, settings.lease_name)
        except (Unreachable, Unauthorized) as error:
            raise OperatorError(connection.unusable(error)) from error
        except ClusterError:
            # The API server answers. Acquiring the lease will report any other problem.
            return

    async def _read_keys(self, cluster: KubernetesCluster, connection: ApiConnection) -> SigningKeys:
        """Read the operator's keys, or create them. Raises OperatorError if they can't be used."""
        namespace = self.settings.lease_namespace
        alone = not self.settings.leader_elect and not connection.in_cluster
        try:
            return await self._insist(partial(load_keys, cluster, namespace, make_namespace=alone), connection)
        except KeysError as error:
            raise OperatorError(f"{namespace}: {error}") from error

    async def _insist(self, work: Callable[[], Awaitable[Result]], connection: ApiConnection) -> Result:
        """Repeat API server requests until they succeed, and log each new obstacle."""
        reported = ""
        while True:
            try:
                return await work()
            except NotFound:
                text = f"The custom resource isn't installed; waiting for it. Install it: {INSTALL_CRD}"
            except Forbidden as error:
                text = f"A permission is missing; waiting for it: {error.message}"
            except (Unreachable, Unauthorized) as error:
                if not connection.in_cluster and not reported:
                    raise OperatorError(connection.unusable(error)) from error
                text = f"The API server doesn't answer; trying again: {error}"
            except ClusterError as error:
                text = f"The API server can't be read; trying again: {error}"
            if text != reported:
                logger.warning("%s", text)
                reported = text
            await asyncio.sleep(START_RETRY)

    async def _serve_health(self, stack: AsyncExitStack, port: int) -> int:
        def ready() -> str | None:
            if self._standby or self.ready.is_set():
                # A standby counts as ready because it takes over when the leader ends.
                return None
            return "not every job has been read yet"

        def healthy() -> str | None:
            # A response proves that the event loop runs. The watcher normally recovers by itself; if it doesn't, a
            # restart may help.
            dead = self._parts.watcher.dead_seconds() if self._parts is not None else 0.0
            return f"watching has not worked for {dead:.0f} s" if dead > UNWATCHED_SECONDS else None

        server = probes(healthy=healthy, ready=ready)
        return await _listen("Probes", stack, server, self.settings.health_host, port, "--health-port")

    async def _serve_metrics(self, stack: AsyncExitStack, connection: ApiConnection) -> int:
        default_host, default_port = ("0.0.0.0", METRICS_PORT) if connection.in_cluster else ("127.0.0.1", 0)
        host = self.settings.metrics_host or default_host
        port = default_port if self.settings.metrics_port is None else self.settings.metrics_port
        scrapers = None
        if self.settings.metrics_require_token:
            # This client can write without the lease, because a standby reviews tokens too.
            client = KubernetesCluster(connection, timeout=self.settings.request_seconds)
            stack.push_async_callback(client.close)
            scrapers = Scrapers(client)
        server = exposition(self.metrics, refresh=self._refresh_metrics, scrapers=scrapers)
        return await _listen("Metrics", stack, server, host, port, "--metrics-port")

    def _refresh_metrics(self) -> None:
        """Update the metrics that are only computed when they are scraped."""
        if self._parts is not None:
            self.metrics.count_jobs(self._parts.store.jobs())
            self.metrics.queue_depth.set(len(self._parts.queue))
            self.metrics.streams.set(self._parts.streams.open)


async def _listen(what: str, stack: AsyncExitStack, server: HttpServer, host: str, port: int, option: str) -> int:
    """Listens and returns the port, which is a free one if `port` is 0. Raises OperatorError."""
    stack.push_async_callback(server.close)
    try:
        bound = (await server.start(host, port))[1]
    except OSError as error:
        raise OperatorError(
            f"{option}: {port} can't be listened on ({error.strerror}); choose another, or 0 for a free one"
        ) from error
    logger.info("%s on port %d of %s.", what, bound, host)
    return bound


async def _unless(ends: Mapping[asyncio.Task[Any], Exception], work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`. If one of the tasks ends first, cancel `work` and raise the task's exception."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise next(error for end, error in ends.items() if end.done())
        return await task
    finally:
        await end_tasks([task])
